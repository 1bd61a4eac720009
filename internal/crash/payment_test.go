package crash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// LongEnv names the environment variable with the minimum duration of the load on payments.
const LongEnv = "LEDGERD_TEST_PAYMENTS_FOR"

// shop is a world with payment gateways: a simulator, a proxy for its callbacks, and a proxy for each server's calls.
type shop struct {
	*world
	sim   *simulator
	front *passage   // from the gateways to the servers
	gates []*passage // from a server to the gateways
}

// atGateways are the gateways, with the currency that buyers pay there.
var atGateways = []struct{ name, asset string }{{"stripe", "USD"}, {"alipay", "CNY"}, {"wechat", "CNY"},
	{"standard", "CNY"}}

func newShop(t *testing.T, db *pgtest.Durable) *shop {
	s := &shop{world: &world{t: t, db: db}}
	for range 2 {
		s.lines = append(s.lines, newLine(t, db.AppDSN))
	}
	s.front = newPassage(t, func() string { return s.url(rand.IntN(len(s.servers))) })
	s.sim = startSimulator(t, s.front.URL)
	s.args = sendingTexts(t)
	s.argsOf = func(int) []string {
		gate := newPassage(t, func() string { return s.sim.url })
		s.gates = append(s.gates, gate)
		return []string{"--pay", s.sim.settings(gate.URL)}
	}
	s.begin()
	c := s.once()
	defer c.Close()
	s.open(c)
	return s
}

// sendingTexts are the arguments of a server that sends text messages.
func sendingTexts(t *testing.T) []string {
	dir := t.TempDir()
	for name, text := range map[string]string{"master": strings.Repeat("A", 43) + "=", "notify.yaml": fmt.Sprintf(`
sms: [{kind: http, name: gateway, url: '%s', key_header: Idempotency-Key, json: {to: '{recipient}', say: '{text}'},
       allow_http: true}]
`, newGateway(t).URL)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--secrets-file", filepath.Join(dir, "master"), "--notify", filepath.Join(dir, "notify.yaml")}
}

// open creates the item on sale, the gateways, and the accounts of shop, wallet and gateways.
func (s *shop) open(c *client.Client) {
	ctx := context.Background()
	_, err := c.Ledger.CreateAssets(ctx, &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "USD",
		Scale: 2}}})
	accounts := []*ledgerv1.NewAccount{{Code: "world", Asset: "USD", Unbounded: true}}
	for _, asset := range []string{"CNY", "USD"} {
		accounts = append(accounts, &ledgerv1.NewAccount{Code: "shop", Asset: asset},
			&ledgerv1.NewAccount{Code: "wallet", Asset: asset})
		for _, g := range atGateways {
			accounts = append(accounts, &ledgerv1.NewAccount{Code: "at:" + g.name, Asset: asset, Unbounded: true},
				&ledgerv1.NewAccount{Code: "lost:" + g.name, Asset: asset})
		}
	}
	if err == nil {
		_, err = c.Ledger.CreateAccounts(ctx, &ledgerv1.CreateAccountsRequest{Accounts: accounts})
	}
	for _, asset := range []string{"CNY", "USD"} {
		r := transfer("wallet "+asset, "world", "wallet", "100000.00")
		if r.Postings[0].Asset = asset; err == nil {
			_, err = c.Ledger.Transfer(ctx, r)
		}
	}
	for _, g := range atGateways {
		if err == nil {
			_, err = c.Payments.PutGateway(ctx,
				&paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: g.name, Clearing: "at:" + g.name,
					Suspense: "lost:" + g.name, Payee: "shop"}})
		}
	}
	if err == nil {
		_, err = c.Stock.PutItem(ctx, &stockv1.PutItemRequest{Item: "goods", Segments: 4})
	}
	if err == nil {
		_, err = c.Stock.Restock(ctx, &stockv1.RestockRequest{Item: "goods", ChangeNo: "first", Quantity: 1_000_000})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// fate is a plan of the simulator: the behaviour of payer and gateway for one payment.
type fate map[string]any

func api(do ...string) map[string]any {
	faults := map[string]any{}
	for i := 0; i < len(do); i += 2 {
		faults[do[i]] = fate{"do": do[i+1]}
	}
	return faults
}

// pays is the default fate.
var pays = fate{"payer": "pay", "after": "50ms"}

// fates are plans, which payments get in turn.
var fates = []fate{
	pays,
	{"payer": "pay", "late": "1s"},
	{"payer": "pay", "copies": 2, "repeats": 2},
	{"payer": "pay", "before_answer": true},
	{"payer": "pending_then_pay", "hold": 2},
	{"payer": "pay", "wrong": []string{"amount"}},
	{"payer": "pay", "second": true},
	{"payer": "pay", "callback": "never"},
	{"payer": "decline"},
	{"payer": "decline_then_pay", "after": "100ms"},
	{"payer": "pay", "wrong": []string{"currency"}}, // invisible at Alipay, whose notices name no currency
	{}, // the payer never pays
	{"payer": "pay", "api": api("create", "lost", "query", "error_after", "refund", "lost")},
	{"payer": "pay", "api": api("create", "drop", "close", "lost", "refund", "error", "query_refund", "lost")},
	{"payer": "pay", "refund": "fail"},
	{"payer": "pay", "refund": "pending_then_fail", "after": "50ms"},
	{"payer": "pay", "refund": "abnormal_then_succeed", "after": "50ms"},
	{"payer": "pay", "wrong": []string{"seller"}, "forge": []string{"key", "tampered"}},
	{"payer": "pay", "callback": "never", "refund": "refuse", "api": api("query", "busy")},
}

// trip is one buyer's session: it submits a form, which creates an order, and then pays, cancels or abandons the order,
// or pays and requests refunds.
type trip struct {
	*visit
	shop           *shop
	i              int
	gateway, asset string
}

// buyer makes one trip after the other until stop.
func (s *shop) buyer(n int, stop <-chan struct{}) (all []*trip) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return all
		default:
		}
		g := atGateways[(n+i)%len(atGateways)]
		p := &trip{&visit{w: s.world, name: fmt.Sprintf("trip-%d-%d", n, i), facts: map[string]string{},
			outcomes: map[string]int{}},
			s, i, g.name, g.asset}
		all = append(all, p)
		if r := p.form(); (r.GetCoupon() == "" || p.coupon(r.GetCoupon())) && p.order(r) {
			f := fates[(n*5+i)%len(fates)]
			if wrong, ok := f["wrong"].([]string); ok && g.name == "alipay" && wrong[0] == "currency" {
				f = pays
			}
			p.run(f)
		}
	}
}

