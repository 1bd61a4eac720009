package lock

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// WaitOnce does all that is done for somebody who waits: he takes a place, which is looked at and kept, and
// gives it up.
func WaitOnce(t testing.TB, w *WaitQueue, k Key, c commit.Caller) {
	t.Helper()
	ctx := context.Background()
	p := AcquireParams{Name: k.Name, Holder: "waits"}
	ticket, err := w.enqueue(ctx, c, p)
	if err != nil || ticket == 0 {
		t.Fatal(ticket, err)
	}
	place := w.enter(twin{Key: k}, ticket)
	defer w.exit(place)
	if _, err := w.lookOnce(ctx); err != nil {
		t.Fatal(err)
	}
	w.keepQueue(ctx, k, []int64{ticket})
	if w.isGone(place) {
		t.Fatal("the place is gone")
	}
	if err := w.leave(ctx, c, p, ticket); !isHeld(err) {
		t.Fatal(err)
	}
}

// LookOnce looks at the queue of a lock, as if somebody waited there.
func LookOnce(t testing.TB, w *WaitQueue, k Key) {
	t.Helper()
	defer w.exit(w.enter(twin{Key: k}, -1))
	if _, err := w.lookOnce(context.Background()); err != nil {
		t.Fatal(err)
	}
}
