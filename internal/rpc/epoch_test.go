package rpc_test

import (
	"testing"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// A failover or a restore may lose rows and set sequences back. The holder of a lost row must not pass for the holder
// of a new one, and new events of the audit log must not reuse the numbers of lost ones.
func TestFencesOfLostRowsAreNotGivenOutAgain(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	begin := &idempotencyv1.BeginRequest{Scope: "s", Key: "k"}
	lostWork, lostLock := c.run(begin).GetFence(), c.acquire("a").GetFence()
	lostEvents := c.Count("select coalesce(max(event_id), 0) from audit_events")
	for _, s := range []string{"delete from work_records", "delete from lock_locks",
		"select setval('work_fence_seq', 1, false)", "select setval('lock_fence_seq', 1, false)",
		"select setval('audit_event_seq', 1, false)",
		"alter table commit_epochs disable trigger all", "update commit_epochs set history = 'the cluster before'",
		"alter table commit_epochs enable trigger all"} {
		if _, err := c.Pool.Exec(t.Context(), s); err != nil {
			t.Fatal(s, err)
		}
	}
	c.acquire("b") // this server still has a block of batch numbers, so its batch does not record the new epoch
	two := c.second()
	const epoch = 1 << 34
	if work, lock := two.run(begin).GetFence(), two.acquire("a").GetFence(); work-lostWork < epoch/2 ||
		lock-lostLock < epoch/2 {
		t.Errorf("after the fences %d of work and %d of a lock: %d and %d", lostWork, lostLock, work, lock)
	}
	late := completion("s", "k", lostWork, done, "of the lost holder")
	if a := c.call(connectJSON, "Idempotency.Complete", late); a.Reason(t) != "FENCE_LOST" {
		t.Errorf("the lost holder completes: %s %s", a.Code, a.Message)
	}
	two.Key("mine", "clerk", access.Read) // an event of administration
	if n := c.Count("select max(event_id) from audit_events"); n-lostEvents < epoch/2 {
		t.Errorf("after event %d of the audit log: %d", lostEvents, n)
	}
}