// form returns the request for an order. Some orders have a coupon, or pay a part from a balance.
func (p *trip) form() *orderv1.CreateOrderRequest {
	r := &orderv1.CreateOrderRequest{OrderNo: p.name, Subject: p.name, Asset: p.asset,
		Amount: fmt.Sprintf("%d.%02d", 2+rand.IntN(50), rand.IntN(100)),
		Lines:  []*orderv1.OrderLine{{Item: "goods", Quantity: 1 + rand.Int64N(3)}}, Reserve: true, Payee: "shop",
		PayWithin: durationpb.New(time.Hour),
		Messages: []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS,
			Recipient: fmt.Sprintf("+86138%08d", rand.IntN(1e8)), BusinessType: "order",
			Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: p.name}}}}}
	switch rand.IntN(6) {
	case 0:
		r.PayWithin = durationpb.New(time.Second)
	case 1:
		r.Machine = "simple_order"
	}
	if rand.IntN(3) == 0 {
		r.Balance = &orderv1.BalancePart{Account: "wallet", Amount: "0.50"}
	}
	if rand.IntN(3) == 0 {
		r.Coupon = p.name
	}
	return r
}

// order submits the form.
func (p *trip) order(r *orderv1.CreateOrderRequest) bool {
	token := ""
	for end := time.Now().Add(patience); token == "" && time.Now().Before(end); {
		token = p.w.issue()
	}
	_, ok := ask(p.visit, func(ctx context.Context, c *client.Client) (*orderv1.CreateOrderResponse, error) {
		return c.Orders.CreateOrder(client.WithSubmitToken(ctx, client.SubmitToken{Token: token}), r)
	})
	if !ok {
		p.w.t.Errorf("%s is not created: %v", p.name, p.outcomes)
	}
	return ok
}

func (p *trip) coupon(code string) bool {
	_, issued := ask(p.visit, func(ctx context.Context, c *client.Client) (*salev1.IssueCouponsResponse, error) {
		return c.Sales.IssueCoupons(ctx, &salev1.IssueCouponsRequest{Campaign: "trips", Codes: []string{code}})
	})
	_, claimed := ask(p.visit, func(ctx context.Context, c *client.Client) (*salev1.ClaimCouponResponse, error) {
		return c.Sales.ClaimCoupon(ctx, &salev1.ClaimCouponRequest{Code: code, Owner: p.name})
	})
	return issued && claimed
}

// number returns a payment's number in a form that all gateways accept.
func (p *trip) number(suffix string) string { return strings.ReplaceAll(p.name, "-", "_") + suffix }

