package work_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/work"
)

// machine drives one piece of work through two processes and keeps a model of its expected state. Time is
// counted in minutes of a clock that only the test advances; leases and lives are so long that real time does
// not matter.
type machine struct {
	engines []*flow.Engine
	pool    *pgxpool.Pool // as superuser
	key     string

	now      int
	there    bool
	content  string // "": unbound
	state    work.State
	fence    int64 // 0: never begun
	top      int64 // greatest fence ever issued
	attempt  int32
	lease    int // when the lease ends
	length   int // length of the lease
	end      int // when the life ends; -1: never
	life     int
	begun    int
	park     bool
	answer   string
	fences   []int64 // all fences ever issued
	machineT *rapid.T
}

func (m *machine) engine(t *rapid.T) *flow.Engine {
	return m.engines[rapid.IntRange(0, len(m.engines)-1).Draw(t, "engine")]
}

func (m *machine) expired() bool { return !m.there || m.end >= 0 && m.end <= m.now }

// counts is the effective state at the model's time.
func (m *machine) counts() work.State {
	switch {
	case m.state != work.Running || m.lease > m.now:
		return m.state
	case m.park:
		return work.Parked
	}
	return work.Lapsed
}

func minutes(n int) time.Duration { return time.Duration(n) * time.Minute }

// run executes a command and returns the name of its error.
func (m *machine) run(t *rapid.T, w flow.Submission) (answer any, existed bool, reason string) {
	out, err := m.engine(t).Do(context.Background(), w)
	if f := fault.Of(err); f != nil {
		return nil, false, f.Reason.Name
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Answer, out.Existed, ""
}

func (m *machine) extendTo() {
	m.lease = m.now + m.length
	if m.end = max(m.begun+m.life, m.lease); m.park {
		m.end = -1
	}
}

func (m *machine) begin(t *rapid.T) {
	content := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "content")
	length, life := rapid.SampledFrom([]int{10, 50}).Draw(t, "lease"), rapid.SampledFrom([]int{15, 300}).Draw(t, "life")
	park := rapid.Bool().Draw(t, "park")
	answer, _, reason := m.run(t, submission(&work.BeginCommand{Caller: caller,
		BeginParams: work.BeginParams{Scope: "s", Key: m.key,
			Fingerprint: []byte(content), Lease: minutes(length), Life: minutes(life), ParkLapsed: park}}))
	if !m.expired() && m.content != "" && m.content != content {
		if reason != "WORK_KEY_REUSED" {
			t.Fatalf("other content: %v %s", answer, reason)
		}
		return
	}
	begun, ok := answer.(work.Begun)
	if !ok {
		t.Fatalf("begin: %s", reason)
	}
	was := work.Free
	if !m.expired() {
		was = m.counts()
	} else {
		m.attempt = 0
	}
	if was != work.Free && was != work.Lapsed {
		if begun.Mine || begun.State != was || begun.Fence != m.fence {
			t.Fatalf("begin of %s work under %d: %+v", was, m.fence, begun)
		}
		return
	}
	if !begun.Mine || begun.Fence <= m.top || begun.Attempt != m.attempt+1 || begun.TakenOver != (was == work.Lapsed) {
		t.Fatalf("begin of %s work, attempt %d, greatest fence %d: %+v", was, m.attempt, m.top, begun)
	}
	m.there, m.content, m.state, m.fence, m.top, m.attempt, m.begun = true, content, work.Running, begun.Fence,
		begun.Fence, begun.Attempt, m.now
	m.length, m.life, m.park = length, life, park
	m.fences = append(m.fences, begun.Fence)
	m.extendTo()
}

// held is a random attempt, mostly the newest.
func (m *machine) held(t *rapid.T) work.Held {
	h := work.Held{Scope: "s", Key: m.key, Fence: 1}
	if n := len(m.fences); n > 0 {
		h.Fence = m.fences[max(0, n-1-rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "older"))]
	}
	return h
}

func (m *machine) holds(h work.Held) bool { return !m.expired() && h.Fence == m.fence }

func (m *machine) extend(t *rapid.T) {
	h := m.held(t)
	_, _, reason := m.run(t, submission(&work.ExtendCommand{Caller: caller, Held: h}))
	if ok := m.holds(h) && m.state == work.Running; (reason == "") != ok || !ok && reason != "FENCE_LOST" {
		t.Fatalf("extend %d of %s under %d: %s", h.Fence, m.state, m.fence, reason)
	} else if ok {
		m.extendTo()
	}
}

func (m *machine) settle(s work.State, answer string) {
	m.state, m.answer, m.end = s, answer, m.now+m.life
	if s == work.Parked {
		m.end = -1
	}
}

