package commit

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
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
	pg.Reserve(&fresh, len(k))
	var seen []time.Time
	for _, j := range k {
		switch {
		case !j.records():
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

// inflightKeys maps each request key in flight in this process to its leader: the job that waits or runs. Other jobs
// with the key are followers: they wait for its answer, so that a process never races itself for a key.
type inflightKeys[T any] struct {
	mu   sync.Mutex
	jobs map[inflightKey]*job[T]
}

type inflightKey struct {
	tenant                    int32
	principal, operation, key string
}

func (j *job[T]) inflightKey() inflightKey {
	return inflightKey{j.Tenant, j.Key.Principal, j.Key.Operation, j.Key.Key}
}

// join makes each job the leader of its key or, if the key is in flight, a follower. It returns the leaders and the
// jobs without a key.
func (f *inflightKeys[T]) join(jobs []*job[T]) (leaders []*job[T]) {
	if !slices.ContainsFunc(jobs, (*job[T]).keyed) {
		return jobs
	}
	leaders = make([]*job[T], 0, len(jobs))
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, j := range jobs {
		if j.keyed() {
			k := j.inflightKey()
			if leader := f.jobs[k]; leader != nil {
				leader.followers = append(leader.followers, j)
				continue
			}
			f.jobs[k] = j
		}
		leaders = append(leaders, j)
	}
	return leaders
}

// remove releases the key of an ended job and returns its followers. If the ended job was a follower itself, its
// leader counts it as gone.
func (f *inflightKeys[T]) remove(j *job[T]) (followers []*job[T]) {
	k := j.inflightKey()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch leader := f.jobs[k]; leader {
	case j:
		delete(f.jobs, k)
		followers, j.followers = j.followers, nil
	case nil:
	default:
		if leader.gone++; leader.gone > len(leader.followers)/2+64 {
			leader.followers, leader.gone = remaining(leader.followers), 0
		}
	}
	return followers
}

// nextLeader makes the first of the followers the leader of their key, which the others follow. If the key is in flight
// again, all follow its leader, and nextLeader returns nil.
func (f *inflightKeys[T]) nextLeader(followers []*job[T]) *job[T] {
	k := followers[0].inflightKey()
	f.mu.Lock()
	defer f.mu.Unlock()
	if leader := f.jobs[k]; leader != nil {
		leader.followers = append(leader.followers, followers...)
		return nil
	}
	followers[0].followers = append(followers[0].followers, followers[1:]...)
	f.jobs[k] = followers[0]
	return followers[0]
}

// handOverKey releases the key of an ended job. Its followers get the recorded answer. If none was recorded, the first
// of them runs.
func (e *Engine[T]) handOverKey(j *job[T]) {
	if !j.keyed() {
		return
	}
	followers := e.inflight.remove(j)
	if len(followers) == 0 {
		return
	}
	if j.kept != nil {
		for _, f := range followers {
			if f.state.CompareAndSwap(waiting, running) {
				out, err := f.replay(j.kept)
				e.observeReplay(f, j.kept)
				e.finish(f, out, err)
			}
		}
		return
	}
	if followers = remaining(followers); len(followers) == 0 {
		return
	}
	head := e.inflight.nextLeader(followers)
	if head == nil {
		return
	}
	e.dispatch([]*job[T]{head})
	if head.state.Load() == abandoned {
		e.handOverKey(head) // it was abandoned before it led the key
	}
}

// replay answers a job from the record of its key.
func (j *job[T]) replay(r *keyRecord) (Outcome, error) {
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		return Outcome{}, KeyReused.New("the Idempotency-Key was already used with other content: "+
			"use a new key for another request").
			With("key", j.Key.Key).With("first_request_id", r.requestID)
	}
	if r.refused {
		f, err := fault.Decode(r.answer)
		if err != nil {
			return Outcome{}, err
		}
		f.RequestID = r.requestID
		return Outcome{Replayed: true, FirstRequestID: r.requestID}, f
	}
	return Outcome{Recorded: r.answer, Replayed: true, FirstRequestID: r.requestID}, nil
}

// observeReplay counts and logs a replay: once, with the answer, even if the batch was rerun.
func (e *Engine[T]) observeReplay(j *job[T], r *keyRecord) {
	attributes := []any{"operation", j.Key.Operation, "key", j.Key.Key, "first_request_id", r.requestID, "request_id",
		j.RequestID}
	if !bytes.Equal(r.fingerprint, j.Key.Fingerprint) {
		e.Count(j.Tenant, j.Key.Operation, "mismatch")
		e.log.Warn("request key reused with other content", attributes...)
		return
	}
	e.Count(j.Tenant, j.Key.Operation, "replayed")
	e.metrics.replayAge.Observe(max(0, time.Since(r.createdAt).Seconds()))
	e.log.Info("request key replayed", attributes...)
}
