package stripe_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/gatewaytest"
	"github.com/ledgerd/ledgerd/internal/gateway/stripe"
)

const (
	secret = "whsec_test_secret_of_the_endpoint"
	older  = "whsec_test_secret_before_rolling"
)

func build(t testing.TB, more map[string]any) *gateway.Configured {
	settings := map[string]any{"api_keys": []string{"sk_test_1"}, "webhook_secrets": []string{secret, older},
		"publishable_key": "pk_test_1"}
	for name, value := range more {
		settings[name] = value
	}
	return gatewaytest.New(t, "stripe", stripe.Dialect, settings)
}

// mac is the HMAC by openssl.
func mac(t testing.TB, with string, at time.Time, body string) string {
	text := strconv.FormatInt(at.Unix(), 10) + "." + body
	out := gatewaytest.OpenSSL(t, []byte(text), "dgst", "-sha256", "-mac", "HMAC", "-macopt", "key:"+with, "-r")
	return string(out[:64])
}

func header(at time.Time, macs ...string) http.Header {
	return http.Header{"Stripe-Signature": {"t=" + strconv.FormatInt(at.Unix(), 10) + ",v1=" +
		strings.Join(macs, ",v1=") + ",v0=00"}}
}

var now = time.Unix(1_760_000_000, 0)

func event(kind, object string) string {
	return `{"id":"evt_1","object":"event","type":"` + kind +
		`","livemode":false,"created":1760000000,"data":{"object":` + object + `}}`
}

const other = `{"id":"pi_2","object":"payment_intent","amount":1230,"currency":"cny","metadata":{}}`

