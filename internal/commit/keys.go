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

// keyRecord is what is recorded under a request key.
type keyRecord struct {
	refused     bool
	fingerprint []byte
	answer      []byte
	requestID   string
	createdAt   time.Time
	expiresAt   time.Time
}

// keys are the jobs of a batch that have a request key, sorted by it.
type keys[T any] []*job[T]

func compareKeys[T any](a, b *job[T]) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key.Principal, b.Key.Principal),
		cmp.Compare(a.Key.Operation, b.Key.Operation), cmp.Compare(a.Key.Key, b.Key.Key))
}

var q db.Queries

// lookup finds what is recorded under the keys of a batch's jobs.
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
		arg.Tenants[i], arg.Principals[i], arg.Operations[i], arg.Keys[i] = j.Tenant, j.Key.Principal, j.Key.Operation, j.Key.Key
	}
	p.Queue(func(d DB) error {
		rows, err := q.KeyLookup(p.ctx, d, arg)
		for _, r := range rows {
			sorted[r.N-1].found = &keyRecord{r.Refused, r.Fingerprint, r.Answer, r.RequestID, r.CreatedAt, r.ExpiresAt}
		}
		return err
	})
}

// flush records the answers, once, as the batch's last names. Where the row of a key whose life is
// over is still there, the answer goes into it.
func (k keys[T]) flush(p *Pipe, now time.Time) {
	var fresh db.KeyInsertParams
	var renew db.KeyRenewParams
	for _, j := range k {
		if !j.fresh {
			continue
		}
		j.kept.createdAt, j.kept.expiresAt = now, now.Add(j.Key.Life)
		if j.found == nil {
			fresh.Tenants = append(fresh.Tenants, j.Tenant)
			fresh.Principals = append(fresh.Principals, j.Key.Principal)
			fresh.Operations = append(fresh.Operations, j.Key.Operation)
			fresh.Keys = append(fresh.Keys, j.Key.Key)
			fresh.Refused = append(fresh.Refused, j.kept.refused)
			fresh.Fingerprints = append(fresh.Fingerprints, j.kept.fingerprint)
			fresh.Answers = append(fresh.Answers, j.kept.answer)
			fresh.RequestIds = append(fresh.RequestIds, j.kept.requestID)
			fresh.ExpiresAt = append(fresh.ExpiresAt, j.kept.expiresAt)
			continue
		}
		renew.Tenants = append(renew.Tenants, j.Tenant)
		renew.Principals = append(renew.Principals, j.Key.Principal)
		renew.Operations = append(renew.Operations, j.Key.Operation)
		renew.Keys = append(renew.Keys, j.Key.Key)
		renew.Refused = append(renew.Refused, j.kept.refused)
		renew.Fingerprints = append(renew.Fingerprints, j.kept.fingerprint)
		renew.Answers = append(renew.Answers, j.kept.answer)
		renew.RequestIds = append(renew.RequestIds, j.kept.requestID)
		renew.ExpiresAt = append(renew.ExpiresAt, j.kept.expiresAt)
		renew.Seen = append(renew.Seen, j.found.expiresAt)
	}
	if len(renew.Keys) > 0 {
		renew.Now = now
		p.Queue(func(d DB) error {
			_, err := q.KeyRenew(p.ctx, d, renew)
			return err
		})
	}
	if len(fresh.Keys) > 0 {
		fresh.Now = now
		p.Queue(func(d DB) error { return q.KeyInsert(p.ctx, d, fresh) })
	}
}

// Keys are the request keys, as the cleaner sees them.
func Keys() clean.Table {
	return clean.Table{
		Name:    "commit_keys",
		Delete:  func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) { return q.KeyClean(ctx, tx, limit) },
		Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.KeyOverdue(ctx, tx) },
	}
}
