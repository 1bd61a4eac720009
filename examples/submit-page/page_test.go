// The build tag excludes the module of the browser driver from a plain go vet ./... and go test ./...; make test and
// make lint set it.

//go:build browser

package main

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-rod/rod"
	"github.com/go-rod/rod/lib/launcher"
	"github.com/go-rod/rod/lib/proto"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// shop is the page and the ledgerd that it calls.
type shop struct {
	page, api string
	db        *pgxpool.Pool
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
	s, err := server.Start(t.Context(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0",
		Origins: []string{origin},
		Anyone:  &access.Identity{Tenant: tenant, Principal: "shop", Role: access.Admin},
		Log:     slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	pages.Config.Handler = page("http://" + s.Addr())
	pages.Start()
	t.Cleanup(pages.Close)
	c := client.New("http://" + s.Addr())
	if _, err := c.Ledger.CreateAssets(t.Context(),
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "CNY", Scale: 2}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ledger.CreateAccounts(t.Context(), &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "world", Asset: "CNY", Unbounded: true}, {Code: "user:1001:wallet",
			Asset: "CNY"}, {Code: "merchant:shop", Asset: "CNY"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Ledger.Transfer(t.Context(), &ledgerv1.TransferRequest{BizNo: "top-up",
		Postings: []*ledgerv1.Posting{{From: "world", To: "user:1001:wallet", Asset: "CNY",
			Amount: "40.00"}}}); err != nil {
		t.Fatal(err)
	}
	return &shop{origin, "http://" + s.Addr(), super}
}

// paid returns the number of transfers, without the top-up.
func (s *shop) paid(t *testing.T) (n int) {
	t.Helper()
	if err := s.db.QueryRow(t.Context(),
		"select count(*) from ledger_transfers where biz_no like 'order-%'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// tab is an empty page in a real browser.
type tab struct {
	t    *testing.T
	page *rod.Page
}

func newTab(t *testing.T) *tab {
	t.Helper()
	program := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		t.Skip("SKIPPED, NOT TESTED: chromium is not installed (apt-get install chromium)")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	// Leakless would unpack and run its own program.
	launch := launcher.New().Context(ctx).Bin(program).Leakless(false).HeadlessNew(true).NoSandbox(true).
		UserDataDir(t.TempDir())
	url, err := launch.Launch()
	if err != nil {
		t.Fatal(err)
	}
	browser := rod.New().Context(ctx).ControlURL(url)
	t.Cleanup(func() {
		if browser.Close() != nil {
			launch.Kill()
		}
		launch.Cleanup()
	})
	if err := browser.Connect(); err != nil {
		t.Fatal(err)
	}
	page, err := browser.Page(proto.TargetCreateTarget{})
	if err != nil {
		t.Fatal(err)
	}
	return &tab{t, page}
}

func (p *tab) open(url string) {
	p.t.Helper()
	if err := p.page.Navigate(url); err != nil {
		p.t.Fatal(err)
	}
	p.until(ready)
}

// click waits until the element is clickable.
func (p *tab) click(selector string) {
	p.t.Helper()
	element, err := p.page.Element(selector)
	if err == nil {
		err = element.Click(proto.InputMouseButtonLeft, 1)
	}
	if err != nil {
		p.t.Fatalf("click %s: %v", selector, err)
	}
}

// until waits for an expression to become true.
func (p *tab) until(expression string) {
	p.t.Helper()
	if err := p.page.Wait(rod.Eval("() => (" + expression + ")")); err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
}

// text evaluates an expression.
func (p *tab) text(expression string) string {
	p.t.Helper()
	value, err := p.page.Eval("() => (" + expression + ")")
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return value.Value.Str()
}

const (
	state = `(document.getElementById("state")?.textContent ?? "")` // the page may still be loading
	ready = state + ` === "Ready."`
	// clickTen clicks ten times before the page can do anything else. It returns whether the button is still
	// enabled before any other event, such as the answer.
	clickTen = `(() => { for (let i = 0; i < 10; i++) document.getElementById("pay").click();
		return document.getElementById("pay").disabled ? "disabled" : "alive"; })()`
	settled = `running === 0 && ` + state + `.startsWith("Paid: ")`
)

func TestTenClicksAreOnePayment(t *testing.T) {
	t.Parallel()
	s, p := newShop(t), newTab(t)
	for i, guard := range []struct{ query, button string }{{"", "disabled"}, {"?unguarded", "alive"}} {
		p.open(s.page + "/" + guard.query)
		button := p.text(clickTen)
		p.until(settled)
		if n := s.paid(t); n != i+1 || button != guard.button {
			t.Errorf("%q: %d transfers, %s; the button is %s", guard.query, n, p.text(state), button)
		}
	}
}

// A deliberate second purchase from an open page uses the token that came with the answer.
func TestAnOpenPageBuysAgain(t *testing.T) {
	t.Parallel()
	s, p := newShop(t), newTab(t)
	p.open(s.page)
	p.click("#pay")
	p.until(settled)
	next := p.text("token")
	p.click("#again")
	p.until(ready)
	p.click("#pay")
	p.until(settled)
	if n := s.paid(t); n != 2 || !strings.HasPrefix(next, "st_") || next == p.text("token") {
		t.Errorf("%d transfers; the next token was %q", n, next)
	}
	var issued int
	if err := s.db.QueryRow(t.Context(), "select count(*) from token_submit_tokens").Scan(&issued); err != nil ||
		issued != 3 {
		t.Errorf("%d tokens were issued, %v", issued, err)
	}
}

func TestAnExpiredTokenIsReplacedSilently(t *testing.T) {
	t.Parallel()
	s, p := newShop(t), newTab(t)
	p.open(s.page)
	if _, err := s.db.Exec(t.Context(), "update token_submit_tokens set issued_at = issued_at - interval '10 min', "+
		"expires_at = expires_at - interval '10 min'"); err != nil {
		t.Fatal(err)
	}
	p.click("#pay")
	p.until(settled)
	if n := s.paid(t); n != 1 {
		t.Errorf("%d transfers", n)
	}
}

func TestARefusalIsShownAndThePageStaysUsable(t *testing.T) {
	t.Parallel()
	s, p := newShop(t), newTab(t)
	p.open(s.page)
	for range 3 { // of 40.00 each
		p.click("#pay")
		p.until(settled)
		p.click("#again")
		p.until(ready)
	}
	p.click("#pay")
	p.until(`running === 0 && ` + state + `.startsWith("Not paid: ")`)
	p.until(`!document.getElementById("pay").disabled`)
	if n := s.paid(t); n != 3 {
		t.Errorf("%d transfers, %s", n, p.text(state))
	}
}

// Two buyers click the page of a sale of one phone, ten times each, at the same moment: one order.
func TestTwoBrowsersClickOneSale(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	c := client.New(s.api)
	defer c.Close()
	if _, err := c.Stock.PutItem(t.Context(), &stockv1.PutItemRequest{Item: "phone"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stock.Restock(t.Context(),
		&stockv1.RestockRequest{Item: "phone", ChangeNo: "1", Quantity: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Sales.PutSale(t.Context(), &salev1.PutSaleRequest{Sale: &salev1.Sale{Sale: "phones", Item: "phone",
		Gives: &salev1.Sale_Order{Order: &salev1.SaleOrder{Asset: "CNY", Amount: "1999"}}}}); err != nil {
		t.Fatal(err)
	}
	tabs := map[string]*tab{"ada": newTab(t), "bob": newTab(t)}
	for buyer, p := range tabs {
		p.open(s.page + "/sale?buyer=" + buyer)
	}
	var both sync.WaitGroup
	for _, p := range tabs {
		both.Go(func() {
			_, _ = p.page.Eval(`() => { for (let i = 0; i < 10; i++) document.getElementById("grab").click(); }`)
		})
	}
	both.Wait()
	says := map[string]int{}
	for _, p := range tabs {
		p.until(`running === 0 && ` + state + ` !== "Ready."`)
		p.click("#grab") // a definite answer, whichever of the ten came last
		p.until(`running === 0 && ` + state + ` !== "" && document.getElementById("left").textContent === "0 left"`)
		says[strings.Split(p.text(state), ":")[0]]++
	}
	orders := 0
	if err := s.db.QueryRow(t.Context(), "select count(*) from order_orders").Scan(&orders); err != nil || orders != 1 {
		t.Errorf("%d orders, %v", orders, err)
	}
	if says["Yours already"] != 1 || says["Sold out."] != 1 {
		t.Errorf("the pages say %v", says)
	}
}

// All answers of a round of retries are lost, although the first attempt paid. The next click retrieves that
// payment instead of making another one.
func TestAPaymentWhoseAnswerIsLostIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	for _, query := range []string{"", "?unguarded"} {
		s, p := newShop(t), newTab(t)
		p.open(s.page + "/" + query)
		p.text(loseAnswers)
		p.click("#pay")
		p.until(`running === 0 && ` + state + `.startsWith("Not known")`)
		first := p.text("lost.join()")
		p.text("window.fetch = whole")
		p.click("#pay")
		p.until(settled)
		if n := s.paid(t); n != 1 || first != "200,200,200" {
			t.Errorf("%q: %d transfers; lost were %s", query, n, first)
		}
	}
}

// loseAnswers forwards requests and drops the answers.
const loseAnswers = `(() => {
	window.whole = window.fetch;
	window.lost = [];
	window.fetch = async (...a) => { lost.push((await whole(...a)).status); throw new TypeError("lost"); };
})()`