func TestSignatures(t *testing.T) {
	g, body := build(t, nil), event("payment_intent.succeeded", other)
	good, old := mac(t, secret, now, body), mac(t, older, now, body)
	wrong := strings.Repeat("0", 64)
	for name, c := range map[string]struct {
		header http.Header
		body   string
		at     time.Time
		ok     bool
	}{
		"first secret":    {header(now, good), body, now, true},
		"older secret":    {header(now, old), body, now, true},
		"second of two":   {header(now, wrong, good), body, now, true},
		"spaces":          {http.Header{"Stripe-Signature": {"t=1760000000, v1=" + good}}, body, now, true},
		"300 s old":       {header(now, good), body, now.Add(300 * time.Second), true},
		"301 s old":       {header(now, good), body, now.Add(301 * time.Second), false},
		"300 s ahead":     {header(now, good), body, now.Add(-300 * time.Second), true},
		"301 s ahead":     {header(now, good), body, now.Add(-301 * time.Second), false},
		"other time":      {header(now.Add(time.Second), good), body, now, false},
		"other body":      {header(now, good), body + " ", now, false},
		"wrong":           {header(now, wrong), body, now, false},
		"short":           {header(now, good[:32]), body, now, false},
		"no header":       {http.Header{}, body, now, false},
		"no time":         {http.Header{"Stripe-Signature": {"v1=" + good}}, body, now, false},
		"two times":       {http.Header{"Stripe-Signature": {"t=1,t=1760000000,v1=" + good}}, body, now, false},
		"only a v0":       {http.Header{"Stripe-Signature": {"t=1760000000,v0=" + good}}, body, now, false},
		"time with a sum": {http.Header{"Stripe-Signature": {"t=+1760000000,v1=" + good}}, body, now, false},
	} {
		n, err := g.Notice(c.header, []byte(c.body), c.at)
		if (err == nil) != c.ok || !c.ok && !errors.Is(err, gateway.ErrForged) || c.ok && n.Kind != gateway.Other {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
	}
}

// Verdicts on signatures must be those of Stripe's own library, which testdata/oracle has recorded.
func TestSignaturesByTheLibraryOfStripe(t *testing.T) {
	text, err := os.ReadFile("testdata/webhooks.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name, Secret, Header, Body string
		At                         int64
		Valid                      bool
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	verdicts := map[bool]int{}
	for _, w := range all {
		g := build(t, map[string]any{"webhook_secrets": []string{older, w.Secret}})
		_, err := g.Notice(http.Header{"Stripe-Signature": {w.Header}}, []byte(w.Body), time.Unix(w.At, 0))
		if errors.Is(err, gateway.ErrForged) == w.Valid {
			t.Errorf("%s: %v, and Stripe's library says %t", w.Name, err, w.Valid)
		}
		verdicts[w.Valid]++
	}
	if verdicts[true] < 5 || verdicts[false] < 5 {
		t.Errorf("the library's verdicts are %v", verdicts)
	}
}

func say(n gateway.Notice, err error) string {
	switch {
	case errors.Is(err, gateway.ErrFormat):
		return "format"
	case err != nil:
		return err.Error()
	}
	text := fmt.Sprint(n.Kind, " ", n.OutTradeNo, " ", n.TransactionID, " ", n.RefundNo, " ", n.Amount, " ", n.Currency,
		" ", n.Code)
	if n.Foreign != "" {
		text += "foreign " + n.Foreign
	}
	return text
}

func TestEvents(t *testing.T) {
	intent := func(more string) string {
		return `{"id":"pi_1","object":"payment_intent","amount":1230,"amount_received":1230,"currency":"usd",` + more +
			`"metadata":{"out_trade_no":"P1"}}`
	}
	refund := func(status string) string {
		return `{"id":"re_1","object":"refund","amount":230,"currency":"usd","payment_intent":"pi_1","status":"` +
			status +
			`","metadata":{"out_trade_no":"P1","refund_no":"R1"}}`
	}
	failed := `"status":"requires_payment_method","last_payment_error":{"code":"card_declined",` +
		`"decline_code":"lost_card","message":"no"},`
	for _, c := range []struct{ body, want string }{
		{event("payment_intent.succeeded", intent("")), "paid P1 pi_1  12.3 USD "},
		{event("payment_intent.succeeded", strings.Replace(intent(""), `"amount_received":1230`,
			`"amount_received":1200`, 1)),
			"paid P1 pi_1  12 USD "},
		{event("payment_intent.succeeded", strings.Replace(intent(""), "usd", "jpy", 1)), "paid P1 pi_1  1230 JPY "},
		{event("payment_intent.succeeded", strings.Replace(intent(""), "usd", "kwd", 1)), "paid P1 pi_1  1.23 KWD "},
		{event("payment_intent.succeeded", strings.Replace(intent(""), "usd", "ugx", 1)),
			"paid P1 pi_1  0 UGX foreign currency UGX"},
		{event("payment_intent.succeeded", other), "other    0  "},
		{event("payment_intent.payment_failed", intent(failed)), "declined P1 pi_1  12.3 USD card_declined_lost_card"},
		{event("payment_intent.processing", intent("")), "pending P1 pi_1  12.3 USD "},
		{event("payment_intent.canceled", intent("")), "closed P1 pi_1  12.3 USD "},
		{event("charge.dispute.created", `{}`), "other    0  "},
		{event("refund.created", refund("pending")), "refund_pending P1 pi_1 R1 2.3 USD "},
		{event("refund.updated", refund("succeeded")), "refunded P1 pi_1 R1 2.3 USD "},
		{event("charge.refund.updated", refund("requires_action")), "refund_pending P1 pi_1 R1 2.3 USD "},
		{event("refund.failed", refund("failed")), "refund_failed P1 pi_1 R1 2.3 USD "},
		// Made by hand in the dashboard.
		{event("refund.created", strings.Replace(refund("succeeded"), `{"out_trade_no":"P1","refund_no":"R1"}`, "{}",
			1)),
			"refunded  pi_1  2.3 USD "},
		{event("refund.created", strings.Replace(refund("succeeded"), `"pi_1"`, "null", 1)), "other    0  "},
		{strings.Replace(event("payment_intent.succeeded", intent("")), `"livemode":false`, `"livemode":true`, 1),
			"paid P1 pi_1  12.3 USD foreign mode live"},
		{strings.Replace(event("payment_intent.succeeded", intent("")), `"id":"evt_1"`,
			`"id":"evt_1","account":"acct_2"`, 1),
			"paid P1 pi_1  12.3 USD foreign account acct_2"},
		{event("payment_intent.succeeded", strings.Replace(intent(""), "1230,", "1e400,", 1)), "format"},
		{event("payment_intent.succeeded", strings.Replace(intent(""), `d":1230`, `d":-1230`, 1)), "format"},
		{event("payment_intent.succeeded", strings.Replace(intent(""), `d":1230`, `d":99999999999999999999`, 1)),
			"format"},
		{event("payment_intent.succeeded", `{"object":"charge"}`), "format"},
		{event("refund.created", other), "format"},
		{`{"object":"event"}`, "format"},
		{`[]`, "format"},
		{`id=evt_1`, "format"},
	} {
		n, err := build(t, nil).Notice(header(now, mac(t, secret, now, c.body)), []byte(c.body), now)
		if got := say(n, err); got != c.want || err == nil && (n.ID != "evt_1" || !n.At.Equal(now)) {
			t.Errorf("%s\n%s, want %s (%v)", c.body, got, c.want, err)
		}
	}
	body := strings.Replace(event("payment_intent.succeeded", intent("")), `"id":"evt_1"`,
		`"id":"evt_1","account":"acct_1"`, 1)
	n, err := build(t, map[string]any{"account": "acct_1"}).Notice(header(now, mac(t, secret, now, body)), []byte(body),
		now)
	if n.Foreign != "" || err != nil {
		t.Errorf("own connected account: %+v, %v", n, err)
	}
}

// api answers requests in order, and keeps them.
type api struct {
	*httptest.Server
	answers []string // status and body
	asked   []string
}

func newAPI(t *testing.T) *api {
	a := &api{}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Authorization") != "Bearer sk_test_1" || r.Header.Get("Stripe-Version") == "" {
			t.Errorf("header %v", r.Header)
		}
		line, _ := url.QueryUnescape(r.Method + " " + r.RequestURI + " " + string(body))
		a.asked = append(a.asked, strings.TrimSpace(line+" "+r.Header.Get("Idempotency-Key")))
		if len(a.answers) == 0 {
			t.Errorf("unexpected request %s", line)
			return
		}
		status, text, _ := strings.Cut(a.answers[0], " ")
		a.answers = a.answers[1:]
		code, _ := strconv.Atoi(status)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}))
	t.Cleanup(a.Close)
	return a
}

