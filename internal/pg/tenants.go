package pg

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// AllTenants is the value of ledgerd.tenants that shows the rows of all tenants.
const AllTenants = "{(,)}"

// TenantSet returns the value of ledgerd.tenants that shows the rows of some tenants: the policies of row-level
// security read it. Without a value no row is visible, and none can be written.
func TenantSet(tenants ...int32) string {
	tenants = slices.Clone(tenants)
	slices.Sort(tenants)
	b := []byte{'{'}
	for i, t := range slices.Compact(tenants) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, '['), int64(t), 10)
		b = strconv.AppendInt(append(b, ','), int64(t), 10)
		b = append(b, ']')
	}
	return string(append(b, '}'))
}

type tenantsKey struct{}

// ForTenants returns a context whose statements see the rows of some tenants only. Planned and Begin apply it.
func ForTenants(ctx context.Context, tenants ...int32) context.Context {
	return context.WithValue(ctx, tenantsKey{}, tenants)
}

// ForAllTenants is ForTenants for work that spans tenants: authentication, background tasks, commands of operators.
func ForAllTenants(ctx context.Context) context.Context {
	return context.WithValue(ctx, tenantsKey{}, AllTenants)
}

// TenantsOf returns the value of ledgerd.tenants for statements of a context. Empty: none was set.
func TenantsOf(ctx context.Context) string {
	switch tenants := ctx.Value(tenantsKey{}).(type) {
	case []int32: // most calls need no text
		return TenantSet(tenants...)
	case string:
		return tenants
	}
	return ""
}

// ReadCommitted begins a transaction of the usual isolation.
const ReadCommitted = "begin isolation level read committed"

// Begin returns the options of a transaction that is begun by a statement, and sees the tenants of the context.
func Begin(ctx context.Context, begin string) pgx.TxOptions {
	if set := TenantsOf(ctx); set != "" {
		begin += "; set local ledgerd.tenants = '" + set + "'"
	}
	return pgx.TxOptions{BeginQuery: begin}
}

// beginSnapshot opens a snapshot and disables all plans but ordered index scans, so that a page reads no more rows than
// it needs. With poor statistics the planner would read and sort everything. The timeout is for connections through a
// pooler, which have none of their own.
var beginSnapshot = "begin isolation level repeatable read read only; set local enable_sort = off; " +
	"set local enable_bitmapscan = off; set local enable_seqscan = off; set local jit = off; " +
	fmt.Sprintf("set local statement_timeout = %d", ReadTimeout.Milliseconds())

// Snapshot runs several statements, or a read of a list, on one snapshot, which sees the tenants of the context.
func Snapshot(ctx context.Context, pool *pgxpool.Pool, read func(DB) error) error {
	return pgx.BeginTxFunc(ctx, pool, Begin(ctx, beginSnapshot),
		func(tx pgx.Tx) error { return read(Planned{DB: tx}) })
}

// FromSnapshot is Snapshot for a read that returns one value.
func FromSnapshot[T any](ctx context.Context, pool *pgxpool.Pool, read func(DB) (T, error)) (v T, err error) {
	err = Snapshot(ctx, pool, func(d DB) (err error) {
		v, err = read(d)
		return err
	})
	return v, err
}

// applyTenants sets the tenants and disables cached plans for the rest of the implicit transaction.
const applyTenants = "select set_config('ledgerd.tenants', $1, true), " +
	"set_config('plan_cache_mode', 'force_custom_plan', true)"

// runForTenants runs a statement in one round trip and one transaction with the setting of its tenants.
func runForTenants(ctx context.Context, pool *pgxpool.Pool, set, sql string, args []any) (*rows, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	var batch pgx.Batch
	batch.Queue(applyTenants, set)
	batch.Queue(sql, args...)
	r := &rows{conn: conn, results: conn.SendBatch(ctx, &batch)}
	if _, err = r.results.Exec(); err == nil {
		r.Rows, err = r.results.Query()
	}
	if err != nil {
		r.end()
		return nil, err
	}
	return r, nil
}

// rows are the result of the second statement. Their end ends the round trip, and returns the connection to the pool.
type rows struct {
	pgx.Rows
	conn    *pgxpool.Conn
	results pgx.BatchResults
	err     error // of the end of the round trip
}

func (r *rows) end() {
	if r.conn != nil {
		r.err = r.results.Close()
		r.conn.Release()
		r.conn = nil
	}
}

// Close implements pgx.Rows.
func (r *rows) Close() {
	r.Rows.Close()
	r.end()
}

// Next implements pgx.Rows.
func (r *rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	r.Close()
	return false
}

// Err implements pgx.Rows.
func (r *rows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// Scan implements pgx.Rows.
func (r *rows) Scan(dest ...any) error {
	err := r.Rows.Scan(dest...)
	if err != nil {
		r.Close()
	}
	return err
}

// row implements pgx.Row.
type row struct {
	rows *rows
	err  error
}

// Scan implements pgx.Row.
func (r row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
