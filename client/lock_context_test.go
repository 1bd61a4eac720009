package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
)

// No timer fires here, as right after a process was resumed: callers see the end immediately.
func TestALockContextChecksTheClock(t *testing.T) {
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
			t.Fatalf("%s: the context ended immediately", what)
		}
		<-time.After(250 * time.Millisecond)
		if !ended(ctx) || !errors.Is(context.Cause(ctx), client.ReasonLockLost) {
			t.Errorf("%s: %v", what, context.Cause(ctx))
		}
	}
	late, extend := client.TimelessLockContext(context.Background(), 50*time.Millisecond)
	<-time.After(100 * time.Millisecond)
	if extend(time.Minute); late.Err() == nil {
		t.Error("the context was revived after its end")
	}
	ctx, extend := client.TimelessLockContext(context.Background(), 200*time.Millisecond)
	extend(time.Minute)
	<-time.After(250 * time.Millisecond)
	if ctx.Err() != nil {
		t.Errorf("the context ended although it was extended in time: %v", context.Cause(ctx))
	}
}
