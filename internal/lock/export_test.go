package lock

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// WaitOnce does all that is done for somebody who waits: he takes a place, which is looked at and kept, and
// gives it up.
func WaitOnce(t testing.TB, r *Room, k Key, c commit.Caller) {
	t.Helper()
	ctx := context.Background()
	p := AcquireParams{Name: k.Name, Holder: "waits"}
	ticket, err := r.enqueue(ctx, c, p)
	if err != nil || ticket == 0 {
		t.Fatal(ticket, err)
	}
	place := r.enter(twin{Key: k}, ticket)
	defer r.exit(place)
	if _, err := r.lookOnce(ctx); err != nil {
		t.Fatal(err)
	}
	r.keepQueue(ctx, k, []int64{ticket})
	if r.isGone(place) {
		t.Fatal("the place is gone")
	}
	if err := r.leave(ctx, c, p, ticket); !isHeld(err) {
		t.Fatal(err)
	}
}

// LookOnce looks at the queue of a lock, as if somebody waited there.
func LookOnce(t testing.TB, r *Room, k Key) {
	t.Helper()
	defer r.exit(r.enter(twin{Key: k}, -1))
	if _, err := r.lookOnce(context.Background()); err != nil {
		t.Fatal(err)
	}
}
