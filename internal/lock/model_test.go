package lock

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// world compares the commands with a simple model of one lock. The rows stay in memory from one batch to the
// next.
type world struct {
	book *Tx
	now  time.Time
	next int64 // of the sequence

	// The model.
	holder string // empty: free
	fence  int64
	holds  int
	lease  time.Duration
	ends   time.Time
	queue  []modelPlace
	freed  int64 // fence of the last release
	fences []int64
}

type modelPlace struct {
	ticket int64
	alive  time.Time
}

func (w *world) held() bool { return w.holder != "" && w.ends.After(w.now) }

func (w *world) live() (live []modelPlace) {
	for _, p := range w.queue {
		if p.alive.After(w.now) {
			live = append(live, p)
		}
	}
	return live
}

func (w *world) ahead(ticket int64) (n int) {
	for _, p := range w.live() {
		if ticket == 0 || p.ticket < ticket {
			n++
		}
	}
	return n
}

// apply runs a command as a batch of its own. Some runs are undone, like a command in an Execute whose sibling
// is refused; took reports that the run was kept.
func (w *world) apply(t *rapid.T, c commit.Command[*Tx]) (answer any, err error, took bool) {
	c.Need(w.book)
	for len(w.book.drawn) < int(w.book.draws) {
		w.next++
		w.book.drawn = append(w.book.drawn, w.next)
	}
	w.book.Start(commit.Times{Now: w.now}, nil)
	w.book.Mark()
	answer, err = c.Apply(w.book)
	w.book.draws, w.book.drawn = 0, nil
	if err != nil || rapid.IntRange(0, 9).Draw(t, "taken back") == 0 {
		w.book.Undo()
		return answer, err, false
	}
	return answer, nil, true
}

func (w *world) ticket(t *rapid.T) int64 {
	tickets := []int64{0}
	for _, p := range w.queue {
		tickets = append(tickets, p.ticket)
	}
	return rapid.SampledFrom(tickets).Draw(t, "ticket")
}

func (w *world) anyFence(t *rapid.T) int64 {
	return rapid.SampledFrom(append([]int64{1 << 40}, w.fences...)).Draw(t, "fence")
}

var modelCaller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

func (w *world) acquire(t *rapid.T) {
	c := &AcquireCommand{Caller: modelCaller, Ticket: w.ticket(t), AcquireParams: AcquireParams{Name: "a",
		Holder:    rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "holder"),
		Reentrant: rapid.Bool().Draw(t, "reentrant"),
		Lease:     time.Duration(rapid.IntRange(1, 10).Draw(t, "lease")) * time.Second}}
	answer, err, took := w.apply(t, c)
	live := w.live()
	switch {
	case w.held() && c.Reentrant && w.holder == c.Holder:
		if err != nil || answer.(Acquired).Fence != w.fence || answer.(Acquired).Holds != w.holds+1 {
			t.Fatalf("reacquired: %+v %v", answer, err)
		}
		if took {
			w.holds, w.lease = w.holds+1, max(w.lease, c.Lease)
			w.ends = w.now.Add(w.lease)
		}
	case w.held() || len(live) > 0 && live[0].ticket != c.Ticket:
		f := fault.Of(err)
		if f == nil || f.Reason != Held || f.Metadata["position"] != fmt.Sprint(w.ahead(c.Ticket)+1) ||
			w.held() != (f.Metadata["holder"] == w.holder && w.holder != "") {
			t.Fatalf("held by %q, %d before: %v %v", w.holder, w.ahead(c.Ticket), answer, err)
		}
	default:
		if err != nil {
			t.Fatal(err)
		}
		a := answer.(Acquired)
		if len(w.fences) > 0 && a.Fence <= slices.Max(w.fences) || a.Holds != 1 || a.Holder != c.Holder ||
			a.Lapsed != (w.holder != "") {
			t.Fatalf("%+v after %v", a, w.fences)
		}
		if took {
			w.holder, w.fence, w.holds, w.lease, w.ends, w.freed = c.Holder, a.Fence, 1, c.Lease, w.now.Add(c.Lease), 0
			w.fences = append(w.fences, a.Fence)
			if len(live) > 0 {
				w.drop(c.Ticket)
			}
		}
	}
}

func (w *world) drop(ticket int64) {
	w.queue = slices.DeleteFunc(w.queue, func(p modelPlace) bool { return p.ticket == ticket })
}

