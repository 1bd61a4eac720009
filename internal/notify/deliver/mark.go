package deliver

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
)

// marker writes down what is about to be asked: that a message which may not be sent twice is being sent, or which
// provider is asked for any other. What gathers while one round is on its way goes together in the next.
type marker struct {
	pool *Pool

	mu     sync.Mutex
	asked  []*marking
	closed bool
	some   *sync.Cond
}

// marking is one message to be marked.
type marking struct {
	job      *job
	need     time.Duration
	provider string // empty: it is being sent
	answer   chan marked
}

// marked is how a marking ended.
type marked int

const (
	markDone    marked = iota
	markRefused        // others have the message, or its lease ends too soon
	markFailed         // the database did not answer in time: it may be marked, and is not sent
)

func newMarker(p *Pool) *marker {
	m := &marker{pool: p}
	m.some = sync.NewCond(&m.mu)
	return m
}

// mark marks one message, which may be sent if the answer is markDone.
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

// close ends run when all are answered.
func (m *marker) close() {
	m.mu.Lock()
	m.closed = true
	m.some.Signal()
	m.mu.Unlock()
}

const mostMarked = 500

func (m *marker) run() {
	for {
		m.mu.Lock()
		for len(m.asked) == 0 && !m.closed {
			m.some.Wait()
		}
		round := m.asked[:min(len(m.asked), mostMarked)]
		m.asked = m.asked[len(round):]
		m.mu.Unlock()
		if len(round) == 0 {
			return
		}
		m.round(round)
	}
}

// round marks messages, for as long as one of them may still be sent afterwards.
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
			late := m.pool.sending.Err() != nil || !x.job.lasts(x.need)
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
	slices.SortFunc(round, func(a, b *marking) int { return a.job.compare(b.job) }) // as all who lock several
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
	_, err = m.pool.steered(ctx, func(d db.DBTX) (err error) {
		done, err = q.AttemptMark(ctx, d, arg)
		return err
	})
	for _, n := range done {
		answers[n-1] = markDone
	}
	return answers, err
}
