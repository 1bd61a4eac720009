package gateway_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
)

const (
	standardEntry = "gateways:\n  - kind: standard\n    tenant: shop\n    url: https://gateway.example/\n" +
		"    notify_url: https://pay.shop.example/base/\n    secrets: [env:GATEWAY_SECRET]\n"
	secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

func read(t *testing.T, text string) (*gateway.File, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "gateways.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return gateway.ReadFile(name, dialects.All)
}

func tenant(name string) (int32, error) {
	if name != "shop" {
		return 0, errors.New("there is none")
	}
	return 7, nil
}

func TestSettingsErrorsNameTheFieldAndNoValue(t *testing.T) {
	t.Setenv("GATEWAY_SECRET", secret)
	if _, err := read(t, standardEntry); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                           "there are no gateways",
		"gateways: []":               "there are no gateways",
		"others: []":                 `unknown setting "others"`,
		"gateways: pencil":           "line 1: is not valid YAML here",
		"gateways:\n  - pencil":      "line 2: is not valid YAML here",
		"gateways:\n  - kind: *penc": "is not valid YAML",
		"gateways:\n  - kind: cash": "line 2: kind: must be one of alipay, standard, " +
			"stripe, wechat",
		standardEntry + "    kind: x": "already defined",
		standardEntry + "    colour: pencil": `gateways[0], line 2: ` +
			`unknown setting "colour"`,
		standardEntry + "    merchant: [pencil]":                                "merchant: must be a text",
		standardEntry + "    name: 'pencil case'":                               "name: must be 1 to 32",
		standardEntry + "    timeout: 5":                                        "a duration must be",
		standardEntry + "    timeout: 2m":                                       "timeout: must be 1s to 1m",
		standardEntry + "    currencies: {pencil: CNY}":                         "currencies: names must be ISO 4217",
		standardEntry + "    currencies: {CNY: a, USD: a}":                      "is the asset of two currencies",
		standardEntry + standardEntry[10:]:                                      "two gateways have the name standard",
		strings.Replace(standardEntry, "tenant: shop", "merchant: x", 1):        "tenant: is missing",
		strings.Replace(standardEntry, "notify_url", "merchant", 1):             "notify_url: is missing",
		strings.Replace(standardEntry, "https://pay.", "http://pencil.", 1):     "notify_url: must begin with https://",
		strings.Replace(standardEntry, "https://gateway", "https://pencil@", 1): "url: must be a URL without user",
		strings.Replace(standardEntry, "example/\n", "example/?pencil\n", 1): "url: " +
			"must be a URL without user, query",
		strings.Replace(standardEntry, "env:GATEWAY_SECRET", "env:NOT_SET", 1): "secrets[0]: " +
			"the environment variable NOT_SET is not set",
		strings.Replace(standardEntry, "env:GATEWAY_SECRET", "pencil", 1): "secrets[0]: must be whsec_",
	} {
		_, err := read(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "pencil") ||
			strings.Contains(err.Error(), "MfKQ9") {
			t.Errorf("%s\n%v, want %q", text, err, want)
		}
	}
	f, err := read(t, strings.Replace(standardEntry, "tenant: shop", "tenant: none", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Build(&gateway.Env{Tenant: tenant}); err == nil ||
		!strings.Contains(err.Error(), "gateways[0], line 2: tenant none: there is none") {
		t.Error(err)
	}
}

func TestCurrenciesAndAssets(t *testing.T) {
	t.Setenv("GATEWAY_SECRET", secret)
	for more, want := range map[string]string{"": "CNY true, CNY true, POINTS true",
		"    currencies: {CNY: CNY-WALLET}\n": "CNY-WALLET true,  false,  false"} {
		f, err := read(t, standardEntry+more)
		if err != nil {
			t.Fatal(err)
		}
		set, err := f.Build(&gateway.Env{Tenant: tenant})
		if err != nil {
			t.Fatal(err)
		}
		g := set.ByName["standard"]
		text := func(code string, ok bool) string {
			return code + " " + map[bool]string{true: "true", false: "false"}[ok]
		}
		if got := text(g.Asset("CNY")) + ", " + text(g.Currency("CNY")) + ", " +
			text(g.Currency("POINTS")); got != want {
			t.Errorf("%q: %s, want %s", more, got, want)
		}
	}
}

// plain is a gateway whose notices are set by the test.
type plain struct {
	gateway.Gateway
	notice     gateway.Notice
	err        error
	credential gateway.Credential
}

func (p *plain) Notice(http.Header, []byte, time.Time) (gateway.Notice, error) {
	return p.notice, p.err
}

func (p *plain) Acknowledge(ok bool) gateway.Ack {
	if ok {
		return gateway.Ack{Status: 200, ContentType: "text/plain", Body: []byte("success")}
	}
	return gateway.Ack{Status: 503, ContentType: "text/plain", Body: []byte("fail")}
}

func (p *plain) Create(context.Context, *gateway.Payment) (gateway.Credential, gateway.Notice, error) {
	return p.credential, p.notice, p.err
}

func (p *plain) Query(context.Context, *gateway.Payment) (gateway.Notice, error) {
	return p.notice, p.err
}

func (p *plain) QueryRefund(context.Context, *gateway.Refund) (gateway.Notice, error) {
	return p.notice, p.err
}

// with returns a set with one gateway, named x.
func with(t *testing.T, p *plain, reg prometheus.Registerer) *gateway.Set {
	t.Helper()
	name := filepath.Join(t.TempDir(), "gateways.yaml")
	if err := os.WriteFile(name, []byte("gateways: [{kind: x, tenant: shop, notify_url: 'https://pay.shop.example'}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	f, err := gateway.ReadFile(name, gateway.Dialects{"x": {New: func(*gateway.Account) (gateway.Gateway,
		error) {
		return p, nil
	}}})
	if err != nil {
		t.Fatal(err)
	}
	set, err := f.Build(&gateway.Env{Tenant: tenant, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestHandler(t *testing.T) {
	p, reg, logged := &plain{}, prometheus.NewRegistry(), &strings.Builder{}
	var taken *gateway.Notice
	var raw gateway.Raw
	var ok bool
	var failure error
	h := &gateway.Handler{Set: with(t, p, reg), Log: slog.New(slog.NewTextHandler(logged, nil)),
		Take: func(ctx context.Context, requestID string, g *gateway.Configured, n *gateway.Notice,
			r gateway.Raw) (bool, error) {
			end, limited := ctx.Deadline()
			if g.Name != "x" || g.Tenant != 7 || requestID != "r1" || !limited || time.Until(end) > 4*time.Second {
				t.Errorf("%+v %s %v", g, requestID, time.Until(end))
			}
			taken, raw = n, r
			return ok, failure
		}}
	mux := http.NewServeMux()
	h.Register(mux)
	post := func(path, body string) string {
		taken = nil
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
		r.Header.Set("X-Request-Id", "r1")
		r.Header.Set("Cookie", "secret")
		r.Header.Set("Stripe-Signature", "s")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		text, _ := io.ReadAll(w.Result().Body)
		return http.StatusText(w.Code) + " " + strings.TrimSpace(string(text))
	}
	paid := gateway.Notice{ID: "n1", Kind: gateway.Paid, OutTradeNo: "P1", TransactionID: "T1", Currency: "CNY",
		Amount: gateway.Major(1230, 2)}
	for _, c := range []struct {
		outcome string
		notice  gateway.Notice
		err     error
		ok      bool
		failure error
		body    string
		taken   bool
		want    string
	}{
		{"accepted", paid, nil, true, nil, "b", true, "OK success"},
		{"retry", paid, nil, false, nil, "b", true, "Service Unavailable fail"},
		{"failed", paid, nil, true, errors.New("no database"), "b", true, "Service Unavailable fail"},
		{"other", gateway.Notice{ID: "n2", Kind: gateway.Other}, nil, true, nil, "b", true, "OK success"},
		{"forged", paid, gateway.ErrForged, true, nil, "body-text", false, "Forbidden not signed by the gateway"},
		{"unreadable", paid, gateway.ErrFormat, true, nil, "body-text", true, "Service Unavailable fail"},
		{"unreadable", gateway.Notice{ID: "n\x00", Kind: gateway.Other}, nil, true, nil, "b", true,
			"Service Unavailable fail"},
		{"too_large", paid, nil, true, nil, strings.Repeat("x", 1<<20+1), false,
			"Request Entity Too Large the body is too long or incomplete"},
		{"accepted", paid, nil, true, nil, strings.Repeat("x", 1<<20), true, "OK success"},
	} {
		p.notice, p.err, ok, failure = c.notice, c.err, c.ok, c.failure
		if got := post("/pay/callbacks/x", c.body); got != c.want || (taken != nil) != c.taken {
			t.Errorf("%s: %s, taken %v", c.outcome, got, taken)
		}
		if c.outcome == "unreadable" && (taken.Kind != gateway.Unreadable ||
			!strings.HasPrefix(taken.ID, "unreadable/") || taken.OutTradeNo != "" ||
			strings.Contains(taken.Text, "body-text") || taken.Text == "") {
			t.Errorf("%s: taken %+v", c.outcome, taken)
		}
		if c.taken && (string(raw.Body) != c.body || raw.Header.Get("Stripe-Signature") != "s" ||
			raw.Header.Get("Cookie") != "" || raw.At.IsZero()) {
			t.Errorf("raw %v", raw.Header)
		}
	}
	if got := post("/pay/callbacks/y", ""); got != "Not Found 404 page not found" {
		t.Error(got)
	}
	want := ""
	for _, line := range []string{"accepted 2", "failed 1", "forged 1", "other 1", "retry 1", "too_large 1",
		"unreadable 2"} {
		name, n, _ := strings.Cut(line, " ")
		want += `ledgerd_payment_callbacks_total{gateway="x",outcome="` + name + `"} ` + n + "\n"
	}
	if err := testutil.GatherAndCompare(reg, strings.NewReader("# HELP ledgerd_payment_callbacks_total Callbacks of "+
		"payment gateways by outcome: accepted, retry, failed, other, forged, unreadable, "+
		"too_large.\n# TYPE ledgerd_payment_callbacks_total counter\n"+want),
		"ledgerd_payment_callbacks_total"); err != nil {
		t.Error(err)
	}
	if text := logged.String(); strings.Contains(text, "body-text") || strings.Count(text, "\n") != 5 {
		t.Errorf("logged %s", text)
	}
}

func TestNoticesThatCannotBeStoredAreRefused(t *testing.T) {
	p := &plain{}
	g := with(t, p, nil).ByName["x"]
	good := gateway.Notice{ID: "n1", Kind: gateway.Paid, OutTradeNo: "P1", TransactionID: "T1", Currency: "CNY",
		Amount: gateway.Major(1, 2)}
	for name, c := range map[string]struct {
		change func(n *gateway.Notice)
		ok     bool
	}{
		"good":                      {func(*gateway.Notice) {}, true},
		"no id":                     {func(n *gateway.Notice) { n.ID = "" }, false},
		"no kind":                   {func(n *gateway.Notice) { n.Kind = "" }, false},
		"no number":                 {func(n *gateway.Notice) { n.OutTradeNo = "" }, false},
		"paid, no transaction":      {func(n *gateway.Notice) { n.TransactionID = "" }, false},
		"pending, no transaction":   {func(n *gateway.Notice) { n.Kind, n.TransactionID = gateway.Pending, "" }, true},
		"refund without our number": {func(n *gateway.Notice) { n.Kind, n.OutTradeNo = gateway.Refunded, "" }, true},
		"no amount":                 {func(n *gateway.Notice) { n.Amount = gateway.Major(0, 0) }, false},
		"foreign, no amount": {func(n *gateway.Notice) {
			n.Amount, n.Foreign = gateway.Major(0, 0),
				"currency UGX"
		}, true},
		"negative":    {func(n *gateway.Notice) { n.Amount = gateway.Major(-1, 2) }, false},
		"NUL":         {func(n *gateway.Notice) { n.TransactionID = "a\x00" }, false},
		"not UTF-8":   {func(n *gateway.Notice) { n.Foreign = "\xff" }, false},
		"long":        {func(n *gateway.Notice) { n.RefundNo = strings.Repeat("x", 257) }, false},
		"long reason": {func(n *gateway.Notice) { n.Text = strings.Repeat("x", 301) }, false},
	} {
		p.notice = good
		c.change(&p.notice)
		if _, err := g.Notice(nil, nil, time.Now()); (err == nil) != c.ok || !c.ok &&
			!errors.Is(err, gateway.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswersAboutSomethingElseAreUnknown(t *testing.T) {
	p, reg := &plain{}, prometheus.NewRegistry()
	g := with(t, p, reg).ByName["x"]
	p.notice = gateway.Notice{ID: "q", Kind: gateway.Pending, OutTradeNo: "P1"}
	if n, err := g.Query(t.Context(), &gateway.Payment{OutTradeNo: "P1"}); err != nil || n.OutTradeNo != "P1" {
		t.Error(err)
	}
	_, other := g.Query(t.Context(), &gateway.Payment{OutTradeNo: "P2"})
	_, refund := g.QueryRefund(t.Context(), &gateway.Refund{OutTradeNo: "P1", RefundNo: "R1"})
	p.notice.Kind, p.notice.RefundNo = gateway.RefundPending, "R2"
	_, another := g.QueryRefund(t.Context(), &gateway.Refund{OutTradeNo: "P1", RefundNo: "R1"})
	p.notice.RefundNo = ""
	_, ofRefund := g.Query(t.Context(), &gateway.Payment{OutTradeNo: "P1"})
	p.notice.Kind = gateway.Other
	_, ofNothing := g.Query(t.Context(), &gateway.Payment{OutTradeNo: "P1"})
	for _, err := range []error{other, refund, another, ofRefund, ofNothing} {
		var e *gateway.CallError
		if !errors.As(err, &e) || e.Outcome != gateway.Unknown {
			t.Error(err)
		}
	}
	p.err = gateway.ErrNoTrade
	if _, err := g.Query(t.Context(), &gateway.Payment{OutTradeNo: "P1"}); !errors.Is(err, gateway.ErrNoTrade) {
		t.Error(err)
	}
	const head = "# HELP ledgerd_payment_calls_total Calls to payment gateways by outcome: " +
		"ok, no_trade, not_sent, refused, unknown.\n# TYPE ledgerd_payment_calls_total counter\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(head+calls("close", 0, 0, 0)+calls("create", 0, 0, 0)+
		calls("query", 1, 1, 3)+calls("query_refund", 0, 0, 2)+calls("refund", 0, 0, 0)),
		"ledgerd_payment_calls_total"); err != nil {
		t.Error(err)
	}
}

func TestCredentialsThatCannotBeStoredAreUnknown(t *testing.T) {
	p := &plain{notice: gateway.Notice{ID: "c", Kind: gateway.Pending, OutTradeNo: "P1"}}
	g := with(t, p, nil).ByName["x"]
	for text, ok := range map[string]bool{"https://x.example/?a=1": true, "a\x00": false, "\xff": false,
		strings.Repeat("x", 33_000): false} {
		p.credential = gateway.Credential{"url": text}
		c, _, err := g.Create(t.Context(), &gateway.Payment{OutTradeNo: "P1"})
		var e *gateway.CallError
		if ok && (err != nil || c["url"] != text) || !ok && (!errors.As(err, &e) || e.Outcome != gateway.Unknown) {
			t.Errorf("%.10q: %v", text, err)
		}
	}
}

func calls(name string, ok, noTrade, unknown int) (text string) {
	for _, c := range []struct {
		outcome string
		n       int
	}{{"no_trade", noTrade}, {"not_sent", 0}, {"ok", ok}, {"refused", 0}, {"unknown", unknown}} {
		text += `ledgerd_payment_calls_total{call="` + name + `",gateway="x",outcome="` + c.outcome + `"} ` +
			string(rune('0'+c.n)) + "\n"
	}
	return text
}
