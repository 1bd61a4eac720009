package standard_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/gatewaytest"
	"github.com/ledgerd/ledgerd/internal/gateway/standard"
)

const (
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" // of the vector
	older  = "whsec_b2xkZXIgc2VjcmV0IG9mIHRoZSBnYXRld2F5"
)

func build(t testing.TB, url string) *gateway.Configured {
	return gatewaytest.New(t, "standard", standard.Dialect, map[string]any{"url": url, "merchant": "m1",
		"secrets": []string{secret, older}})
}

// The test vector of the reference libraries:
// https://github.com/standard-webhooks/standard-webhooks/blob/main/libraries/go/webhook_test.go.
func TestPublishedVector(t *testing.T) {
	g := build(t, "https://gateway.example")
	at := time.Unix(1614265330, 0)
	header := http.Header{"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"},
		"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="}}
	body := []byte(`{"test": 2432232314}`)
	if n, err := g.Notice(header, body, at); err != nil || n.Kind != gateway.Other || n.ID != header.Get("Webhook-Id") {
		t.Errorf("%+v, %v", n, err)
	}
	for by, want := range map[time.Duration]bool{-301 * time.Second: false, -300 * time.Second: true,
		300 * time.Second: true, 301 * time.Second: false} {
		if _, err := g.Notice(header, body, at.Add(by)); (err == nil) != want || !want &&
			!errors.Is(err, gateway.ErrForged) {
			t.Errorf("%v: %v", by, err)
		}
	}
	for name, value := range map[string]string{"Webhook-Id": "msg_other", "Webhook-Timestamp": "01614265330",
		"Webhook-Signature": "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="} {
		changed := header.Clone()
		changed.Set(name, value)
		if _, err := g.Notice(changed, body, at); !errors.Is(err, gateway.ErrForged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := g.Notice(header, []byte(`{"test": 2432232315}`), at); !errors.Is(err, gateway.ErrForged) {
		t.Errorf("changed body: %v", err)
	}
}

func signed(t testing.TB, with, id, body string, at time.Time) http.Header {
	t.Helper()
	w, err := standardwebhooks.NewWebhook(with)
	if err != nil {
		t.Fatal(err)
	}
	s, err := w.Sign(id, at, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {strconv.FormatInt(at.Unix(), 10)},
		"Webhook-Signature": {"v1,b3RoZXI= " + s}}
}

func TestCallbacks(t *testing.T) {
	g := build(t, "https://gateway.example")
	now := time.Now()
	const data = `"out_trade_no":"P1","transaction_id":"T1","amount":"12.30","currency":"CNY","merchant":"m1"`
	for _, c := range []struct{ body, want string }{
		{`{"type":"payment.paid","timestamp":"2026-11-25T04:00:00Z","data":{` + data + `}}`, "paid P1 T1  12.3 CNY"},
		{`{"type":"payment.declined","data":{` + data + `,"code":"card declined","text":"call +8613812345678"}}`,
			"declined P1 T1  12.3 CNY card_declined call …"},
		{`{"type":"refund.succeeded","data":{` + data + `,"refund_no":"R1","refund_id":"G1"}}`,
			"refunded P1 T1 R1 12.3 CNY"},
		{`{"type":"refund.abnormal","data":{` + data + `,"refund_no":"R1"}}`, "refund_abnormal P1 T1 R1 12.3 CNY"},
		{`{"type":"payment.paid","data":{"out_trade_no":"P1","transaction_id":"T1","amount":"12.30","currency":"CNY",` +
			`"merchant":"m2"}}`,
			"paid P1 T1  12.3 CNY foreign merchant m2"},
		{`{"type":"payment.dispute"}`, "other    0 "},
		// no amount
		{`{"type":"payment.paid","data":{"out_trade_no":"P1","transaction_id":"T1","merchant":"m1"}}`, "format"},
		{`{"type":"payment.paid","data":{"out_trade_no":"P1","amount":"1","currency":"CNY","merchant":"m1"}}`,
			"format"},
		{`{"type":"payment.paid","data":{` + strings.Replace(data, "12.30", "1e9", 1) + `}}`, "format"},
		{`{"type":"payment.paid","data":{` + strings.Replace(data, `"12.30"`, "12.30", 1) + `}}`, "format"},
		{`{"type":"payment.paid","data":{` + strings.Replace(data, "P1", `P\u0000`, 1) + `}}`, "format"},
		{`not JSON`, "format"},
		{``, "format"},
	} {
		n, err := g.Notice(signed(t, older, "e1", c.body, now), []byte(c.body), now)
		got := strings.Join([]string{string(n.Kind), n.OutTradeNo, n.TransactionID, n.RefundNo, n.Amount.String(),
			n.Currency}, " ")
		if n.Code != "" {
			got += " " + n.Code + " " + n.Text
		}
		if n.Foreign != "" {
			got += " foreign " + n.Foreign
		}
		if errors.Is(err, gateway.ErrFormat) {
			got = "format"
		}
		if got != c.want || err == nil && n.ID != "e1" {
			t.Errorf("%s\n%s, %v, want %s", c.body, got, err, c.want)
		}
	}
}

func TestCallsAndAnswers(t *testing.T) {
	var status int
	var answer string
	var asked map[string]any
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		hook, _ := standardwebhooks.NewWebhook(secret)
		if err := hook.Verify(body, r.Header); err != nil {
			t.Errorf("%s: %v", r.URL.Path, err)
		}
		asked = map[string]any{"path": r.URL.Path}
		_ = json.Unmarshal(body, &asked)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	g := build(t, s.URL)
	p := &gateway.Payment{OutTradeNo: "P1", Amount: gatewaytest.Amount(t, "12.30"), Currency: "CNY"}
	r := &gateway.Refund{RefundNo: "R1", OutTradeNo: "P1", Amount: gatewaytest.Amount(t, "2"), Currency: "CNY"}

	status = http.StatusOK
	answer = `{"type":"payment.pending","data":{"out_trade_no":"P1","merchant":"m1"},"credential":{"url":"https://x"}}`
	c, n, err := g.Create(t.Context(), p)
	if err != nil || c["url"] != "https://x" || n.Kind != gateway.Pending || asked["path"] != "/create" ||
		asked["amount"] != "12.3" || asked["notify_url"] != "https://pay.shop.example/pay/callbacks/standard" {
		t.Errorf("%v %+v %v, asked %v", c, n, err, asked)
	}
	answer = `{"type":"payment.paid","data":{"out_trade_no":"P1","transaction_id":"T1","amount":"12.3",` +
		`"currency":"CNY","merchant":"m1"}}`
	first, err := g.Query(t.Context(), p)
	second, err2 := g.Query(t.Context(), p)
	if err != nil || err2 != nil || first.Kind != gateway.Paid || first.ID != second.ID ||
		first.ID != "query/paid/P1//T1/" {
		t.Errorf("%+v %v", first, err)
	}
	if n, err := g.Close(t.Context(), p); err != nil || n.Kind != gateway.Paid {
		t.Errorf("%+v %v", n, err)
	}
	_, err = g.Refund(t.Context(), r) // the answer is about a payment
	gatewaytest.Failed(t, err, gateway.Unknown, "answer_unreadable")
	answer = strings.Replace(answer, "P1", "P2", 1)
	_, err = g.Query(t.Context(), p)
	gatewaytest.Failed(t, err, gateway.Unknown, "answer_unreadable")
	answer = `{"type":"refund.pending","data":{"out_trade_no":"P1","refund_no":"R1","merchant":"m1"}}`
	if n, err := g.Refund(t.Context(), r); err != nil || n.Kind != gateway.RefundPending {
		t.Errorf("%+v %v", n, err)
	}
	for _, c := range []struct {
		status  int
		answer  string
		outcome gateway.Outcome
		code    string
	}{
		{400, `{"error":{"code":"bad amount"}}`, gateway.Refused, "standard_bad_amount"},
		{429, ``, gateway.NotSent, "standard_http_429"},
		{500, `{"error":{"code":"oops"}}`, gateway.Unknown, "standard_oops"},
		{404, ``, gateway.NotSent, "standard_http_404"},
		{401, `{"error":{"code":"signature"}}`, gateway.NotSent, "standard_signature"},
		{403, `<html>`, gateway.NotSent, "standard_http_403"},
		{200, `{`, gateway.Unknown, "standard_unreadable"},
		{302, ``, gateway.Unknown, "standard_http_302"},
	} {
		status, answer = c.status, c.answer
		_, err := g.Query(t.Context(), p)
		gatewaytest.Failed(t, err, c.outcome, c.code)
	}
	status, answer = 404, `{"error":{"code":"no_trade"}}`
	if _, err := g.QueryRefund(t.Context(), r); !errors.Is(err, gateway.ErrNoTrade) ||
		asked["path"] != "/query_refund" {
		t.Errorf("%v", err)
	}
	s.Close()
	_, err = build(t, s.URL).Query(t.Context(), p)
	gatewaytest.Failed(t, err, gateway.NotSent, "connect")
}

func FuzzNotice(f *testing.F) {
	g := build(f, "https://gateway.example")
	f.Add(`{"type":"payment.paid","data":{"out_trade_no":"P1","transaction_id":"T","amount":"1","currency":"CNY"}}`)
	f.Add(`{"type":"refund.failed","data":{"amount":"99999999999999999999999999999999999999999"}}`)
	f.Add(`{"type":1e999}`)
	f.Fuzz(func(t *testing.T, body string) {
		now := time.Unix(1_700_000_000, 0)
		n, err := g.Notice(signed(t, secret, "e", body, now), []byte(body), now)
		if err != nil && !errors.Is(err, gateway.ErrFormat) || err == nil && n.Kind == gateway.Paid &&
			n.Amount.Coef.Sign() <= 0 && n.Foreign == "" {
			t.Errorf("%+v, %v", n, err)
		}
	})
}
