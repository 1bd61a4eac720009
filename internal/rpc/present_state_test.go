package rpc_test

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
)

// withClaim has a request key, and a claim that each call may use.
func withClaim(key string) []string {
	return []string{"Idempotency-Key", key, "Claim-Key", `"page"; scope=g; owner="ann"; life=600`}
}

// Calls that answer repeats with the present state do so also under a request key and a claim.
func TestPresentStatesAreNotRecorded(t *testing.T) {
	t.Parallel()
	t.Run("expired work", func(t *testing.T) {
		t.Parallel()
		c := newWorker(t)
		w := &idempotencyv1.BeginRequest{Scope: "s", Key: "w", Life: durationpb.New(time.Second)}
		c.complete("s", "w", c.run(w).GetFence(), done, "it")
		if a := c.call(connectJSON, "Idempotency.Begin", w, withClaim("k")...); !strings.Contains(string(a.Raw),
			"replay") {
			t.Errorf("%s", a.Raw)
		}
		c.age("w", 3*time.Hour)
		if a := c.call(connectJSON, "Idempotency.Begin", w,
			append(withClaim("k"), "Connect-Timeout-Ms", "5000")...); !strings.Contains(string(a.Raw), "run") {
			t.Errorf("%s", a.Raw)
		}
	})
	t.Run("resolved work", func(t *testing.T) {
		t.Parallel()
		c := newWorker(t)
		w := &idempotencyv1.BeginRequest{Scope: "s", Key: "p"}
		fence := c.run(w).GetFence()
		c.complete("s", "p", fence, unknown, "")
		if a := c.call(connectJSON, "Idempotency.Begin", w, withClaim("k")...); !strings.Contains(string(a.Raw),
			"parked") {
			t.Errorf("%s", a.Raw)
		}
		ok(c, "Idempotency.ResolveWork", &idempotencyv1.ResolveWorkRequest{Scope: "s", Key: "p", Fence: fence,
			Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE,
			Answer:     &idempotencyv1.RecordedAnswer{Body: []byte("paid")}}, new(idempotencyv1.ResolveWorkResponse))
		if a := c.call(connectJSON, "Idempotency.Begin", w, withClaim("k")...); !strings.Contains(string(a.Raw),
			"replay") {
			t.Errorf("%s", a.Raw)
		}
	})
	t.Run("message", func(t *testing.T) {
		t.Parallel()
		c := newWorker(t)
		r := &inboxv1.BeginRequest{Key: message("m")}
		fence := ok(c, "Inbox.Begin", r, new(inboxv1.BeginResponse)).GetFence()
		c.well(t, "Inbox.Fail", &inboxv1.FailRequest{Key: message("m"), Fence: fence, Permanent: true})
		begin := func(want inboxv1.Verdict) {
			t.Helper()
			if b := ok(c, "Inbox.Begin", r, new(inboxv1.BeginResponse), withClaim("k")...); b.GetVerdict() != want {
				t.Errorf("%v, want %v", b, want)
			}
		}
		begin(inboxv1.Verdict_VERDICT_DEAD)
		c.well(t, "Inbox.RequeueMessages",
			&inboxv1.RequeueMessagesRequest{Target: &inboxv1.RequeueMessagesRequest_Key{Key: message("m")}})
		begin(inboxv1.Verdict_VERDICT_RUN)
	})
	t.Run("payment", func(t *testing.T) {
		t.Parallel()
		c := orderSite(t)
		ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: "till",
			Asset: "COIN"}}},
			new(ledgerv1.CreateAccountsResponse))
		ok(c, "Payment.PutGateway", &paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: "till",
			Clearing: "till", Payee: "u:a"}},
			new(paymentv1.PutGatewayResponse))
		c.createOrder(&orderv1.CreateOrderRequest{OrderNo: "o", Subject: "u", Asset: "COIN", Amount: "1"})
		r := &paymentv1.CreatePaymentRequest{OrderNo: "o", Gateway: "till"}
		ok(c, "Payment.CreatePayment", r, new(paymentv1.CreatePaymentResponse))
		if p := ok(c, "Payment.CreatePayment", r, new(paymentv1.CreatePaymentResponse),
			withClaim("k")...); !p.GetExisted() {
			t.Errorf("%v", p)
		}
		if n := c.Count("select count(*) from commit_keys where key = 'k'"); n != 0 {
			t.Errorf("the payment of a repeat, which may have a credential, is recorded")
		}
		c.Count(`with u as (update payment_payments set credential = '{"qr": "SECRET"}' returning 1) select count(*)
			from u`)
		if p := ok(c, "Payment.CreatePayment", r,
			new(paymentv1.CreatePaymentResponse)); p.GetPayment().GetCredential()["qr"] != "SECRET" {
			t.Errorf("%v", p)
		}
		a := c.call(connectJSON, "Batch.Execute", execute(operation("", r)), "Idempotency-Key", "e")
		if a.Code != "" || strings.Contains(string(a.Raw), "SECRET") {
			t.Errorf("an Execute is answered with the credential, and records it: %s", a.Raw)
		}
	})
}