// run pays the order, cancels it, or leaves it. If the fate is about refunds, run always pays and refunds.
func (p *trip) run(f fate) {
	refunds := f["refund"] != nil
	number := "" // generated by the service, with the default fate
	if refunds || rand.IntN(3) > 0 {
		number = p.number("A")
		p.shop.sim.plan(number, f)
	}
	end := rand.IntN(8)
	if refunds {
		end = 7
	}
	switch number = p.pay(number); end {
	case 0:
		p.cancel()
		return
	case 1:
		if p.cancel() && number != "" { // the payer pays nevertheless
			p.shop.sim.act(p.gateway, number, map[string]any{"do": "pay", "force": true})
		}
		return
	case 2: // leaves
		return
	}
	switch state := p.await(number); state {
	case paymentv1.PaymentState_PAYMENT_STATE_SUCCEEDED:
		p.facts["payment "+number] = "succeeded"
		p.refunds(number, refunds)
	case paymentv1.PaymentState_PAYMENT_STATE_SUSPENDED: // pays again, properly
		p.await(p.pay(p.number("B")))
	case paymentv1.PaymentState_PAYMENT_STATE_DECLINED:
		if rand.IntN(2) == 0 {
			p.shop.sim.act(p.gateway, number, map[string]any{"do": "pay"})
		}
	}
}

// pay creates a payment, and opens it as the payer's client.
func (p *trip) pay(number string) string {
	create := func(ctx context.Context, c *client.Client) (*paymentv1.CreatePaymentResponse, error) {
		return c.Payments.CreatePayment(ctx, &paymentv1.CreatePaymentRequest{OrderNo: p.name, Gateway: p.gateway,
			OutTradeNo: number})
	}
	first, ok := ask(p.visit, create)
	if !ok {
		return ""
	}
	made := first.GetPayment()
	if number == "" {
		if second, ok := ask(p.visit, create); ok && second.GetPayment().GetOutTradeNo() != made.GetOutTradeNo() {
			p.mustBeClosed(made.GetOutTradeNo(), second.GetPayment().GetOutTradeNo())
		}
	}
	number = made.GetOutTradeNo()
	for end := time.Now().Add(3 * time.Second); len(made.GetCredential()) == 0 && isOpen(made.GetState()) &&
		time.Now().Before(end); {
		<-time.After(50 * time.Millisecond)
		if now := p.read(number); now != nil {
			made = now
		}
	}
	if c := made.GetCredential(); len(c) > 0 {
		p.shop.sim.open(p.gateway, c)
	}
	return number
}

// mustBeClosed checks that the first of two payments is closed. A gateway closes it up to a second before the order
// expires, because expiry at gateways is rounded down to whole seconds.
func (p *trip) mustBeClosed(first, second string) {
	var now *paymentv1.Payment
	for end := time.Now().Add(patience); now == nil && time.Now().Before(end); {
		now = p.read(first)
	}
	if now.GetState() != paymentv1.PaymentState_PAYMENT_STATE_CLOSED {
		p.w.t.Errorf("%s has the payments %s, which is %v, and %s", p.name, first, now.GetState(), second)
	}
}

func isOpen(s paymentv1.PaymentState) bool {
	return s == paymentv1.PaymentState_PAYMENT_STATE_CREATED || s == paymentv1.PaymentState_PAYMENT_STATE_SUBMITTED
}

// read reads a payment, if a server answers.
func (p *trip) read(number string) *paymentv1.Payment {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := p.w.once()
	defer c.Close()
	res, err := c.Payments.GetPayment(ctx, &paymentv1.GetPaymentRequest{OutTradeNo: number})
	if err != nil {
		return nil
	}
	return res.GetPayment()
}

// await waits some seconds for the end of a payment, and sometimes calls AskGateway.
func (p *trip) await(number string) (state paymentv1.PaymentState) {
	if number == "" {
		return 0
	}
	begun := time.Now()
	for asked := rand.IntN(2) == 0; time.Since(begun) < 3*time.Second; <-time.After(100 * time.Millisecond) {
		if now := p.read(number); now != nil {
			if state = now.GetState(); !isOpen(state) {
				return state
			}
		}
		if !asked && time.Since(begun) > time.Second {
			asked = true
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			c := p.w.once()
			_, _ = c.Payments.AskGateway(ctx, &paymentv1.AskGatewayRequest{OutTradeNo: number})
			c.Close()
			cancel()
		}
	}
	return state
}

func (p *trip) cancel() bool {
	_, ok := ask(p.visit, func(ctx context.Context, c *client.Client) (*orderv1.CancelOrderResponse, error) {
		return c.Orders.CancelOrder(ctx, &orderv1.CancelOrderRequest{OrderNo: p.name})
	})
	if ok {
		p.facts["order "+p.name] = "cancelled"
	}
	return ok
}

