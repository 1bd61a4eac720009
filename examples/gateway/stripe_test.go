package main

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// stripe makes a call: a POST with a form, or a GET.
func (v *vendor) stripe(method, path, form, once string) *response {
	v.t.Helper()
	h := http.Header{"Authorization": {"Bearer " + v.keys.Stripe.Secret}}
	if method == "POST" {
		h.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if once != "" {
		h.Set("Idempotency-Key", once)
	}
	return v.must(method, path, form, h)
}

const intentForm = "amount=1230&currency=usd&automatic_payment_methods[enabled]=true&metadata[out_trade_no]="

func TestStripeMakesOneIntentPerKey(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	first := v.stripe("POST", "/v1/payment_intents", intentForm+"N1", "pay_N1")
	again := v.stripe("POST", "/v1/payment_intents", intentForm+"N1", "pay_N1")
	other := v.stripe("POST", "/v1/payment_intents", strings.Replace(intentForm, "1230", "1231", 1)+"N1", "pay_N1")
	if string(first.body) != string(again.body) || again.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("%s\n%s", first.body, again.body)
	}
	if other.StatusCode != http.StatusBadRequest || !strings.Contains(string(other.body), "idempotency_error") {
		t.Errorf("other content: %d %s", other.StatusCode, other.body)
	}
	if n := len(tell[[]book.Payment](v, "GET", "payments?gateway=stripe", nil)); n != 1 {
		t.Errorf("%d payments", n)
	}
	for _, h := range []http.Header{{}, {"Authorization": {"Bearer sk_test_other"}}} {
		if a := v.must("POST", "/v1/payment_intents", intentForm+"N2", h); a.StatusCode != http.StatusUnauthorized {
			t.Errorf("%v: %d", h, a.StatusCode)
		}
	}
}

func TestStripeAmountsFollowItsOwnScale(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	for form, want := range map[string]int{"amount=500&currency=jpy": 200, "amount=5120&currency=kwd": 200,
		"amount=5124&currency=kwd": 400, "amount=500&currency=isk": 200, "amount=550&currency=isk": 400,
		"amount=0&currency=usd": 400, "amount=1.5&currency=usd": 400, "amount=5": 400} {
		if a := v.stripe("POST", "/v1/payment_intents", form, ""); a.StatusCode != want {
			t.Errorf("%s: %d %s", form, a.StatusCode, a.body)
		}
	}
	v.plan("K", book.Plan{Payer: "pay"})
	v.stripe("POST", "/v1/payment_intents", "amount=5120&currency=kwd&metadata[out_trade_no]=K", "k")
	v.quiet()
	if got := v.money("stripe", "K", "KWD"); got != "5.120-0.000 in 1" {
		t.Error(got)
	}
}

// opensslHMAC computes an HMAC with an independent implementation.
func opensslHMAC(t *testing.T, secret, text string) string {
	t.Helper()
	c := exec.Command("openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt",
		"hexkey:"+hex.EncodeToString([]byte(secret)), "-hex")
	c.Stdin = strings.NewReader(text)
	out, err := c.Output()
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: openssl is not installed")
	}
	return strings.TrimSpace(string(out[strings.LastIndexByte(string(out), ' ')+1:]))
}

var stripeSignature = regexp.MustCompile(`^t=(\d+),v1=([0-9a-f]{64}),v0=`)

func TestStripeSignsEventsAndMovesMoney(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	made := v.stripe("POST", "/v1/payment_intents", intentForm+"N1", "pay_N1").json(t)
	id := made["id"].(string)
	v.act("stripe", "N1", "decline")
	v.act("stripe", "N1", "pay")
	v.quiet()
	types := map[string]int{}
	for _, c := range v.shop.callbacks() {
		m := stripeSignature.FindStringSubmatch(c.header.Get("Stripe-Signature"))
		if m == nil || opensslHMAC(t, v.keys.Stripe.Signing[0], m[1]+"."+string(c.body)) != m[2] {
			t.Errorf("signature %q", c.header.Get("Stripe-Signature"))
		}
		var event struct{ Type string }
		if err := json.Unmarshal(c.body, &event); err != nil || c.path != "/pay/callbacks/stripe" {
			t.Error(c.path, err)
		}
		types[event.Type]++
	}
	if types["payment_intent.payment_failed"] != 1 || types["payment_intent.succeeded"] != 1 {
		t.Errorf("events: %v", types)
	}
	if got := v.stripe("GET", "/v1/payment_intents/"+id, "", "").json(t); got["status"] != "succeeded" ||
		got["amount_received"] != 1230.0 || got["client_secret"] != made["client_secret"] {
		t.Errorf("%v", got)
	}
	if a := v.stripe("POST", "/v1/payment_intents/"+id+"/cancel", "", "c"); a.StatusCode != 400 ||
		!strings.Contains(string(a.body), "payment_intent_unexpected_state") {
		t.Errorf("cancel: %s", a.body)
	}
	refund := "payment_intent=" + id + "&amount=1000&metadata[refund_no]=R1"
	first, again := v.stripe("POST", "/v1/refunds", refund, "r1"), v.stripe("POST", "/v1/refunds", refund, "r1")
	more := v.stripe("POST", "/v1/refunds", refund, "r2")
	if first.json(t)["id"] != again.json(t)["id"] || more.StatusCode != 400 {
		t.Errorf("%s\n%s\n%s", first.body, again.body, more.body)
	}
	if got := v.money("stripe", "N1", "USD"); got != "12.30-10.00 in 1" {
		t.Error(got)
	}
}
