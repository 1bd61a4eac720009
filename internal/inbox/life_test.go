package inbox_test

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/inbox"
)

var (
	start  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	caller = commit.Caller{Tenant: 1, Principal: "worker", RequestID: "r1"}
	key    = inbox.Key{Tenant: 1, Group: "billing", ID: "m1"}
)

// paper is an in-memory book: rows without a database, and a clock.
type paper struct {
	book *inbox.Tx
	now  time.Time
	ids  int64
}

func newPaper() *paper {
	return &paper{book: inbox.NewTx(), now: start}
}

// at runs a command at a time after the start and describes the outcome in one line.
func (p *paper) at(after time.Duration, c commit.Command[*inbox.Tx]) string {
	p.now = start.Add(after)
	p.book.Start(commit.Times{}, nil) // as a batch of its own
	c.Need(p.book)
	p.book.Start(commit.Times{Now: p.now}, func() int64 { p.ids++; return p.ids })
	p.book.Mark()
	answer, err := c.Apply(p.book)
	if err != nil {
		p.book.Undo()
		f := fault.Of(err)
		return fmt.Sprint(f.Reason.Name, " ", f.RetryAfter)
	}
	again := ""
	if r, ok := answer.(commit.Repeat); ok {
		answer, again = r.First, " again"
	}
	switch a := answer.(type) {
	case inbox.Begun:
		verdict := map[inbox.Verdict]string{inbox.Run: "run", inbox.Done: "done", inbox.BusyUntil: "busy",
			inbox.Buried: "dead", inbox.LaterThan: "later"}[a.Verdict]
		if !a.Until.IsZero() {
			verdict += fmt.Sprint(" ", a.Until.Sub(p.now))
		}
		return fmt.Sprintf("%s, attempt %d", verdict, a.Message.Attempts)
	case inbox.Message:
		return fmt.Sprintf("%s, attempt %d%s", a.State, a.Attempts, again)
	case inbox.Requeued:
		return fmt.Sprintf("%d requeued", a.Count)
	}
	return fmt.Sprintf("%T", answer)
}

// row is the current message in the book.
func (p *paper) row() inbox.Message { return p.book.Want(key).Value }

func delivery(change ...func(*inbox.Delivery)) inbox.Delivery {
	d := inbox.Delivery{Topic: "orders", Content: []byte("x"), Hash: sum("x"), ContentLife: time.Hour, MaxAttempts: 3,
		Backoff: 8 * time.Second, MaxBackoff: 20 * time.Second}
	for _, f := range change {
		f(&d)
	}
	return d
}

func begin(change ...func(*inbox.Delivery)) *inbox.BeginCommand {
	return &inbox.BeginCommand{Caller: caller, Key: key, Delivery: delivery(change...), Holder: "me",
		Lease: 30 * time.Second}
}

func receive(change ...func(*inbox.Delivery)) *inbox.ReceiveCommand {
	return &inbox.ReceiveCommand{Caller: caller, Key: key, Delivery: delivery(change...)}
}

func (p *paper) complete(fence int64) *inbox.CompleteCommand {
	return &inbox.CompleteCommand{Caller: caller, Key: key, Fence: fence}
}

func (p *paper) fail(fence int64, permanent bool) *inbox.FailCommand {
	return &inbox.FailCommand{Caller: caller, Key: key, Fence: fence, FailureText: "no", Permanent: permanent,
		Delivery: delivery()}
}

func (p *paper) want(t *testing.T, after time.Duration, c commit.Command[*inbox.Tx], want string) {
	t.Helper()
	if got := p.at(after, c); got != want {
		t.Errorf("%T after %v: %q, not %q", c, after, got, want)
	}
}