// refunds refunds a part, all, a part and then the rest, or, unless must is set, nothing.
func (p *trip) refunds(number string, must bool) {
	amounts := [][]string{{"0.30"}, {""}, {"0.70", ""}, nil}
	if must {
		amounts = amounts[:3]
	}
	for n, amount := range amounts[rand.IntN(len(amounts))] {
		no := fmt.Sprintf("%s-R%d", p.name, n)
		if r, ok := ask(p.visit, func(ctx context.Context, c *client.Client) (*paymentv1.RefundPaymentResponse, error) {
			r := &paymentv1.RefundPaymentRequest{RefundNo: no, OutTradeNo: number}
			if amount != "" {
				r.Amount = &amount
			}
			return c.Payments.RefundPayment(ctx, r)
		}); ok && r.GetRefund().GetState() == paymentv1.RefundState_REFUND_STATE_SUCCEEDED {
			p.facts["refund "+no] = "succeeded"
		}
	}
}

// TestOrdersArePaidOnceDespiteFailures has buyers order, pay with all fates, cancel, and get refunds. Meanwhile
// servers, Postgres and the gateways are killed, connections are cut at COMMIT, and gateways do not answer. When no
// work is left, the database is compared with the gateways' own books.
func TestOrdersArePaidOnceDespiteFailures(t *testing.T) {
	t.Parallel()
	least := 12 * time.Second
	if text := os.Getenv(LongEnv); text != "" {
		var err error
		if least, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s := newShop(t, pgtest.NewDurable(t))
	s.sim.control("PUT", "plans", fate{"default": pays}, nil)
	stop := make(chan struct{})
	var load sync.WaitGroup
	var cuts atomic.Int32
	done := make([][]*trip, callers)
	for n := range done {
		load.Go(func() { done[n] = s.buyer(n, stop) })
	}
	load.Go(func() { s.cutAtRandom(stop, &cuts) })
	kills := s.strikeAtRandom(least)
	s.until("cuts", func() bool { return cuts.Load() > 5 })
	close(stop)
	load.Wait()
	all := slices.Concat(done...)
	t.Logf("%d trips, %d answers, %v, cut %d connections", len(all), s.decided.Load(), kills, cuts.Load())
	s.rest()
	s.judgeTrips(all)
}

// cutAtRandom cuts connections at COMMITs of trips.
func (s *shop) cutAtRandom(stop <-chan struct{}, cuts *atomic.Int32) {
	for i := 0; ; i++ {
		select {
		case <-s.lines[i%2].cutNext(cutAt(i/2%3), []string{"trip-", "trip_"}[i%2], func() {}):
			cuts.Add(1)
		case <-stop:
			return
		}
		<-time.After(200 * time.Millisecond)
	}
}

// strikeAtRandom kills processes and silences gateways, for some time, and then until all outcomes have occurred.
func (s *shop) strikeAtRandom(least time.Duration) (strikes map[string]int) {
	strikes = map[string]int{}
	begun, missing := time.Now(), "everything"
	for i := 0; time.Since(begun) < least || missing != "" && time.Since(begun) < patience; i++ {
		<-time.After(time.Duration(200+rand.IntN(700)) * time.Millisecond)
		switch i % 5 {
		case 0:
			strikes["postgres killed"]++
			s.db.Server.Kill()
			s.db.Restart(s.t)
		case 1:
			strikes["gateways killed"]++
			s.sim.kill()
			s.sim.start()
		case 2:
			strikes["gateways silent"]++
			s.sim.silence(time.Duration(300+rand.IntN(2000)) * time.Millisecond)
		default:
			strikes["server killed"]++
			n := i % 2
			s.servers[n].kill()
			s.servers[n].start(s.t)
		}
		if time.Since(begun) > least {
			missing = s.missing()
		}
	}
	if missing != "" {
		s.t.Errorf("the test exercised too little: %s", missing)
	}
	return strikes
}

// missing names the outcomes that the test needs and that have not occurred.
func (s *shop) missing() string {
	return query[string](s.world, s.db, `select coalesce(string_agg(name, ', '), '') from (
		select unnest(array['paid', 'cancelled', 'refunded']) as name except select state from machine_instances
		where machine = 'order'
		union all select unnest(array['succeeded', 'failed']) except select state from machine_instances
		where machine = 'refund'
		union all select unnest(array['wrong_amount', 'wrong_asset', 'wrong_merchant', 'second_transaction', 'late'])
		except select kind from payment_flags
		union all select unnest(array['stripe', 'alipay', 'wechat', 'standard']) except select gateway
		from payment_transactions) x`)
}
