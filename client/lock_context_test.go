package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// No timer fires here, as in the first moment after a process was stopped: whoever asks sees the end.
func TestALockContextLooksAtTheClock(t *testing.T) {
	t.Parallel()
	for what, ended := range map[string]func(ctx context.Context) bool{
		"Err": func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
	} {
		ctx, _ := client.TimelessLockContext(context.Background(), 200*time.Millisecond)
		if ended(ctx) {
			t.Fatalf("%s: it has ended at once", what)
		}
		<-time.After(250 * time.Millisecond)
		if !ended(ctx) || !errors.Is(context.Cause(ctx), client.ReasonLockLost) {
			t.Errorf("%s: %v", what, context.Cause(ctx))
		}
	}
	late, extend := client.TimelessLockContext(context.Background(), 50*time.Millisecond)
	<-time.After(100 * time.Millisecond)
	if extend(time.Minute); late.Err() == nil {
		t.Error("it was extended after its end, and began again")
	}
	ctx, extend := client.TimelessLockContext(context.Background(), 200*time.Millisecond)
	extend(time.Minute)
	<-time.After(250 * time.Millisecond)
	if ctx.Err() != nil {
		t.Errorf("it was extended in time, and has ended: %v", context.Cause(ctx))
	}
}
