package verify

import (
	"context"
	"fmt"
	"math"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/pg"
)

// slicing iterates over one kind of rows in order of id.
type slicing struct {
	column string // of the checks that run on these slices
	what   string // kind of rows, and the name of the query that lists them
	limit  int    // maximum number of rows in a slice
	done   *int64
}

// sliceEntries is the approximate number of entries in a slice of accounts: a hot account fills a slice alone.
const sliceEntries = 200_000

// slices runs a slicing's checks on all rows of the tenants. The slices of a tenant cover all ids without gaps,
// so entries of missing accounts are checked too.
func (r *run) slices(ctx context.Context, s slicing, tenants []tenant) error {
	var total int64
	if err := r.conn.QueryRow(ctx, query("estimate"), "ledger_"+s.what).Scan(&total); err != nil {
		return err
	}
	for _, t := range tenants {
		for first, more := int64(math.MinInt64), true; more; {
			err := r.snapshot(ctx, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, query("settings")); err != nil {
					return err
				}
				last, rows, err := s.end(ctx, tx, t, first)
				if err != nil {
					return err
				}
				for _, c := range r.checks {
					if c.column != s.column {
						continue
					}
					if err := r.violations(ctx, tx, c, c.sliced(), t.id, first, last); err != nil {
						return err
					}
				}
				*s.done += rows
				more = last < math.MaxInt64
				first = last + 1 // unused if it overflows
				return nil
			})
			if err != nil {
				return err
			}
			r.Progress(*s.done, max(total, *s.done), s.what)
		}
	}
	return nil
}

// end finds the last id of the slice that begins at first, and counts its rows.
func (s slicing) end(ctx context.Context, tx pgx.Tx, t tenant, first int64) (last, rows int64, err error) {
	found, err := tx.Query(ctx, query(s.what), t.id, first, s.limit)
	if err != nil {
		return 0, 0, err
	}
	defer found.Close()
	var id, weight, sum int64
	for found.Next() {
		if err := found.Scan(&id, &weight); err != nil {
			return 0, 0, err
		}
		last = id
		rows++
		if sum += weight; sum >= sliceEntries {
			return last, rows, nil
		}
	}
	if rows < int64(s.limit) {
		last = math.MaxInt64
	}
	return last, rows, found.Err()
}

// snapshot runs do in a read-only transaction on a single snapshot.
func (r *run) snapshot(ctx context.Context, do func(pgx.Tx) error) error {
	// JIT compilation of a check takes longer than running it on a slice.
	const begin = "begin isolation level repeatable read read only; set local jit = off"
	return pgx.BeginTxFunc(ctx, r.conn, pg.Begin(pg.ForAllTenants(ctx), begin), do)
}

// sliced is the check restricted to a tenant ($1) and an id range ($2 to $3).
func (c *check) sliced() string {
	return fmt.Sprintf("select * from (\n%s\n) c where c.tenant_id = $1 and c.%s between $2 and $3", c.sql, c.column)
}
