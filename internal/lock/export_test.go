package lock

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// WaitOnce takes a waiting call through all its steps: it inserts a queue entry, polls, renews, and deletes the
// entry.
func WaitOnce(t testing.TB, w *WaitQueue, k Key, c commit.Caller) {
	t.Helper()
	ctx := context.Background()
	p := AcquireParams{Name: k.Name, Holder: "waits"}
	ticket, err := w.enqueue(ctx, c, p)
	if err != nil || ticket == 0 {
		t.Fatal(ticket, err)
	}
	entry := w.register(callKey{Key: k}, ticket)
	defer w.unregister(entry)
	if _, err := w.pollOnce(ctx); err != nil {
		t.Fatal(err)
	}
	w.renewQueue(ctx, k, []int64{ticket})
	if w.isLost(entry) {
		t.Fatal("the queue entry is lost")
	}
	if err := w.leave(ctx, c, p, ticket); !isHeld(err) {
		t.Fatal(err)
	}
}

// PollOnce polls the queue of a lock as if a call waited there.
func PollOnce(t testing.TB, w *WaitQueue, k Key) {
	t.Helper()
	defer w.unregister(w.register(callKey{Key: k}, -1))
	if _, err := w.pollOnce(context.Background()); err != nil {
		t.Fatal(err)
	}
}
