package commit

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
)

// keyRecord is the record of a request key.
type keyRecord struct {
	refused     bool
	fingerprint []byte
	answer      []byte
	requestID   string
	createdAt   time.Time
	expiresAt   time.Time
}

// keys has the jobs of a batch with a request key, sorted by key.
type keys[T any] []*job[T]

func compareKeys[T any](a, b *job[T]) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key.Principal, b.Key.Principal),
		cmp.Compare(a.Key.Operation, b.Key.Operation), cmp.Compare(a.Key.Key, b.Key.Key))
}

var q db.Queries

// lookup reads the records of the keys of a batch's jobs.
func (k *keys[T]) lookup(p *Pipe, jobs []*job[T]) {
	for _, j := range jobs {
		if j.keyed() {
			*k = append(*k, j)
		}
	}
	n := len(*k)
	if n == 0 {
		return
	}
	slices.SortFunc(*k, compareKeys)
	sorted := *k
	arg := db.KeyLookupParams{Tenants: make([]int32, n), Principals: make([]string, n),
		Operations: make([]string, n), Keys: make([]string, n)}
	for i, j := range sorted {
		arg.Tenants[i], arg.Principals[i], arg.Operations[i], arg.Keys[i] = j.Tenant, j.Key.Principal, j.Key.Operation,
			j.Key.Key
	}
	p.Queue(func(d DB) error {
		rows, err := q.KeyLookup(p.ctx, d, arg)
		for _, r := range rows {
			sorted[r.N-1].found = &keyRecord{r.Refused, r.Fingerprint, r.Answer, r.RequestID, r.CreatedAt, r.ExpiresAt}
		}
		return err
	})
}

// flush records the answers, as the last names of the batch. If the row of an expired key still exists, it is updated
// instead of inserted.
func (k keys[T]) flush(p *Pipe, now time.Time) {
	fresh, renewed := db.KeyInsertParams{Now: now}, db.KeyInsertParams{Now: now}
	var seen []time.Time
	for _, j := range k {
		switch {
		case !j.fresh:
			continue
		case j.found == nil:
			j.record(&fresh)
		default:
			j.record(&renewed)
			seen = append(seen, j.found.expiresAt)
		}
	}
	if len(seen) > 0 {
		arg := db.KeyRenewParams{Now: now, Tenants: renewed.Tenants, Principals: renewed.Principals,
			Operations: renewed.Operations,
			Keys:       renewed.Keys, Refused: renewed.Refused, Fingerprints: renewed.Fingerprints,
			Answers:    renewed.Answers,
			RequestIds: renewed.RequestIds, ExpiresAt: renewed.ExpiresAt, Seen: seen}
		p.Queue(func(d DB) error { return q.KeyRenew(p.ctx, d, arg) })
	}
	if len(fresh.Keys) > 0 {
		p.Queue(func(d DB) error { return q.KeyInsert(p.ctx, d, fresh) })
	}
}

// record adds the record of the job's key to the rows of a statement, and sets its expiry.
func (j *job[T]) record(rows *db.KeyInsertParams) {
	j.kept.createdAt, j.kept.expiresAt = rows.Now, rows.Now.Add(j.Key.Life)
	rows.Tenants = append(rows.Tenants, j.Tenant)
	rows.Principals = append(rows.Principals, j.Key.Principal)
	rows.Operations = append(rows.Operations, j.Key.Operation)
	rows.Keys = append(rows.Keys, j.Key.Key)
	rows.Refused = append(rows.Refused, j.kept.refused)
	rows.Fingerprints = append(rows.Fingerprints, j.kept.fingerprint)
	rows.Answers = append(rows.Answers, j.kept.answer)
	rows.RequestIds = append(rows.RequestIds, j.kept.requestID)
	rows.ExpiresAt = append(rows.ExpiresAt, j.kept.expiresAt)
}

// Keys describes the table of request keys to the cleaner.
func Keys() clean.Table {
	return clean.Table{
		Name:    "commit_keys",
		Delete:  func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) { return q.KeyClean(ctx, tx, limit) },
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.KeyOverdue(ctx, tx) },
	}
}