func TestAMessageHasOneHolderAtATime(t *testing.T) {
	p := newPaper()
	p.want(t, 0, begin(), "run, attempt 1")
	fence := p.row().Fence
	p.want(t, time.Second, begin(), "busy 29s, attempt 1")
	p.want(t, time.Second, receive(), "MESSAGE_BUSY 29s")
	p.want(t, time.Second, p.fail(0, false), "MESSAGE_BUSY 29s")
	p.want(t, time.Second, p.complete(fence+1), "MESSAGE_LEASE_LOST 0s")
	p.want(t, 20*time.Second, &inbox.ExtendCommand{Caller: caller, Key: key, Fence: fence, Lease: 30 * time.Second},
		"processing, attempt 1")
	p.want(t, 49*time.Second, begin(), "busy 1s, attempt 1")
	p.want(t, 50*time.Second, begin(), "run, attempt 2") // the lease expired
	for _, c := range []commit.Command[*inbox.Tx]{p.complete(fence), p.fail(fence, true),
		&inbox.ExtendCommand{Caller: caller, Key: key, Fence: fence, Lease: time.Hour}} {
		p.want(t, 51*time.Second, c, "MESSAGE_LEASE_LOST 0s")
	}
	second := p.row().Fence
	if second <= fence {
		t.Errorf("fences %d, %d", fence, second)
	}
	// The lease expired, but no other consumer began the message: the completion counts.
	p.want(t, time.Hour, p.complete(second), "succeeded, attempt 2")
	p.want(t, time.Hour, p.complete(second), "succeeded, attempt 2 again")
	p.want(t, time.Hour, p.fail(second, false), "MESSAGE_LEASE_LOST 0s")
	p.want(t, 1000*time.Hour, begin(), "done, attempt 2")
	p.want(t, 1000*time.Hour, receive(), "MESSAGE_DUPLICATE 0s")
	p.want(t, 1000*time.Hour, p.fail(0, true), "succeeded, attempt 2 again")
}

func TestBackoffDoublesUntilTheMessageIsDead(t *testing.T) {
	p := newPaper()
	p.want(t, 0, begin(), "run, attempt 1")
	fence := p.row().Fence
	p.want(t, 0, p.fail(fence, false), "failed, attempt 1")
	p.want(t, 0, p.fail(fence, false), "failed, attempt 1 again")
	p.want(t, 0, p.complete(fence), "MESSAGE_LEASE_LOST 0s")
	first := p.row().RetryAt.Sub(start)
	if first < 4*time.Second || first > 8*time.Second {
		t.Errorf("backoff %v", first)
	}
	p.want(t, first-time.Second, begin(), "later 1s, attempt 1")
	p.want(t, first-time.Second, receive(), "MESSAGE_LATER 1s")
	p.want(t, first-time.Second, p.fail(0, false), "failed, attempt 1 again") // two consumers reported one failure
	p.want(t, first, p.fail(0, false), "failed, attempt 2")
	second := p.row().RetryAt.Sub(p.now)
	if second < 8*time.Second || second > 16*time.Second {
		t.Errorf("second backoff %v", second)
	}
	p.want(t, time.Minute, begin(), "run, attempt 3")
	p.want(t, time.Minute, p.fail(p.row().Fence, false), "dead, attempt 3")
	p.want(t, time.Hour, begin(), "dead, attempt 3")
	p.want(t, time.Hour, receive(), "MESSAGE_DEAD 0s")
	p.want(t, time.Hour, p.fail(0, false), "dead, attempt 3 again")
	p.want(t, time.Hour, &inbox.RequeueCommand{Caller: caller, Key: key}, "1 requeued")
	p.want(t, time.Hour, &inbox.RequeueCommand{Caller: caller, Key: key}, "MESSAGE_NOT_DEAD 0s")
	p.want(t, time.Hour, begin(), "run, attempt 1")
	p.want(t, time.Hour, p.fail(p.row().Fence, true), "dead, attempt 1")
}

func TestTooManyExpiredLeasesMakeAMessageDead(t *testing.T) {
	p := newPaper()
	for i := range 3 {
		p.want(t, time.Duration(i)*time.Minute, begin(), fmt.Sprintf("run, attempt %d", i+1))
	}
	fence := p.row().Fence
	p.want(t, 3*time.Minute, begin(), "dead, attempt 3")
	p.want(t, 3*time.Minute, p.complete(fence), "MESSAGE_LEASE_LOST 0s")
	// Receive takes effect in one commit, so an expired attempt had no effect here: the message is tried again.
	q := newPaper()
	for i := range 3 {
		q.want(t, time.Duration(i)*time.Minute, begin(), fmt.Sprintf("run, attempt %d", i+1))
	}
	q.want(t, 3*time.Minute, receive(), "succeeded, attempt 4")
}

