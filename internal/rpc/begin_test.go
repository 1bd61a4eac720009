package rpc_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Policies, submit tokens and claims apply to the first Begin with a key only: a replay has passed them before.
func TestReplayOfBeginNeedsNoSecondToken(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	super := pgtest.Pool(t, c.DB.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	form := c.plain()
	for _, operation := range []string{"idempotency.begin", "inbox.begin"} {
		if err := access.Administer(super).PutPolicy(t.Context(), tenant,
			access.Policy{Operation: operation, KeyRequired: true}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 20*time.Second, "a Begin without key is refused", func() bool {
		a := c.call(connectJSON, "Idempotency.Begin", &idempotencyv1.BeginRequest{Scope: "s", Key: "none"})
		return a.Code != "" && a.Reason(t) == "IDEMPOTENCY_KEY_MISSING"
	})
	for name, headers := range map[string][]string{
		"plain": nil, "token": {tokenHeader, form},
		"claim": {"Claim-Key", `"page"; scope=g; owner="ann"; life=600; first-only`},
	} {
		work := &idempotencyv1.BeginRequest{Scope: "s", Key: name}
		held := c.run(work, append([]string{"Idempotency-Key", "w-" + name}, headers...)...)
		a := c.call(connectJSON, "Idempotency.Begin", work,
			append([]string{"Idempotency-Key", "w-" + name}, headers...)...)
		a.wants(t, name+", work again", "")
		if res := new(idempotencyv1.BeginResponse); a.Code == "" {
			if connectJSON.Decode(t, a.Raw, res); !a.Replayed() || res.GetRun().GetFence() != held.GetFence() {
				t.Errorf("%s: work again: %v", name, res)
			}
		}
	}
}

// A Begin of work that another caller holds uses neither its token nor its claim, even while it waits.
func TestWaitingForWorkSpendsNoTokenAndCountsNoClaim(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	fence := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "k"}).GetFence()
	form := c.plain()
	guards := []string{tokenHeader, form, "Claim-Key", `"page"; scope=g; owner="ann"; life=600; first-only`}
	work := &idempotencyv1.BeginRequest{Scope: "s", Key: "k"}
	held := c.call(connectJSON, "Idempotency.Begin", work, guards...)
	held.wants(t, "held by another", "WORK_RUNNING")
	work.Wait = durationpb.New(20 * time.Second)
	told, start := make(chan answer, 1), c.now()
	go func() { told <- c.call(connectJSON, "Idempotency.Begin", work, guards...) }()
	c.waited(start)
	c.well(t, "Idempotency.Abandon", &idempotencyv1.AbandonRequest{Scope: "s", Key: "k", Fence: fence})
	a := <-told
	a.wants(t, "after a wait", "")
	res := new(idempotencyv1.BeginResponse)
	if a.Code == "" {
		connectJSON.Decode(t, a.Raw, res)
	}
	if res.GetRun().GetFence() <= fence || a.Header.Get("Claim-Count") != "1" {
		t.Errorf("after a wait: %v, counted %q", res, a.Header.Get("Claim-Count"))
	}
	c.complete("s", "k", res.GetRun().GetFence(), done, "it")
	c.call(connectJSON, "Idempotency.Begin", work, tokenHeader, form).wants(t, "the form again", "TOKEN_SPENT")
}

func (c *caller) well(t *testing.T, name string, m proto.Message) {
	t.Helper()
	c.call(connectJSON, name, m).wants(t, name, "")
}

func TestBeginOfABusyMessageSpendsNoToken(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	r := &inboxv1.BeginRequest{Key: message("held")}
	fence := ok(c, "Inbox.Begin", r, new(inboxv1.BeginResponse)).GetFence()
	form := c.plain()
	c.call(connectJSON, "Inbox.Begin", r, tokenHeader, form).wants(t, "held by another", "MESSAGE_BUSY")
	c.well(t, "Inbox.Fail", &inboxv1.FailRequest{Key: message("held"), Fence: fence})
	c.call(connectJSON, "Inbox.Begin", r, tokenHeader, form).wants(t, "it failed just now", "MESSAGE_LATER")
	c.due("held")
	c.call(connectJSON, "Inbox.Begin", r, tokenHeader, form).wants(t, "free", "")
	c.call(connectJSON, "Inbox.Begin", r, tokenHeader, form).wants(t, "the form again", "TOKEN_SPENT")
}

// Only one consumer at a time processes a message, regardless of request keys: an expired lease is not replayed.
func TestInboxBeginIsReplayedWhileItsLeaseHolds(t *testing.T) {
	t.Parallel()
	c := newCaller(t)
	r := &inboxv1.BeginRequest{Key: message("m"), Delivery: deliveryOf("x"), Lease: durationpb.New(time.Hour)}
	begin := func() (*inboxv1.BeginResponse, answer) {
		res := new(inboxv1.BeginResponse)
		a := c.call(connectProto, "Inbox.Begin", r, "Idempotency-Key", "m")
		if a.wants(t, "begin", ""); a.Code == "" {
			connectProto.Decode(t, a.Raw, res)
		}
		return res, a
	}
	first, _ := begin()
	if again, a := begin(); !a.Replayed() || !proto.Equal(again, first) {
		t.Errorf("repeated call: replayed %v, %v", a.Replayed(), again)
	}
	if _, err := c.Pool.Exec(t.Context(),
		"update inbox_messages set lease_expires_at = now() - interval '1 minute' where message_id = 'm'"); err != nil {
		t.Fatal(err)
	}
	next, a := begin()
	if a.Replayed() || next.GetVerdict() != inboxv1.Verdict_VERDICT_RUN || next.GetFence() <= first.GetFence() {
		t.Errorf("after the lease expired: replayed %v, %v", a.Replayed(), next)
	}
	if busy, _ := begin(); busy.GetVerdict() != inboxv1.Verdict_VERDICT_BUSY {
		t.Errorf("with the key of a lapsed lease, while another call holds the message: %v", busy)
	}
	c.well(t, "Inbox.Complete", &inboxv1.CompleteRequest{Key: message("m"), Fence: next.GetFence()})
	if over, _ := begin(); over.GetVerdict() != inboxv1.Verdict_VERDICT_DONE {
		t.Errorf("delivered again after completion: %v", over)
	}
}
