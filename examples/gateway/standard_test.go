package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// standardHeader signs a call with the library of Standard Webhooks.
func (v *vendor) standardHeader(body string, at time.Time) http.Header {
	v.t.Helper()
	w, err := webhooks.NewWebhook(v.keys.Standard.Secrets[0])
	if err != nil {
		v.t.Fatal(err)
	}
	signature, err := w.Sign("id", at, []byte(body))
	if err != nil {
		v.t.Fatal(err)
	}
	return http.Header{"Content-Type": {"application/json"}, "Webhook-Id": {"id"}, "Webhook-Signature": {signature},
		"Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)}}
}

func (v *vendor) standard(operation, body string) (*response, error) {
	v.t.Helper()
	return v.do("POST", "/standard/"+operation, body, v.standardHeader(body, time.Now()))
}

// order creates a payment of 12.30 EUR.
func (v *vendor) order(number string) *response {
	v.t.Helper()
	a, err := v.standard("create", `{"merchant":"`+v.keys.Standard.Merchant+`","out_trade_no":"`+number+
		`","amount":"12.30","currency":"EUR","notify_url":"`+v.shop.url+`/standard"}`)
	if err != nil || a.StatusCode != 200 {
		v.t.Fatalf("%v, %s", err, a.body)
	}
	return a
}

// state asks for a payment.
func (v *vendor) state(number string) string {
	v.t.Helper()
	a, err := v.standard("query", `{"out_trade_no":"`+number+`","amount":"12.30","currency":"EUR"}`)
	if err != nil {
		v.t.Fatal(err)
	}
	kind, _ := a.json(v.t)["type"].(string)
	return kind
}

func TestStandardIsSignedBothWays(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.order("N1")
	v.order("N1")
	v.act("standard", "N1", "pay")
	if _, err := v.standard("refund",
		`{"out_trade_no":"N1","refund_no":"R1","amount":"2.30","currency":"EUR"}`); err != nil {
		t.Fatal(err)
	}
	v.quiet()
	w, err := webhooks.NewWebhook(v.keys.Standard.Secrets[0])
	if err != nil {
		t.Fatal(err)
	}
	got := v.shop.callbacks()
	for _, c := range got {
		if err := w.Verify(c.body, c.header); err != nil {
			t.Error(err)
		}
	}
	if money := v.money("standard", "N1", "EUR"); len(got) != 2 || money != "12.30-2.30 in 1" {
		t.Errorf("%d callbacks, %s", len(got), money)
	}
	body := `{"out_trade_no":"N1"}`
	for name, h := range map[string]http.Header{"none": {}, "other body": v.standardHeader(body+" ", time.Now()),
		"old": v.standardHeader(body, time.Now().Add(-6*time.Minute))} {
		if a := v.must("POST", "/standard/query", body, h); a.StatusCode != 401 {
			t.Errorf("%s: %d", name, a.StatusCode)
		}
	}
	if a, err := v.standard("query", `{"out_trade_no":"N2"}`); err != nil || a.StatusCode != 404 {
		t.Errorf("%v %s", err, a.body)
	}
	if a := v.order("N1").json(t)["type"]; a != "payment.paid" {
		t.Errorf("the number again: %v", a)
	}
}

// types returns the types of the callbacks, in order.
func (s *shop) types(t *testing.T) (all []string) {
	t.Helper()
	for _, c := range s.callbacks() {
		var m struct{ Type string }
		if err := json.Unmarshal(c.body, &m); err != nil {
			t.Fatal(err)
		}
		all = append(all, m.Type)
	}
	return all
}
