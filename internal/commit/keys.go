package commit

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

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
type keys[B any] []*job[B]

func compareKeys[B any](a, b *job[B]) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Key.Principal, b.Key.Principal),
		cmp.Compare(a.Key.Operation, b.Key.Operation), cmp.Compare(a.Key.Key, b.Key.Key))
}

var q db.Queries

var keySeed = maphash.MakeSeed()

func (j *job[B]) keyHash() uint64 { return maphash.Comparable(keySeed, j.flight()) }

// lookup finds what is recorded under the keys of a batch's jobs. Unless sure, it takes keys that the memory does not
// have for new; it tells whether it did.
func (k *keys[B]) lookup(p *Pipe, jobs []*job[B], memory *Memory, sure bool) (guessed bool) {
	sorted := make([]*job[B], 0, len(jobs)) // those that are looked up
	for _, j := range jobs {
		if !j.keyed() {
			continue
		}
		*k = append(*k, j)
		if j.guessed = !sure && !memory.Has(j.keyHash()); j.guessed {
			guessed = true
		} else {
			sorted = append(sorted, j)
		}
	}
	slices.SortFunc(*k, compareKeys)
	n := len(sorted)
	if n == 0 {
		return guessed
	}
	slices.SortFunc(sorted, compareKeys)
	arg := db.KeyLookupParams{Tenants: make([]int32, n), Principals: make([]string, n),
		Operations: make([]string, n), Keys: make([]string, n)}
	for i, j := range sorted {
		arg.Tenants[i], arg.Principals[i], arg.Operations[i], arg.Keys[i] = j.Tenant, j.Key.Principal, j.Key.Operation, j.Key.Key
	}
	p.Queue(func(d DB) error {
		rows, err := q.KeyLookup(p.ctx, d, arg)
		for _, r := range rows {
			sorted[r.N-1].found = &keyRecord{r.Refused, r.Fingerprint, r.Answer, r.RequestID, r.CreatedAt, r.ExpiresAt}
			memory.Add(sorted[r.N-1].keyHash())
		}
		return err
	})
	return guessed
}

// confirm makes sure that nothing is recorded under keys that were taken for new, and have no answer to record.
func (k keys[B]) confirm(p *Pipe) {
	var arg db.KeyAbsentParams
	for _, j := range k {
		if j.guessed && !j.fresh {
			arg.Tenants, arg.Principals = append(arg.Tenants, j.Tenant), append(arg.Principals, j.Key.Principal)
			arg.Operations, arg.Keys = append(arg.Operations, j.Key.Operation), append(arg.Keys, j.Key.Key)
		}
	}
	if len(arg.Keys) > 0 {
		p.Queue(func(d DB) error {
			_, err := q.KeyAbsent(p.ctx, d, arg)
			return err
		})
	}
}

// flush records the answers, once, as the batch's last names. Where the row of a key whose life is
// over is still there, the answer goes into it.
func (k keys[B]) flush(p *Pipe, now time.Time, memory *Memory) {
	var fresh db.KeyInsertParams
	var renew db.KeyRenewParams
	for _, j := range k {
		if !j.fresh {
			continue
		}
		j.kept.createdAt, j.kept.expiresAt = now, now.Add(j.Key.Life)
		if j.found == nil {
			memory.Add(j.keyHash())
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