// script sets the answers, and forgets the requests.
func (a *api) script(answers ...string) { a.answers, a.asked = answers, nil }

func (a *api) want(t *testing.T, requests ...string) {
	t.Helper()
	if got := strings.Join(a.asked, "\n"); got != strings.Join(requests, "\n") {
		t.Errorf("asked\n%s\nwant\n%s", got, strings.Join(requests, "\n"))
	}
}

const intentText = `{"id":"pi_1","object":"payment_intent","amount":1230,"currency":"usd","client_secret":"cs",` +
	`"livemode":false,` +
	`"status":"requires_payment_method","metadata":{"out_trade_no":"P1"}}`

func TestPaymentCalls(t *testing.T) {
	a := newAPI(t)
	g := build(t, map[string]any{"url": a.URL})
	p := &gateway.Payment{OutTradeNo: "P1", Amount: gatewaytest.Amount(t, "12.3"), Currency: "USD", Description: "tea"}
	known := *p
	known.TransactionID = "pi_1"
	paid := strings.Replace(intentText, `"status":"requires_payment_method"`,
		`"status":"succeeded","amount_received":1230`, 1)

	a.script("200 " + intentText)
	c, n, err := g.Create(t.Context(), p)
	if say(n, err) != "pending P1 pi_1  12.3 USD " || c["client_secret"] != "cs" ||
		c["publishable_key"] != "pk_test_1" {
		t.Errorf("%s, %v", say(n, err), c)
	}
	a.want(t, "POST /v1/payment_intents "+
		"amount=1230&automatic_payment_methods[enabled]=true&currency=usd&description=tea&metadata[out_trade_no]=P1 "+
		"pay_P1")
	a.script("200 " + intentText)
	if _, _, err = g.Create(t.Context(), &known); err != nil {
		t.Error(err)
	}
	a.want(t, "GET /v1/payment_intents/pi_1")

	a.script("200 " + paid)
	n, err = g.Query(t.Context(), &known)
	if say(n, err) != "paid P1 pi_1  12.3 USD " || n.ID != "query/paid/pi_1/" {
		t.Errorf("%s %s", say(n, err), n.ID)
	}
	// By number: the paid one of several, and none with another number.
	a.script(`200 {"data":[` + strings.Replace(paid, `"P1"`, `"p1"`, 1) + `,` + intentText + `,` + paid + `]}`)
	n, err = g.Query(t.Context(), p)
	if say(n, err) != "paid P1 pi_1  12.3 USD " {
		t.Error(say(n, err))
	}
	a.want(t, "GET /v1/payment_intents/search?limit=100&query=metadata['out_trade_no']:'P1'")
	a.script(`200 {"data":[]}`, `404 {"error":{"code":"resource_missing"}}`, `200 {"data":[]}`)
	for _, one := range []*gateway.Payment{p, &known} {
		if _, err := g.Query(t.Context(), one); !errors.Is(err, gateway.ErrNoTrade) {
			t.Error(err)
		}
	}
	if _, err := g.Close(t.Context(), p); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}

	a.script("200 " + strings.Replace(intentText, "requires_payment_method", "canceled", 1))
	n, err = g.Close(t.Context(), &known)
	if say(n, err) != "closed P1 pi_1  12.3 USD " {
		t.Error(say(n, err))
	}
	a.want(t, "POST /v1/payment_intents/pi_1/cancel cancellation_reason=abandoned")
	a.script(`400 {"error":{"code":"payment_intent_unexpected_state"}}`, "200 "+paid)
	if n, err = g.Close(t.Context(), &known); say(n, err) != "paid P1 pi_1  12.3 USD " {
		t.Error(say(n, err))
	}
	a.script("200 " + strings.Replace(paid, `"livemode":false`, `"livemode":true`, 1))
	if n, err = g.Query(t.Context(), &known); n.Foreign != "mode live" || err != nil {
		t.Errorf("%+v, %v", n, err)
	}
}

