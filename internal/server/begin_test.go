package server_test

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

// What a tenant demands, and what stands before a Begin, is asked for once: a retry with the same key has
// shown it before.
func TestARightToRunIsGivenAgainWithoutASecondTokenOrClaim(t *testing.T) {
	t.Parallel()
	c := boss(t)
	super := pgtest.Pool(t, c.db.SuperDSN)
	tenant, err := access.Tenant(t.Context(), super, "mine")
	if err != nil {
		t.Fatal(err)
	}
	form := c.plain()
	for _, operation := range []string{"work.begin", "inbox.begin"} {
		if err := access.SetPolicy(t.Context(), super, tenant,
			access.Policy{Operation: operation, KeyRequired: true}); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, 20*time.Second, "a Begin without key is refused", func() bool {
		a := c.call(connectJSON, "Idempotency.Begin", &idempotencyv1.BeginRequest{Scope: "s", Key: "none"})
		return a.code != "" && a.reason(t) == "IDEMPOTENCY_KEY_MISSING"
	})
	for name, headers := range map[string][]string{
		"plain": nil, "token": {tokenHeader, form}, "claim": {"Claim-Key", `"page"; scope=g; owner="ann"; life=600; first-only`},
	} {
		work := &idempotencyv1.BeginRequest{Scope: "s", Key: name}
		held := c.run(work, append([]string{"Idempotency-Key", "w-" + name}, headers...)...)
		a := c.call(connectJSON, "Idempotency.Begin", work,
			append([]string{"Idempotency-Key", "w-" + name}, headers...)...)
		a.wants(t, name+", work again", "")
		if res := new(idempotencyv1.BeginResponse); a.code == "" {
			if connectJSON.decode(t, a.raw, res); !a.replayed() || res.GetRun().GetFence() != held.GetFence() {
				t.Errorf("%s: work again: %v", name, res)
			}
		}
	}
}

// Whoever finds the work held has done nothing: token and claim are his still, also while he waits.
func TestWaitingForWorkSpendsNoTokenAndCountsNoClaim(t *testing.T) {
	t.Parallel()
	c := boss(t)
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
	if a.code == "" {
		connectJSON.decode(t, a.raw, res)
	}
	if res.GetRun().GetFence() <= fence || a.header.Get("Claim-Count") != "1" {
		t.Errorf("after a wait: %v, counted %q", res, a.header.Get("Claim-Count"))
	}
	c.complete("s", "k", res.GetRun().GetFence(), done, "it")
	c.call(connectJSON, "Idempotency.Begin", work, tokenHeader, form).wants(t, "the form again", "TOKEN_SPENT")
}

func (c *caller) well(t *testing.T, name string, m proto.Message) {
	t.Helper()
	c.call(connectJSON, name, m).wants(t, name, "")
}

func TestAMessageThatIsHeldSpendsNoToken(t *testing.T) {
	t.Parallel()
	c := boss(t)
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

// A message is worked on by one at a time, whatever key its consumers send: a right to run that is over is
// not given again.
func TestARightToWorkOnAMessageIsGivenAgainAsLongAsItHolds(t *testing.T) {
	t.Parallel()
	c := boss(t)
	r := &inboxv1.BeginRequest{Key: message("m"), Delivery: saying("x"), Lease: durationpb.New(time.Hour)}
	begin := func() (*inboxv1.BeginResponse, answer) {
		res := new(inboxv1.BeginResponse)
		a := c.call(connectProto, "Inbox.Begin", r, "Idempotency-Key", "m")
		if a.wants(t, "begin", ""); a.code == "" {
			connectProto.decode(t, a.raw, res)
		}
		return res, a
	}
	first, _ := begin()
	if again, a := begin(); !a.replayed() || !proto.Equal(again, first) {
		t.Errorf("the same call again: replayed %v, %v", a.replayed(), again)
	}
	if _, err := c.pool.Exec(t.Context(),
		"update inbox_messages set lease_expires_at = now() - interval '1 minute' where message_id = 'm'"); err != nil {
		t.Fatal(err)
	}
	next, a := begin()
	if a.replayed() || next.GetVerdict() != inboxv1.Verdict_VERDICT_RUN || next.GetFence() <= first.GetFence() {
		t.Errorf("a right that had lapsed: replayed %v, %v", a.replayed(), next)
	}
	if busy, _ := begin(); busy.GetVerdict() != inboxv1.Verdict_VERDICT_BUSY {
		t.Errorf("with a key that got a right that is over, while another holds: %v", busy)
	}
	c.well(t, "Inbox.Complete", &inboxv1.CompleteRequest{Key: message("m"), Fence: next.GetFence()})
	if over, _ := begin(); over.GetVerdict() != inboxv1.Verdict_VERDICT_DONE {
		t.Errorf("delivered again when it was done: %v", over)
	}
}
