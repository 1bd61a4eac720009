package commit

import (
	"sort"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
)

// keyRecord is what is recorded under a request key.
type keyRecord struct {
	refused     bool
	fingerprint []byte
	answer      []byte
	requestID   string
	expiresAt   time.Time
}

// keys are the request keys of one batch: what the look-up found, and what is to be recorded.
type keys[B any] struct {
	jobs  []*job[B] // the jobs with a key, sorted by it
	found map[*job[B]]*keyRecord
}

func newKeys[B any](jobs []*job[B]) *keys[B] {
	k := &keys[B]{found: map[*job[B]]*keyRecord{}}
	for _, j := range jobs {
		if j.Key != nil && !j.DryRun {
			k.jobs = append(k.jobs, j)
		}
	}
	sort.Slice(k.jobs, func(a, b int) bool { return keyLess(k.jobs[a], k.jobs[b]) })
	return k
}

func keyLess[B any](a, b *job[B]) bool {
	switch {
	case a.Tenant != b.Tenant:
		return a.Tenant < b.Tenant
	case a.Key.Principal != b.Key.Principal:
		return a.Key.Principal < b.Key.Principal
	case a.Key.Operation != b.Key.Operation:
		return a.Key.Operation < b.Key.Operation
	}
	return a.Key.Key < b.Key.Key
}

var q db.Queries

func (k *keys[B]) lookup(p *Pipe) {
	if len(k.jobs) == 0 {
		return
	}
	var arg db.KeyLookupParams
	for _, j := range k.jobs {
		arg.Tenants = append(arg.Tenants, j.Tenant)
		arg.Principals = append(arg.Principals, j.Key.Principal)
		arg.Operations = append(arg.Operations, j.Key.Operation)
		arg.Keys = append(arg.Keys, j.Key.Key)
	}
	p.Queue(func(d DB) error {
		rows, err := q.KeyLookup(p.ctx, d, arg)
		if err != nil {
			return err
		}
		for _, r := range rows {
			k.found[k.jobs[r.N-1]] = &keyRecord{r.Refused, r.Fingerprint, r.Answer, r.RequestID, r.ExpiresAt}
		}
		return nil
	})
}

// live is the record of a job's key whose life is not over, or nil.
func (k *keys[B]) live(j *job[B], now time.Time) *keyRecord {
	if r := k.found[j]; r != nil && r.expiresAt.After(now) {
		return r
	}
	return nil
}

// flush records the answers, once, as the batch's last names.
func (k *keys[B]) flush(p *Pipe, now time.Time) {
	var fresh db.KeyInsertParams
	var renew db.KeyRenewParams
	for _, j := range k.jobs {
		if !j.recorded {
			continue
		}
		expires := now.Add(j.Key.Life)
		if old := k.found[j]; old != nil {
			renew.Tenants = append(renew.Tenants, j.Tenant)
			renew.Principals = append(renew.Principals, j.Key.Principal)
			renew.Operations = append(renew.Operations, j.Key.Operation)
			renew.Keys = append(renew.Keys, j.Key.Key)
			renew.Refused = append(renew.Refused, j.err != nil)
			renew.Fingerprints = append(renew.Fingerprints, j.Key.Fingerprint)
			renew.Answers = append(renew.Answers, j.answer)
			renew.RequestIds = append(renew.RequestIds, j.RequestID)
			renew.ExpiresAt = append(renew.ExpiresAt, expires)
			renew.Seen = append(renew.Seen, old.expiresAt)
			continue
		}
		fresh.Tenants = append(fresh.Tenants, j.Tenant)
		fresh.Principals = append(fresh.Principals, j.Key.Principal)
		fresh.Operations = append(fresh.Operations, j.Key.Operation)
		fresh.Keys = append(fresh.Keys, j.Key.Key)
		fresh.Refused = append(fresh.Refused, j.err != nil)
		fresh.Fingerprints = append(fresh.Fingerprints, j.Key.Fingerprint)
		fresh.Answers = append(fresh.Answers, j.answer)
		fresh.RequestIds = append(fresh.RequestIds, j.RequestID)
		fresh.ExpiresAt = append(fresh.ExpiresAt, expires)
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