// Two declines of one intent are two notices: the second has another charge.
func TestSecondDeclineIsNotARepeat(t *testing.T) {
	a := newAPI(t)
	g := build(t, map[string]any{"url": a.URL})
	one := strings.Replace(intentText, `"status"`,
		`"latest_charge":"ch_1","last_payment_error":{"code":"card_declined"},"status"`, 1)
	a.script("200 "+one, "200 "+one, "200 "+strings.Replace(one, "ch_1", "ch_2", 1))
	var ids []string
	for range 3 {
		n, err := g.Query(t.Context(), &gateway.Payment{OutTradeNo: "P1", TransactionID: "pi_1"})
		if err != nil || n.Kind != gateway.Declined {
			t.Fatalf("%+v, %v", n, err)
		}
		ids = append(ids, n.ID)
	}
	if ids[0] != ids[1] || ids[1] == ids[2] {
		t.Errorf("%q", ids)
	}
}

func TestFailedCalls(t *testing.T) {
	a := newAPI(t)
	g := build(t, map[string]any{"url": a.URL})
	p := &gateway.Payment{OutTradeNo: "P1", Amount: gatewaytest.Amount(t, "12.3"), Currency: "USD"}
	for answer, want := range map[string]struct {
		outcome gateway.Outcome
		code    string
	}{
		`400 {"error":{"code":"amount_too_small","message":"no"}}`: {gateway.Refused, "stripe_amount_too_small"},
		`401 {"error":{"message":"Invalid API Key"}}`:              {gateway.NotSent, "stripe_http_401"},
		`403 <html>`: {gateway.NotSent, "stripe_http_403"},
		`404 <html>`: {gateway.NotSent, "stripe_http_404"},
		`409 {"error":{"code":"idempotency_key_in_use"}}`: {gateway.Unknown, "stripe_idempotency_key_in_use"},
		`429 {"error":{"code":"rate_limit"}}`:             {gateway.NotSent, "stripe_rate_limit"},
		`429 {"error":{"code":"lock_timeout"}}`:           {gateway.Unknown, "stripe_lock_timeout"},
		`500 `:                                            {gateway.Unknown, "stripe_http_500"},
		`200 <html>`:                                      {gateway.Unknown, "stripe_unreadable"},
	} {
		a.script(answer)
		_, _, err := g.Create(t.Context(), p)
		gatewaytest.Failed(t, err, want.outcome, want.code)
	}
}