func (w *world) enqueue(t *rapid.T) {
	answer, err, took := w.apply(t, &enqueueCommand{Caller: modelCaller, Key: Key{1, "a"}, holder: "w"})
	if err != nil {
		t.Fatal(err)
	}
	ticket := answer.(int64)
	if wants := w.held() || len(w.live()) > 0; wants != (ticket != 0) {
		t.Fatalf("ticket %d, held %v, %d wait", ticket, w.held(), len(w.live()))
	}
	if ticket != 0 && len(w.queue) > 0 && ticket <= w.queue[len(w.queue)-1].ticket {
		t.Fatalf("ticket %d is not the last of %v", ticket, w.queue)
	}
	if took && ticket != 0 {
		w.queue = append(w.queue, modelPlace{ticket, w.now.Add(waiterTTL)})
	}
}

func (w *world) keep(t *rapid.T) {
	ticket := w.ticket(t)
	answer, err, took := w.apply(t, &renewWaitersCommand{Key: Key{1, "a"}, tickets: []int64{ticket}})
	alive := slices.ContainsFunc(w.live(), func(p modelPlace) bool { return p.ticket == ticket })
	if err != nil || alive != (len(answer.([]int64)) == 0) {
		t.Fatalf("alive %v: %v %v", alive, answer, err)
	}
	for i := range w.queue {
		if took && alive && w.queue[i].ticket == ticket {
			w.queue[i].alive = w.now.Add(waiterTTL)
		}
	}
}

func (w *world) leave(t *rapid.T) {
	ticket := w.ticket(t)
	answer, err, took := w.apply(t, &leaveCommand{AcquireParams: AcquireParams{Name: "a"}, Key: Key{1, "a"},
		ticket: ticket})
	if err != nil || fault.Of(answer.(leaveResult).held).Metadata["position"] != fmt.Sprint(w.ahead(ticket)+1) {
		t.Fatal(answer, err)
	}
	if !took {
		return
	}
	w.drop(ticket)
	w.turn(t, answer.(leaveResult).next)
}

// turn checks that the ticket is the first live waiter's, when the lock is free.
func (w *world) turn(t *rapid.T, ticket int64) {
	want := int64(0)
	if live := w.live(); len(live) > 0 && !w.held() {
		want = live[0].ticket
	}
	if ticket != want {
		t.Fatalf("next ticket is %d, got %d", want, ticket)
	}
}

func (w *world) renew(t *rapid.T) {
	c := &RenewCommand{Caller: modelCaller, Name: "a", Fence: w.anyFence(t),
		Lease: time.Duration(rapid.IntRange(0, 5).Draw(t, "lease")) * time.Second}
	answer, err, took := w.apply(t, c)
	if !w.held() || c.Fence != w.fence {
		if !fault.Is(err, Lost) {
			t.Fatalf("held %v under %d, renewed under %d: %v", w.held(), w.fence, c.Fence, err)
		}
		return
	}
	lease := c.Lease
	if lease == 0 {
		lease = w.lease
	}
	if err != nil || !answer.(Lock).ExpiresAt.Equal(w.now.Add(lease)) {
		t.Fatal(answer, err)
	}
	if took {
		w.lease, w.ends = lease, w.now.Add(lease)
	}
}

func (w *world) release(t *rapid.T) {
	c := &ReleaseCommand{Caller: modelCaller, Name: "a", Fence: w.anyFence(t)}
	answer, err, took := w.apply(t, c)
	if r, again := answer.(commit.Repeat); again != (c.Fence == w.freed) || again && r.First.(Released).Fence != 0 {
		t.Fatalf("released %d before, now %d: %v", w.freed, c.Fence, answer)
	} else if again {
		return
	}
	if !w.held() || c.Fence != w.fence {
		if !fault.Is(err, Lost) {
			t.Fatalf("held %v under %d, released under %d: %v", w.held(), w.fence, c.Fence, err)
		}
		return
	}
	if err != nil || answer.(Released).Holds != w.holds-1 {
		t.Fatal(answer, err)
	}
	if !took {
		return
	}
	if w.holds--; w.holds == 0 {
		w.holder, w.freed = "", c.Fence
	}
	w.turn(t, answer.(Released).Next)
}

func TestLocksBehaveAsTheirModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{book: NewTx(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": w.acquire, "enqueue": w.enqueue, "keep": w.keep, "leave": w.leave, "renew": w.renew,
			"release": w.release,
			"time": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 4000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				l := w.book.locks[Key{1, "a"}]
				if l == nil {
					return
				}
				w.book.Start(commit.Times{Now: w.now}, nil)
				if w.book.held(l) != w.held() || w.held() && l.Value.Fence != w.fence {
					t.Fatal(errors.New("the lock differs from the model"))
				}
			},
		})
	})
}
