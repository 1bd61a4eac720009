package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/gateway/dialects"
)

// merchant has ledgerd's implementation of the gateways: it reads the simulator's settings, makes calls, and receives
// callbacks.
type merchant struct {
	*gateway.Set

	mu  sync.Mutex
	got []gateway.Notice
}

func newMerchant(t *testing.T, v *vendor) *merchant {
	t.Helper()
	f, err := gateway.ReadFile(filepath.Join(v.dir, "pay.yaml"), dialects.All)
	if err != nil {
		t.Fatal(err)
	}
	set, err := f.Build(&gateway.Env{Tenant: func(string) (int32, error) { return 7, nil }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	m, mux := &merchant{Set: set}, http.NewServeMux()
	take := func(_ context.Context, _ string, _ *gateway.Configured, n *gateway.Notice, _ gateway.Raw) (bool, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.got = append(m.got, *n)
		return true, nil
	}
	(&gateway.Handler{Set: set, Log: slog.New(slog.DiscardHandler), Take: take}).Register(mux)
	v.shop.Handler = mux
	return m
}

// about reports whether a notice of the payment was received, of one of the kinds.
func (m *merchant) about(number string, kinds ...gateway.Kind) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.ContainsFunc(m.got, func(n gateway.Notice) bool {
		return n.OutTradeNo == number && slices.Contains(kinds, n.Kind) && n.Foreign == ""
	})
}

func decimal(t *testing.T, text string) amount.Decimal {
	t.Helper()
	d, err := amount.ParseDecimal(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Tests every way to pay with ledgerd's implementation: a payment is created twice, opened by the payer's client, paid,
// notified, refunded, and its notices are forged.
func TestLedgerdPaysAndRefunds(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"public key", "certificates"} {
		v := newVendor(t, mode)
		m := newMerchant(t, v)
		for kind, d := range dialects.All {
			for _, way := range d.PayTypes {
				currency := "CNY"
				if kind == "stripe" {
					currency = "USD"
				}
				p := &gateway.Payment{OutTradeNo: "N_" + kind + way.Name, PayType: way.Name,
					Amount:   decimal(t, "12.30"),
					Currency: currency, Description: "tea 茶", Payer: "o1", PayerIP: "127.0.0.1"}
				m.pays(t, v, kind, p)
			}
		}
		if n := v.totals().Accepted; n != 0 {
			t.Errorf("%d forgeries were acknowledged", n)
		}
	}
}

func (m *merchant) pays(t *testing.T, v *vendor, kind string, p *gateway.Payment) {
	t.Helper()
	g := m.ByName[kind]
	_, first, err := g.Create(t.Context(), p)
	if err != nil || first.Kind != gateway.Pending {
		t.Fatalf("%s: %+v, %v", p.OutTradeNo, first, err)
	}
	credential, _, err := g.Create(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	v.opens(kind, credential)
	v.act(kind, p.OutTradeNo, "pay")
	v.quiet()
	paid, err := g.Query(t.Context(), p)
	if err != nil || paid.Kind != gateway.Paid || paid.Foreign != "" || !m.about(p.OutTradeNo, gateway.Paid) {
		t.Errorf("%s: %+v, %v", p.OutTradeNo, paid, err)
	}
	p.TransactionID = paid.TransactionID
	if n, err := g.Close(t.Context(), p); err != nil || n.Kind != gateway.Paid {
		t.Errorf("%s: closed: %+v, %v", p.OutTradeNo, n, err)
	}
	r := &gateway.Refund{RefundNo: "R_" + p.OutTradeNo, OutTradeNo: p.OutTradeNo, TransactionID: p.TransactionID,
		Amount: decimal(t, "2.30"), Paid: p.Amount, Currency: p.Currency, Reason: "broken"}
	for range 2 {
		n, err := g.Refund(t.Context(), r)
		if err != nil {
			t.Errorf("%s: %v", r.RefundNo, err)
		}
		r.GatewayRefundID = n.GatewayRefundID
		v.quiet()
	}
	// Alipay's notice has the sum of all refunds, so that only a query returns the amount of this one.
	if n, err := g.QueryRefund(t.Context(), r); err != nil || n.Kind != gateway.Refunded ||
		!m.about(p.OutTradeNo, gateway.Refunded, gateway.RefundPending) {
		t.Errorf("%s: %+v, %v", r.RefundNo, n, err)
	}
	if got := v.money(kind, p.OutTradeNo, p.Currency); got != "12.30-2.30 in 1" {
		t.Errorf("%s: %s", p.OutTradeNo, got)
	}
	for _, how := range book.Forgeries {
		if kind == "alipay" && (how == book.Old || how == book.Future) {
			continue // Alipay has no time limit for signatures
		}
		a := tell[book.Attempt](v, "POST", "forge/"+kind+"/"+p.OutTradeNo, map[string]string{"how": string(how)})
		if want := map[bool]int{true: 401, false: 403}[kind == "wechat"]; a.Status != want || a.Acknowledged {
			t.Errorf("%s, %s: %+v", p.OutTradeNo, how, a)
		}
	}
}

// opens acts as the payer's client.
func (v *vendor) opens(kind string, credential map[string]string) {
	v.t.Helper()
	switch {
	case credential["form_url"] != "":
		u, err := url.Parse(credential["form_url"])
		if err != nil {
			v.t.Fatal(err)
		}
		if a := v.must("GET", u.RequestURI(), "", nil); a.StatusCode != http.StatusOK {
			v.t.Fatalf("%s", a.body)
		}
	case credential["order_string"] != "":
		if a := v.must("POST", "/gateway.do", credential["order_string"], formType); a.StatusCode != http.StatusOK {
			v.t.Fatalf("%s", a.body)
		}
	default:
		tell[*book.Payment](v, "POST", "open/"+kind, credential)
	}
}

// Notices of money name another merchant, application or mode, and another amount or currency.
func TestLedgerdSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	m := newMerchant(t, v)
	for kind, wrongs := range map[string][]string{"stripe": {"seller", "mode", "amount", "currency"},
		"alipay": {"seller", "app", "amount"}, "wechat": {"seller", "app", "amount", "currency"},
		"standard": {"seller", "amount", "currency"}} {
		for _, wrong := range wrongs {
			p := &gateway.Payment{OutTradeNo: "N_" + kind + wrong, Amount: decimal(t, "12.30"), Currency: "CNY",
				Description: "tea"}
			v.plan(p.OutTradeNo, book.Plan{Wrong: []string{wrong}})
			credential, _, err := m.ByName[kind].Create(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			v.opens(kind, credential)
			v.act(kind, p.OutTradeNo, "pay")
			v.quiet()
			m.mu.Lock()
			i := slices.IndexFunc(m.got, func(n gateway.Notice) bool {
				return n.OutTradeNo == p.OutTradeNo &&
					n.Kind == gateway.Paid
			})
			if i < 0 {
				t.Fatalf("%s: no notice", p.OutTradeNo)
			}
			n := m.got[i]
			m.mu.Unlock()
			seen := map[string]bool{"seller": n.Foreign != "", "app": n.Foreign != "", "mode": n.Foreign != "",
				"amount": n.Amount.String() == "12.29", "currency": n.Currency == "USD"}
			if !seen[wrong] {
				t.Errorf("%s, %s: %+v", kind, wrong, n)
			}
		}
	}
}

// After a forged answer, or none, the outcome is unknown to ledgerd, which asks again.
func TestLedgerdDoesNotTrustForgedAnswers(t *testing.T) {
	t.Parallel()
	v := newVendor(t)
	m := newMerchant(t, v)
	for kind, faults := range map[string][]string{"stripe": {book.Lost, book.ErrorAfter, book.Busy},
		"alipay":   {book.Lost, book.ErrorAfter, book.BadSign, book.NoSign},
		"standard": {book.Lost, book.ErrorAfter, book.Busy},
		"wechat":   {book.Lost, book.ErrorAfter, book.BadSign, book.NoSign, book.ProbeSign, book.Busy}} {
		for _, do := range faults {
			p := &gateway.Payment{OutTradeNo: "N_" + kind + do, Amount: decimal(t, "12.30"), Currency: "CNY",
				Description: "tea"}
			if kind == "alipay" {
				p.PayType = "precreate"
			}
			v.plan(p.OutTradeNo, book.Plan{API: map[string]book.Fault{"create": {Do: do}}})
			_, _, err := m.ByName[kind].Create(t.Context(), p)
			var call *gateway.CallError
			if !errors.As(err, &call) || call.Outcome == gateway.Refused ||
				(call.Outcome == gateway.NotSent) != (do == book.Busy) {
				t.Errorf("%s, %s: %v", kind, do, err)
			}
			if _, _, err := m.ByName[kind].Create(t.Context(), p); err != nil {
				t.Errorf("%s, %s: again: %v", kind, do, err)
			}
			if n := len(tell[[]book.Payment](v, "GET", "payments?number="+p.OutTradeNo, nil)); n != 1 {
				t.Errorf("%s, %s: %d payments", kind, do, n)
			}
		}
	}
}