func TestAnotherContentIsNotTheSameMessage(t *testing.T) {
	hash := func(b byte) func(*inbox.Delivery) {
		return func(d *inbox.Delivery) { d.Hash = slices.Repeat([]byte{b}, 32) }
	}
	p := newPaper()
	untold := func(d *inbox.Delivery) { d.Hash = nil }
	p.want(t, 0, begin(untold), "run, attempt 1")
	p.want(t, time.Minute, begin(hash(1)), "run, attempt 2")
	p.want(t, 2*time.Minute, begin(hash(2)), "MESSAGE_DIFFERS 0s")
	p.want(t, 2*time.Minute, receive(hash(2)), "MESSAGE_DIFFERS 0s")
	p.want(t, 2*time.Minute, &inbox.FailCommand{Caller: caller, Key: key, Delivery: delivery(hash(2))},
		"MESSAGE_DIFFERS 0s")
	p.want(t, 2*time.Minute, begin(untold), "run, attempt 3") // without a hash the content is not compared
	p.want(t, 3*time.Minute, receive(hash(1)), "succeeded, attempt 4")
	p.want(t, 3*time.Minute, receive(hash(2)), "MESSAGE_DIFFERS 0s")
}

func TestAnExpiredMessageCountsAsNeverSeenButKeepsItsFence(t *testing.T) {
	keep := func(d *inbox.Delivery) { d.Life = time.Hour }
	p := newPaper()
	p.want(t, 0, begin(keep), "run, attempt 1")
	old := p.row()
	p.want(t, 0, p.complete(old.Fence), "succeeded, attempt 1")
	p.want(t, time.Hour-time.Second, begin(keep), "done, attempt 1")
	p.want(t, time.Hour, p.complete(old.Fence), "MESSAGE_NOT_FOUND 0s")
	p.want(t, time.Hour, begin(keep), "run, attempt 1")
	if m := p.row(); m.Fence <= old.Fence || m.RowID == old.RowID || !m.ReceivedAt.Equal(p.now) ||
		!m.ExpiresAt.IsZero() {
		t.Errorf("%+v\n%+v", old, m)
	}
	// Even after the cleaner deleted the row, the new fence is greater, because fences derive from the time.
	q := newPaper()
	q.want(t, 2*time.Hour, begin(keep), "run, attempt 1")
	if q.row().Fence <= old.Fence {
		t.Errorf("fences %d, %d", old.Fence, q.row().Fence)
	}
}

func TestPartsAreProcessedIndependently(t *testing.T) {
	p := newPaper()
	p.want(t, 0, receive(), "succeeded, attempt 1")
	other := receive()
	other.Key.Part = "order:456"
	p.want(t, 0, other, "succeeded, attempt 1")
	p.want(t, 0, other, "MESSAGE_DUPLICATE 0s")
}

// Backoffs are deterministic and differ between messages.
func TestBackoffIsDeterministicAndSpread(t *testing.T) {
	seen := map[time.Duration]int{}
	for i := range 100 {
		k := inbox.Key{Tenant: 1, Group: "billing", ID: fmt.Sprint("m", i)}
		var waits [2]time.Duration
		for n := range waits {
			p := newPaper()
			c := p.fail(0, false)
			c.Key = k
			p.at(0, c)
			waits[n] = p.book.Want(k).Value.RetryAt.Sub(p.now)
		}
		if waits[0] != waits[1] || waits[0] < 4*time.Second || waits[0] > 8*time.Second {
			t.Errorf("%v", waits)
		}
		seen[waits[0]/time.Second]++
	}
	if len(seen) < 4 || seen[4] > 50 || seen[7] > 50 {
		t.Errorf("not spread: %v", seen)
	}
}

func TestUndoRevertsEverything(t *testing.T) {
	p := newPaper()
	p.want(t, 0, begin(), "run, attempt 1")
	before := p.row()
	p.book.Mark()
	c := p.complete(before.Fence)
	c.Need(p.book)
	if _, err := c.Apply(p.book); err != nil {
		t.Fatal(err)
	}
	p.book.Undo()
	if got := p.row(); got.State != inbox.Processing || got.Fence != before.Fence || !got.FinishedAt.IsZero() {
		t.Errorf("%+v", got)
	}
}

func sum(s string) []byte {
	h := sha256.Sum256([]byte(s))
	return h[:]
}