func TestRefundCalls(t *testing.T) {
	a := newAPI(t)
	g := build(t, map[string]any{"url": a.URL})
	r := &gateway.Refund{RefundNo: "R1", OutTradeNo: "P1", TransactionID: "pi_1", Amount: gatewaytest.Amount(t, "2.3"),
		Currency: "USD"}
	done := `{"id":"re_1","object":"refund","amount":230,"currency":"usd","payment_intent":"pi_1",` +
		`"status":"succeeded",` +
		`"metadata":{"out_trade_no":"P1","refund_no":"R1"}}`
	byHand := `{"id":"re_0","object":"refund","amount":1,"currency":"usd","payment_intent":"pi_1","metadata":{}}`
	const first = "GET /v1/refunds?limit=100&payment_intent=pi_1"

	a.script(`200 {"data":[`+byHand+`]}`, "200 "+done)
	n, err := g.Refund(t.Context(), r)
	if say(n, err) != "refunded P1 pi_1 R1 2.3 USD " || n.GatewayRefundID != "re_1" {
		t.Error(say(n, err))
	}
	a.want(t, first, "POST /v1/refunds "+
		"amount=230&metadata[out_trade_no]=P1&metadata[refund_no]=R1&payment_intent=pi_1 refund_R1")
	// A repeat after Stripe has forgotten the key refunds nothing.
	a.script(`200 {"data":[` + done + `]}`)
	if n, err = g.Refund(t.Context(), r); say(n, err) != "refunded P1 pi_1 R1 2.3 USD " {
		t.Error(say(n, err))
	}
	// While the search for an existing refund fails, none is made.
	a.script(`500 `)
	_, err = g.Refund(t.Context(), r)
	gatewaytest.Failed(t, err, gateway.Unknown, "stripe_http_500")

	a.script(`200 {"data":[`+byHand+`],"has_more":true}`, `200 {"data":[`+done+`]}`)
	if n, err = g.QueryRefund(t.Context(), r); say(n, err) != "refunded P1 pi_1 R1 2.3 USD " {
		t.Error(say(n, err))
	}
	a.want(t, first, "GET /v1/refunds?limit=100&payment_intent=pi_1&starting_after=re_0")
	a.script(`200 {"data":[],"has_more":true}`)
	if _, err = g.QueryRefund(t.Context(), r); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
	r.GatewayRefundID = "re_1"
	a.script("200 " + strings.Replace(done, "succeeded", "pending", 1))
	if n, err = g.QueryRefund(t.Context(), r); say(n, err) != "refund_pending P1 pi_1 R1 2.3 USD " {
		t.Error(say(n, err))
	}
	a.want(t, "GET /v1/refunds/re_1")
}

func TestCheck(t *testing.T) {
	for _, c := range []struct{ amount, currency, number, want string }{
		{"12.30", "USD", "P1", ""}, {"12.345", "USD", "P1", "amount: has more than 2"},
		{"0", "USD", "P1", "amount: must be positive"},
		{"-1", "USD", "P1", "amount: must be positive"}, {"500", "JPY", "P1", ""},
		{"500.5", "JPY", "P1", "amount: has more than 0"},
		{"5.12", "KWD", "P1", ""}, {"5.124", "KWD", "P1", "third must be 0"}, {"5", "ISK", "P1", ""},
		{"5.5", "ISK", "P1", "must be whole"},
		{"5", "UGX", "P1", "currency:"}, {"5", "", "P1", "currency:"}, {"5", "USD", "P'1", "out_trade_no:"},
		{"5", "USD", "", "out_trade_no:"},
		{"99999999999999999999", "USD", "P1", "amount:"},
	} {
		err := stripe.Dialect.Check(&gateway.Payment{OutTradeNo: c.number, Amount: gatewaytest.Amount(t, c.amount),
			Currency: c.currency})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestSettings(t *testing.T) {
	for want, change := range map[string]map[string]any{
		"api_keys: is missing":        {"api_keys": []string{}},
		"webhook_secrets: is missing": {"webhook_secrets": []string{}},
		"webhook_secrets[1]: must be": {"webhook_secrets": []string{secret, "pencil"}},
		"mode: must be live or test":  {"api_keys": []string{"pencil"}},
		`unknown setting "colour"`:    {"colour": "pencil"},
	} {
		settings := map[string]any{"api_keys": []string{"sk_test_1"}, "webhook_secrets": []string{secret}}
		for name, value := range change {
			settings[name] = value
		}
		_, err := gatewaytest.Try(t, "stripe", stripe.Dialect, settings)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pencil") {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// goMAC is mac without another process.
func goMAC(body string) string {
	h := hmac.New(sha256.New, []byte(secret))
	_, _ = io.WriteString(h, strconv.FormatInt(now.Unix(), 10)+"."+body)
	return hex.EncodeToString(h.Sum(nil))
}

func FuzzEvent(f *testing.F) {
	g := build(f, nil)
	f.Add("payment_intent.succeeded", intentText)
	f.Add("refund.updated", `{"object":"refund","payment_intent":"pi","amount":-1}`)
	f.Add("payment_intent.succeeded", `{"object":"payment_intent","amount_received":1e3}`)
	f.Fuzz(func(t *testing.T, kind, object string) {
		name, _ := json.Marshal(kind)
		body := `{"id":"e","type":` + string(name) + `,"data":{"object":` + object + `}}`
		n, err := g.Notice(header(now, goMAC(body)), []byte(body), now)
		if err != nil && !errors.Is(err, gateway.ErrFormat) || err == nil && n.Amount.Coef.Sign() < 0 {
			t.Errorf("%+v, %v", n, err)
		}
	})
}