func (m *machine) complete(t *rapid.T) {
	h, body := m.held(t), rapid.SampledFrom([]string{"x", "y"}).Draw(t, "body")
	state := rapid.SampledFrom([]work.State{work.Done, work.Refused, work.Parked}).Draw(t, "outcome")
	c := complete(m.machineT, m.key, h.Fence, body)
	c.State = state
	_, existed, reason := m.run(t, submission(c))
	want, again := "", false
	switch same := m.state == state && m.answer == body; {
	case !m.holds(h) || m.state == work.Free:
		want = "FENCE_LOST"
	case same:
		again = true
	case m.state == work.Done || m.state == work.Refused:
		want = "ANSWER_DIFFERS"
	default:
		m.settle(state, body)
	}
	if reason != want || existed != again {
		t.Fatalf("complete %d as %s %s: %q, existed %v, wanted %q, %v", h.Fence, state, body, reason, existed, want,
			again)
	}
}

func (m *machine) abandon(t *rapid.T) {
	h, forget := m.held(t), rapid.Bool().Draw(t, "forget")
	_, existed, reason := m.run(t, submission(&work.AbandonCommand{Caller: caller, Held: h, Forget: forget}))
	want, again := "", false
	switch {
	case !m.holds(h) || m.state == work.Done || m.state == work.Refused:
		want = "FENCE_LOST"
	case m.state == work.Free && (m.content == "" || !forget):
		again = true
	default:
		m.settle(work.Free, "")
		if forget {
			m.content = ""
		}
	}
	if reason != want || existed != again {
		t.Fatalf("abandon %d: %q, existed %v, wanted %q, %v", h.Fence, reason, existed, want, again)
	}
}

func (m *machine) resolve(t *rapid.T) {
	h, free := m.held(t), rapid.Bool().Draw(t, "free")
	c := &work.ResolveCommand{Caller: caller, Held: h, State: work.Free}
	answer := ""
	if !free {
		c.State, c.Answer, answer = work.Done, complete(m.machineT, m.key, h.Fence, "x").Answer, "x"
	}
	_, existed, reason := m.run(t, submission(c))
	want, again := "", false
	switch {
	case m.expired():
		want = "WORK_NOT_FOUND"
	case h.Fence != m.fence:
		want = "FENCE_LOST"
	case m.state == c.State && (free || m.answer == answer):
		again = true
	case m.counts() != work.Parked && m.counts() != work.Lapsed:
		want = "WORK_NOT_PARKED"
	default:
		m.settle(c.State, answer)
	}
	if reason != want || existed != again {
		t.Fatalf("resolve %d to %s: %q, existed %v, wanted %q, %v", h.Fence, c.State, reason, existed, want, again)
	}
}

// wait advances the clock by moving all stored times into the past.
func (m *machine) wait(t *rapid.T) {
	n := rapid.SampledFrom([]int{3, 12, 60, 400}).Draw(t, "minutes")
	m.now += n
	if _, err := m.pool.Exec(context.Background(), `update
		work_records set lease_expires_at = lease_expires_at - $2::interval, begun_at = begun_at - $2::interval,
		created_at = created_at - $2::interval, settled_at = settled_at - $2::interval,
		expires_at = expires_at - $2::interval where key = $1`,
		m.key, minutes(n)); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) clean(t *rapid.T) {
	cleanAll(t, m.pool)
	if m.expired() {
		m.there = false
	}
}

// check compares the stored record with the model.
func (m *machine) check(t *rapid.T) {
	rec, err := work.NewReader(m.pool).Get(context.Background(), work.Key{Tenant: 1, Scope: "s", Name: m.key})
	if m.expired() {
		if !fault.Is(err, work.NotFound) {
			t.Fatalf("an expired record reads as %+v, %v", rec, err)
		}
		return
	}
	if err != nil || rec.State != m.counts() || rec.Fence != m.fence || rec.Attempt != m.attempt {
		t.Fatalf("%s work under %d reads as %+v, %v", m.counts(), m.fence, rec, err)
	}
	if m.answer != "" && m.state != work.Running {
		if body, err := rec.Answer.Body(); err != nil || string(body) != m.answer {
			t.Fatalf("the answer is %q, %v", body, err)
		}
	}
}

func TestWorkBehavesLikeItsModel(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	var engines []*flow.Engine
	for range 2 {
		pool, err := pg.Open(t.Context(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		e := flow.NewEngine(pool, t.Name(), nil, nil)
		t.Cleanup(func() { _ = e.Drain(context.Background()); pool.Close() })
		engines = append(engines, e)
	}
	var n atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{engines: engines, pool: super, key: fmt.Sprint("k", n.Add(1)), machineT: t}
		t.Repeat(map[string]func(*rapid.T){"begin": m.begin, "begin again": m.begin, "extend": m.extend,
			"complete": m.complete,
			"abandon":  m.abandon, "resolve": m.resolve, "wait": m.wait, "clean": m.clean, "": m.check})
	})
}

// cleanAll deletes expired work.
func cleanAll(t interface{ Fatal(...any) }, pool *pgxpool.Pool) {
	works, c := work.Works(), clean.Cleaner{Pool: pool, Metrics: clean.NewMetrics(nil)}
	if _, err := c.Clean(context.Background(), &works); err != nil {
		t.Fatal(err)
	}
}
