package deliver

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// marker records an attempt in the database before the provider is asked: the state "sending" of a message that must
// not be sent twice, or the provider of any other message. Requests that arrive during one round trip share the next.
type marker struct {
	pool *Pool

	mu     sync.Mutex
	asked  []*marking
	closed bool
	some   *sync.Cond
}

// marking is a request to mark one message.
type marking struct {
	job      *job
	need     time.Duration
	provider string // empty: mark as sending
	answer   chan marked
}

// marked is the result of a marking.
type marked int

const (
	markDone    marked = iota
	markRefused        // another process has the message, or its lease ends too soon
	markFailed         // no answer from the database in time: the message may be marked, and is not sent
)

func newMarker(p *Pool) *marker {
	m := &marker{pool: p}
	m.some = sync.NewCond(&m.mu)
	return m
}

// mark marks one message. The message may only be sent if the result is markDone.
func (m *marker) mark(j *job, need time.Duration, provider string) marked {
	x := &marking{job: j, need: need, provider: printable(provider, 64), answer: make(chan marked, 1)}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return markFailed
	}
	m.asked = append(m.asked, x)
	m.some.Signal()
	m.mu.Unlock()
	return <-x.answer
}

// close ends run after all pending requests.
func (m *marker) close() {
	m.mu.Lock()
	m.closed = true
	m.some.Signal()
	m.mu.Unlock()
}

const maxMarked = 500

func (m *marker) run() {
	for {
		m.mu.Lock()
		for len(m.asked) == 0 && !m.closed {
			m.some.Wait()
		}
		round := m.asked[:min(len(m.asked), maxMarked)]
		m.asked = m.asked[len(round):]
		m.mu.Unlock()
		if len(round) == 0 {
			return
		}
		m.round(round)
	}
}

// round marks a batch, and retries while any of its messages could still be sent.
func (m *marker) round(round []*marking) {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		done, err := m.once(round)
		if err == nil {
			for i, x := range round {
				x.answer <- done[i]
			}
			return
		}
		round = slices.DeleteFunc(round, func(x *marking) bool {
			late := m.pool.sending.Err() != nil || !x.job.leaseCovers(x.need)
			if late {
				x.answer <- markFailed
			}
			return late
		})
		if len(round) == 0 {
			return
		}
		m.pool.Log.Warn("could not mark messages as being sent", "messages", len(round), "error", err)
		select {
		case <-m.pool.sending.Done():
		case <-time.After(pause):
		}
	}
}

func (m *marker) once(round []*marking) (answers []marked, err error) {
	slices.SortFunc(round, func(a, b *marking) int { return a.job.compare(b.job) }) // the global lock order
	answers = make([]marked, len(round))
	var arg db.AttemptMarkParams
	for i, x := range round {
		answers[i] = markRefused
		arg.MessageIds, arg.Tenants = append(arg.MessageIds, x.job.ID), append(arg.Tenants, x.job.Tenant)
		arg.Fences, arg.NeedUs = append(arg.Fences, x.job.Fence), append(arg.NeedUs, x.need.Microseconds())
		arg.Providers = append(arg.Providers, x.provider)
	}
	ctx, cancel := context.WithTimeout(m.pool.sending, m.pool.Lease/4)
	defer cancel()
	var done []int32
	_, err = m.pool.transact(pg.ForTenants(ctx, arg.Tenants...), func(d db.DBTX) (err error) {
		done, err = q.AttemptMark(ctx, d, arg)
		return err
	})
	for _, n := range done {
		answers[n-1] = markDone
	}
	return answers, err
}
