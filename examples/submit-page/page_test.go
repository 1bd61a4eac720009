package main

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shop is the page, and the ledgerd that it calls.
type shop struct {
	page string
	db   *pgxpool.Pool
}

func newShop(t *testing.T) *shop {
	t.Helper()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	tenant, err := access.EnsureTenant(t.Context(), super, "shop")
	if err != nil {
		t.Fatal(err)
	}
	pages := httptest.NewUnstartedServer(nil)
	origin := "http://" + pages.Listener.Addr().String()
	s, err := server.Start(t.Context(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0", Origins: []string{origin},
		Anyone: &access.Identity{Tenant: tenant, Principal: "shop", Role: access.Admin}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	pages.Config.Handler = page("http://" + s.Addr())
	pages.Start()
	t.Cleanup(pages.Close)
	c := client.New("http://" + s.Addr())
	if _, err := c.Ledger.CreateAssets(t.Context(), &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ledger.CreateAccounts(t.Context(), &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "world", Asset: "CNY", Unbounded: true}, {Code: "user:1001:wallet", Asset: "CNY"}, {Code: "merchant:shop", Asset: "CNY"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ledger.Transfer(t.Context(), &ledgerv1.TransferRequest{BizNo: "top-up",
		Postings: []*ledgerv1.Posting{{From: "world", To: "user:1001:wallet", Asset: "CNY", Amount: "40.00"}}}); err != nil {
		t.Fatal(err)
	}
	return &shop{origin, super}
}

// paid is how many transfers there are besides the top-up.
func (s *shop) paid(t *testing.T) (n int) {
	t.Helper()
	if err := s.db.QueryRow(t.Context(), "select count(*) from ledger_transfers where biz_no like 'order-%'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// browser is a real one.
func browser(t *testing.T) context.Context {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("SKIPPED, NOT TESTED: no chromium is here (apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	ctx, endAllocator := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, endBrowser := chromedp.NewContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	t.Cleanup(func() { cancel(); endBrowser(); endAllocator() })
	return ctx
}

// until waits for an expression to be true.
func until(expression string) chromedp.Action[chromedp.Void] {
	return chromedp.Poll[chromedp.Void](expression)
}

func do(t *testing.T, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	if err := chromedp.Do(ctx, steps...); err != nil {
		t.Fatal(err)
	}
}

// is tells what an expression comes to.
func is[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

const (
	ready = `document.getElementById("state").textContent === "Ready."`
	// clickTen clicks as a finger cannot: ten times before the page gets to do anything else.
	// It tells whether the button can still be clicked before anything else happens, such as the answer.
	clickTen = `for (let i = 0; i < 10; i++) document.getElementById("pay").click(); !document.getElementById("pay").disabled`
	settled  = `running === 0 && document.getElementById("state").textContent.startsWith("Paid: ")`
)

const state = `document.getElementById("state").textContent`

func TestTenClicksAreOnePayment(t *testing.T) {
	t.Parallel()
	s, ctx := newShop(t), browser(t)
	for i, query := range []string{"", "?unguarded"} { // with the help of the page, and without
		do(t, ctx, chromedp.Navigate(s.page+"/"+query), until(ready))
		alive := is[bool](t, ctx, clickTen)
		do(t, ctx, until(settled))
		if n := s.paid(t); n != i+1 || alive != (query != "") {
			t.Errorf("%q: %d transfers, %s; the button is alive: %v", query, n, is[string](t, ctx, state), alive)
		}
	}
}

// Bought on purpose, the open page pays again, with the token that the answer carried.
func TestAnOpenPageBuysAgain(t *testing.T) {
	t.Parallel()
	s, ctx := newShop(t), browser(t)
	do(t, ctx, chromedp.Navigate(s.page), until(ready), chromedp.Click("#pay"), until(settled))
	next := is[string](t, ctx, "token")
	do(t, ctx, chromedp.Click("#again"), until(ready), chromedp.Click("#pay"), until(settled))
	if n := s.paid(t); n != 2 || !strings.HasPrefix(next, "st_") || next == is[string](t, ctx, "token") {
		t.Errorf("%d transfers; the next token was %q", n, next)
	}
	var issued int
	if err := s.db.QueryRow(t.Context(), "select count(*) from token_submit_tokens").Scan(&issued); err != nil || issued != 3 {
		t.Errorf("%d tokens were issued, %v", issued, err)
	}
}

func TestAnExpiredTokenIsFetchedAnewWithoutAWord(t *testing.T) {
	t.Parallel()
	s, ctx := newShop(t), browser(t)
	do(t, ctx, chromedp.Navigate(s.page), until(ready))
	if _, err := s.db.Exec(t.Context(), "update token_submit_tokens set issued_at = issued_at - interval '10 min', expires_at = expires_at - interval '10 min'"); err != nil {
		t.Fatal(err)
	}
	do(t, ctx, chromedp.Click("#pay"), until(settled))
	if n := s.paid(t); n != 1 {
		t.Errorf("%d transfers", n)
	}
}

func TestARefusalIsShownAndThePageGoesOn(t *testing.T) {
	t.Parallel()
	s, ctx := newShop(t), browser(t)
	do(t, ctx, chromedp.Navigate(s.page), until(ready))
	for range 3 { // of 40.00
		do(t, ctx, chromedp.Click("#pay"), until(settled), chromedp.Click("#again"), until(ready))
	}
	do(t, ctx, chromedp.Click("#pay"), until(`running === 0 && `+state+`.startsWith("Not paid: ")`), until(`!document.getElementById("pay").disabled`))
	if n := s.paid(t); n != 3 {
		t.Errorf("%d transfers, %s", n, is[string](t, ctx, state))
	}
}

// The answers of a whole round of tries are lost, though the first one paid: nobody knows. The next click asks for
// that payment, and makes no other one.
func TestAPaymentWhoseAnswerIsLostIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?unguarded"} {
		s, ctx := newShop(t), browser(t)
		do(t, ctx, chromedp.Navigate(s.page+"/"+query), until(ready), chromedp.Evaluate[chromedp.Void](loseAnswers), chromedp.Click("#pay"),
			until(`running === 0 && `+state+`.startsWith("Not known")`))
		first := is[string](t, ctx, "lost.join()")
		do(t, ctx, chromedp.Evaluate[chromedp.Void](`window.fetch = whole`), chromedp.Click("#pay"), until(settled))
		if n := s.paid(t); n != 1 || first != "200,200,200" {
			t.Errorf("%q: %d transfers; lost were %s", query, n, first)
		}
	}
}

// loseAnswers lets requests through, and loses what comes back.
const loseAnswers = `var whole = window.fetch, lost = [];
	window.fetch = async (...a) => { lost.push((await whole(...a)).status); throw new TypeError("lost"); }`
