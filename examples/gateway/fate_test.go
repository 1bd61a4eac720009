package main

import (
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

// An answer is lost, late or an error: the call takes effect or not, as planned, and the next call shows which.
func TestCallsGoWrongAsPlanned(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	for do, want := range map[string]struct {
		status int // 0: the connection broke
		made   bool
	}{book.Lost: {0, true}, book.Drop: {0, false}, book.Error: {500, false}, book.ErrorAfter: {500, true},
		book.Busy: {429, false}, book.Slow: {200, true}} {
		number := "N-" + do
		v.plan(number, book.Plan{API: map[string]book.Fault{"create": {Do: do,
			After: book.Duration(time.Millisecond)}}})
		a, err := v.standard("create", `{"out_trade_no":"`+number+`","amount":"12.30","currency":"EUR"}`)
		status := 0
		if err == nil {
			status = a.StatusCode
		}
		if made := v.state(number) != ""; status != want.status || made != want.made {
			t.Errorf("%s: %d, made: %v", do, status, made)
		}
		v.order(number) // the fault happens once
	}
	v.plan("N-hang", book.Plan{API: map[string]book.Fault{"create": {Do: book.Hang}}})
	body := `{"out_trade_no":"N-hang","amount":"12.30","currency":"EUR"}`
	r, err := http.NewRequestWithContext(t.Context(), "POST", v.url+"/standard/create", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = v.standardHeader(body, time.Now())
	if a, err := (&http.Client{Timeout: 200 * time.Millisecond}).Do(r); err == nil ||
		v.state("N-hang") != "payment.pending" {
		t.Errorf("hang: %v, %v", a, err)
	}
	if calls := tell[map[string]int](v, "GET", "calls", nil); calls["standard/create/N-lost"] != 2 {
		t.Errorf("%v", calls)
	}
}

func TestAnswersAreForgedAsPlanned(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.wechat("POST", "/v3/pay/transactions/native", v.wechatOrder("W00001", ""))
	path := "/v3/pay/transactions/out-trade-no/W00001?mchid=" + v.keys.WeChat.MchID
	for do, header := range map[string]string{book.BadSign: "", book.NoSign: "",
		book.ProbeSign: "WECHATPAY/SIGNTEST/"} {
		v.plan("W00001", book.Plan{API: map[string]book.Fault{"query": {Do: do, Times: -1}}})
		a := v.must("GET", path, "", v.wechatHeader("GET", path, "", time.Now()))
		if v.verifyWechat(a.Header, a.body) || !strings.HasPrefix(a.Header.Get("Wechatpay-Signature"), header) {
			t.Errorf("%s: %v", do, a.Header)
		}
	}
}

func TestThePayerPaysSomethingElse(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	for number, c := range map[string]struct {
		plan book.Plan
		want string
	}{"amount": {book.Plan{Wrong: []string{"amount"}}, "EUR 12.29"}, "exact": {book.Plan{Amount: "99"}, "EUR 99.00"},
		"currency": {book.Plan{Wrong: []string{"currency"}}, "USD 12.30"},
		"second":   {book.Plan{Second: true}, "EUR 24.60"}} {
		c.plan.Payer = "pay"
		v.plan(number, c.plan)
		v.order(number)
		v.quiet()
		currency, taken, _ := strings.Cut(c.want, " ")
		if got := v.totals().Numbers["standard/"+number][currency]; got == nil || got.Taken != taken {
			t.Errorf("%s: %+v", number, v.totals().Numbers["standard/"+number])
		}
	}
	v.plan("seller", book.Plan{Payer: "pay", Wrong: []string{"seller"}})
	v.order("seller")
	v.quiet()
	if got := v.totals().Numbers["standard/seller"]["EUR"]; got.Foreign != "12.30" || got.Taken != "12.30" {
		t.Errorf("%+v", got)
	}
	last := v.shop.callbacks()
	if body := string(last[len(last)-1].body); !strings.Contains(body, `"another-shop"`) {
		t.Error(body)
	}
}

func TestNoticesGoAstrayAsPlanned(t *testing.T) {
	t.Parallel()
	t.Run("never", func(t *testing.T) {
		v := newVendor(t)
		v.plan("N1", book.Plan{Payer: "pay", Callback: "never"})
		v.order("N1")
		v.quiet()
		if n := len(v.shop.callbacks()); n != 0 || v.state("N1") != "payment.paid" {
			t.Errorf("%d callbacks, %s", n, v.state("N1"))
		}
	})
	t.Run("before the answer", func(t *testing.T) {
		v := newVendor(t)
		v.plan("N1", book.Plan{Payer: "pending_then_pay", BeforeAnswer: true, After: book.Duration(time.Hour)})
		v.order("N1")
		if got := v.shop.types(t); !slices.Contains(got, "payment.paid") || len(got) != 2 {
			t.Errorf("%v", got)
		}
	})
	t.Run("twice at once, and twice more", func(t *testing.T) {
		v := newVendor(t)
		v.plan("N1", book.Plan{Payer: "pay", Copies: 1, Repeats: 2})
		v.order("N1")
		v.quiet()
		got := v.shop.callbacks()
		if len(got) != 4 || got[0].header.Get("Webhook-Id") != got[3].header.Get("Webhook-Id") {
			t.Errorf("%d callbacks", len(got))
		}
	})
	t.Run("out of order", func(t *testing.T) {
		v := newVendor(t)
		v.plan("N1", book.Plan{Payer: "decline_then_pay", Hold: 2})
		v.order("N1")
		v.quiet()
		if got := v.shop.types(t); !slices.Equal(got, []string{"payment.paid", "payment.declined"}) {
			t.Errorf("%v", got)
		}
	})
	t.Run("held", func(t *testing.T) {
		v := newVendor(t)
		v.plan("N1", book.Plan{Payer: "pay", Hold: -1})
		v.order("N1")
		v.quiet()
		before := len(v.shop.callbacks())
		tell[map[string]int](v, "POST", "release", map[string]string{"number": "N1"})
		v.quiet()
		if after := len(v.shop.callbacks()); before != 0 || after != 1 {
			t.Errorf("%d, %d", before, after)
		}
	})
	t.Run("late", func(t *testing.T) {
		v := newVendor(t)
		v.plan("N1", book.Plan{Payer: "pay", Late: book.Duration(30 * time.Millisecond)})
		v.order("N1")
		v.quiet()
		if n := tell[[]book.Notice](v, "GET", "notices?number=N1",
			nil)[0]; n.Attempts[0].At.Sub(n.MadeAt) < 30*time.Millisecond {
			t.Errorf("%+v", n)
		}
	})
}

// A notice is repeated by the vendor's schedule, and given up at its end.
func TestNoticesAreRepeatedAndGivenUp(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.shop.answers(func(_ callback, n int) (int, string) { return map[bool]int{true: 500, false: 204}[n < 3], "" })
	v.order("N1")
	v.act("standard", "N1", "pay")
	v.quiet()
	v.shop.answers(func(callback, int) (int, string) { return 302, "" })
	v.order("N2")
	v.act("standard", "N2", "pay")
	v.quiet()
	all := tell[[]book.Notice](v, "GET", "notices", nil)
	if first, second := all[0], all[1]; len(first.Attempts) != 4 || first.GaveUp || len(second.Attempts) != 10 ||
		!second.GaveUp {
		t.Errorf("%d and %d attempts", len(all[0].Attempts), len(all[1].Attempts))
	}
}

// A shop that acknowledges everything acknowledges forgeries too, and the gateway counts them.
func TestForgeriesAreCounted(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.plan("N1", book.Plan{Payer: "pay", Forge: []string{"key", "old"}})
	v.order("N1")
	v.quiet()
	if got := v.totals().Accepted; got != 1 {
		t.Errorf("%d notices with accepted forgeries", got)
	}
	v.shop.answers(func(callback, int) (int, string) { return 403, "" })
	v.order("N2")
	a := tell[book.Attempt](v, "POST", "forge/standard/N2", map[string]string{"how": "key"})
	if a.Status != 403 || a.Acknowledged || v.totals().Accepted != 1 || v.state("N2") != "payment.pending" {
		t.Errorf("%+v", a)
	}
}

// No verifier accepts any forgery of any dialect.
func TestForgeriesAreForged(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.wechat("POST", "/v3/pay/transactions/native", v.wechatOrder("W00001", ""))
	v.act("wechat", "W00001", "pay")
	v.quiet()
	for _, how := range book.Forgeries {
		if how == book.Old || how == book.Future {
			continue // validly signed, at another time
		}
		tell[book.Attempt](v, "POST", "forge/wechat/W00001", map[string]string{"how": string(how)})
		all := v.shop.callbacks()
		if c := all[len(all)-1]; v.verifyWechat(c.header, c.body) {
			t.Errorf("%s is verified", how)
		}
	}
	if n := len(v.shop.callbacks()); n != 6 {
		t.Errorf("%d callbacks", n)
	}
}

func TestRefundsFailAsPlanned(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	refund := `{"out_trade_no":"N1","refund_no":"R1","amount":"12.30","currency":"EUR"}`
	v.plan("N1", book.Plan{Payer: "pay", Refund: "pending_then_fail", After: book.Duration(100 * time.Millisecond)})
	v.order("N1")
	v.quiet()
	if a, err := v.standard("refund", refund); err != nil || a.json(t)["type"] != "refund.pending" {
		t.Errorf("%v %s", err, a.body)
	}
	v.quiet()
	if got := v.shop.types(t); !slices.Equal(got, []string{"payment.paid", "refund.pending", "refund.failed"}) {
		t.Errorf("%v", got)
	}
	v.plan("N1", book.Plan{Refund: "abnormal"})
	if _, err := v.standard("refund", strings.Replace(refund, "R1", "R2", 1)); err != nil {
		t.Fatal(err)
	}
	v.quiet()
	if got := v.totals().Numbers["standard/N1"]["EUR"]; got.GivingBack != "12.30" || got.GivenBack != "0.00" {
		t.Errorf("%+v", got)
	}
	tell[book.Refund](v, "POST", "refunds/standard/R2", map[string]string{"do": "succeed"})
	if got := v.money("standard", "N1", "EUR"); got != "12.30-12.30 in 1" {
		t.Error(got)
	}
	if a := v.must("POST", "/control/refunds/standard/R1", `{"do":"succeed"}`,
		http.Header{"Content-Type": {"application/json"}}); a.StatusCode != 409 {
		t.Errorf("more was given back than came: %s", a.body)
	}
}

func TestAMixIsDrawnByNumber(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	tell[book.Plans](v, "PUT", "plans", book.Plans{Seed: 3,
		Mix: []book.Weighted{{Weight: 1, Plan: book.Plan{Payer: "pay"}},
			{Weight: 1, Plan: book.Plan{Payer: "decline"}}}})
	for _, n := range strings.Split("abcdefghijklmnop", "") {
		v.order(n)
	}
	v.quiet()
	states := map[string]int{}
	for _, n := range strings.Split("abcdefghijklmnop", "") {
		states[v.state(n)]++
	}
	if states["payment.paid"] == 0 || states["payment.declined"] == 0 ||
		states["payment.paid"]+states["payment.declined"] != 16 {
		t.Errorf("%v", states)
	}
	a := v.must("PUT", "/control/plans", `{"default":{"payer":"dance"}}`,
		http.Header{"Content-Type": {"application/json"}})
	if a.StatusCode != 400 || !strings.Contains(string(a.body), "decline_then_pay") {
		t.Errorf("%s", a.body)
	}
	if a := v.must("PUT", "/control/plans", `{}`, http.Header{"Content-Type": {"text/plain"}}); a.StatusCode != 400 {
		t.Errorf("a page of another site could send this: %s", a.body)
	}
}

// program starts the simulator in a process of its own.
func (v *vendor) program(address string) *exec.Cmd {
	v.t.Helper()
	c := exec.Command(os.Args[0], "-listen", address, "-dir", v.dir, "-notify-url", v.shop.url, "-speed", "100")
	c.Env = append(os.Environ(), "GATEWAY_PROGRAM=1")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	v.ready(out)
	return c
}

// Payments, plans, scripts of payers and pending notices survive a kill of the process.
func TestItOutlastsAKill(t *testing.T) {
	t.Parallel()
	v := &vendor{t: t, dir: t.TempDir(), shop: newShop(t)}
	copyKeys(t, v.dir)
	first := v.program("127.0.0.1:0")
	v.shop.answers(func(callback, int) (int, string) { return 500, "" })
	v.plan("N2", book.Plan{Payer: "pay", After: book.Duration(300 * time.Millisecond)})
	v.order("N1")
	v.order("N2")
	v.order("N3")
	made := v.stripe("POST", "/v1/payment_intents", intentForm+"S1", "pay_S1").json(t)
	v.act("standard", "N1", "pay")
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	v.shop.answers(func(callback, int) (int, string) { return 200, "" })
	v.program(strings.TrimPrefix(v.url, "http://"))
	v.quiet()
	if one, two, three := v.state("N1"), v.state("N2"), v.state("N3"); one != "payment.paid" || two != "payment.paid" ||
		three != "payment.pending" {
		t.Errorf("%s, %s, %s", one, two, three)
	}
	for _, n := range tell[[]book.Notice](v, "GET", "notices", nil) {
		if n.AcknowledgedAt.IsZero() {
			t.Errorf("%+v", n)
		}
	}
	if again := v.stripe("POST", "/v1/payment_intents", intentForm+"S1", "pay_S1").json(t); again["id"] != made["id"] {
		t.Errorf("the key made another payment: %v", again)
	}
	if got := v.totals().Currencies["EUR"]; got.Taken != "24.60" {
		t.Errorf("%+v", got)
	}
}

func TestThePageHasTheButtons(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	v.order("N1")
	if a := v.must("GET", "/", "", nil); !strings.Contains(string(a.body),
		`data-to="/control/payments/standard/N1" data-do="pay"`) {
		t.Errorf("%s", a.body)
	}
}

// An expired payment is closed, and can only be paid by force.
func TestPaymentsExpire(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	body := `{"out_trade_no":"N1","amount":"12.30","currency":"EUR","expire_time":"2020-01-01T00:00:00Z"}`
	if _, err := v.standard("create", body); err != nil {
		t.Fatal(err)
	}
	if got := v.state("N1"); got != "payment.closed" {
		t.Error(got)
	}
	json := http.Header{"Content-Type": {"application/json"}}
	if a := v.must("POST", "/control/payments/standard/N1", `{"do":"pay"}`, json); a.StatusCode != 409 {
		t.Errorf("%s", a.body)
	}
	if a := v.must("POST", "/control/payments/standard/N1", `{"do":"pay","force":true}`, json); a.StatusCode != 200 {
		t.Errorf("%s", a.body)
	}
	if got := v.money("standard", "N1", "EUR"); got != "12.30-0.00 in 1" {
		t.Error(got)
	}
}
