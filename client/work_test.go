package client_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
)

// A method marked IDEMPOTENT has no key and is retried anyway. Begin has a key, by which a lost answer is
// found.
func TestIdempotentCallsGoWithoutAKeyAndAreRetried(t *testing.T) {
	t.Parallel()
	baseURL := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		sent, lossy := &rpcs{}, newLosing(0)
		c := newClient(t, baseURL, append(opts, sent.option(), client.WithHTTPClient(lossy),
			client.WithRetry(3, time.Millisecond, time.Millisecond))...)
		key := client.NewKey()
		lossy.lose.Store(1)
		begun, err := c.Idempotency.Begin(context.Background(), &idempotencyv1.BeginRequest{Scope: "s", Key: key})
		if err != nil || begun.GetRun() == nil {
			t.Fatalf("begin: %v, %v", begun, err)
		}
		lossy.lose.Store(1)
		done, err := c.Idempotency.Complete(context.Background(),
			&idempotencyv1.CompleteRequest{Scope: "s", Key: key, Fence: begun.GetRun().GetFence(),
				Outcome: idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE})
		if err != nil || !done.GetExisted() {
			t.Errorf("complete: %v, %v", done, err)
		}
		if keys := sent.of(idempotencyv1connect.IdempotencyServiceBeginProcedure); len(keys) != 2 || keys[0] == "" ||
			keys[0] != keys[1] {
			t.Errorf("begin went with %q", keys)
		}
		if keys := sent.of(idempotencyv1connect.IdempotencyServiceCompleteProcedure); len(keys) != 2 || keys[0] != "" {
			t.Errorf("complete went with %q", keys)
		}
	})
}
