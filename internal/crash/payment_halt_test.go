package crash_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// halt kills a server at one point of a story. It is armed before a step of the story, and takes effect at the next
// matching commit, call or notice.
type halt struct {
	name, story, before string
	arm                 func(*stage)
}

// stage runs one story. All stories share a shop, one after the other.
type stage struct {
	*trip
	out    string // number of the payment
	struck chan int
	once   sync.Once
	halt   *halt
	hit    atomic.Bool
}

// Stories, with their steps.
const (
	paid      = "paid"      // order, pay, await, refund
	polled    = "polled"    // the same, and the gateway does not call back
	cancelled = "cancelled" // order, pay, cancel
	expired   = "expired"   // order, pay, let the order expire
)

var halts = []halt{
	{"the order is not committed", paid, "order", commits(beforeCommit)},
	{"the order is committed, and the answer lost", paid, "order", commits(atAnswer)},
	{"the payment is not committed", paid, "pay", commits(beforeCommit)},
	{"the payment is committed, and not submitted", paid, "pay", commits(atAnswer)},
	{"the submission does not arrive", paid, "pay", asks("create", false, nil)},
	{"the payment is submitted, and the answer lost", paid, "pay", asks("create", true, nil)},
	{"the answer is not recorded", paid, "pay", asks("create", true, commits(beforeCommit))},
	{"the answer is recorded", paid, "pay", asks("create", true, commits(atAnswer))},
	{"the callback is not committed", paid, "pay", hears("payment.paid", false, commits(beforeCommit))},
	{"the callback is committed", paid, "pay", hears("payment.paid", false, commits(atAnswer))},
	{"the callback is committed, and the answer lost", paid, "pay", hears("payment.paid", true, nil)},
	{"the refund is not committed", paid, "refund", commits(beforeCommit)},
	{"the refund is committed, and not submitted", paid, "refund", commits(atAnswer)},
	{"the refund does not arrive", paid, "refund", asks("refund", false, nil)},
	{"the refund is submitted, and the answer lost", paid, "refund", asks("refund", true, nil)},
	{"the callback of the refund is not committed",
		paid, "refund", hears("refund.succeeded", false, commits(beforeCommit))},
	{"the callback of the refund is committed, and the answer lost",
		paid, "refund", hears("refund.succeeded", true, nil)},
	{"the question does not arrive", polled, "await", asks("query", false, nil)},
	{"the reply is lost", polled, "await", asks("query", true, nil)},
	{"the reply is not recorded", polled, "await", asks("query", true, commits(beforeCommit))},
	{"the cancellation is not committed", cancelled, "cancel", commits(beforeCommit)},
	{"the cancellation is committed, and the answer lost", cancelled, "cancel", commits(atAnswer)},
	{"the close does not arrive", cancelled, "cancel", asks("close", false, nil)},
	{"the payment is closed, and the answer lost", cancelled, "cancel", asks("close", true, nil)},
	{"the close is not recorded", cancelled, "cancel", asks("close", true, commits(beforeCommit))},
	{"the expiry is not committed", expired, "expire", commits(beforeCommit)},
	{"the expiry is committed, and the payment not closed", expired, "expire", commits(atAnswer)},
	{"the order is cancelled while its payment is submitted", cancelled, "pay", meanwhile(true, (*stage).cancelNow)},
	{"the payment is closed before its submission arrives", cancelled, "pay", meanwhile(false, (*stage).closeNow)},
}

// kill kills a server, once in a story. The server is restarted.
func (g *stage) kill(n int) (killed bool) {
	g.once.Do(func() {
		g.shop.servers[n].kill()
		g.struck <- n
		g.hit.Store(true)
		killed = true
	})
	return killed
}

// commits kills the server at its next commit for the story.
func commits(at cutAt) func(*stage) {
	return func(g *stage) {
		for n, l := range g.shop.lines {
			l.cutNext(at, g.name, func() { g.kill(n) }) // the number of the payment begins with that of the order
		}
	}
}

// asks kills the server that makes a call at the gateway: before the call arrives, or after, so that the answer is
// lost. If next is set, the call succeeds instead, and arms next.
func asks(call string, after bool, next func(*stage)) func(*stage) {
	return func(g *stage) {
		for n, gate := range g.shop.gates {
			hook := g.hook(n, "/standard/"+call, "", next)
			if after {
				gate.hook(nil, hook)
			} else {
				gate.hook(hook, nil)
			}
		}
	}
}

// hears kills the server that a callback is sent to: before the callback arrives, or after, so that the response is
// lost. If next is set, the callback succeeds instead, and arms next.
func hears(kind string, after bool, next func(*stage)) func(*stage) {
	return func(g *stage) {
		hook := g.hook(0, "/pay/callbacks/standard", kind, next)
		if after {
			g.shop.front.hook(nil, hook)
		} else {
			g.shop.front.hook(hook, nil)
		}
	}
}

func (g *stage) hook(n int, path, kind string, next func(*stage)) func(string, []byte) bool {
	var once sync.Once
	return func(at string, body []byte) bool {
		if at != path || !bytes.Contains(body, []byte(g.out)) || !bytes.Contains(body, []byte(kind)) {
			return true
		}
		if next != nil {
			once.Do(func() { next(g) })
			return true
		}
		return !g.kill(n)
	}
}

// meanwhile calls do while the submission is on its way to the gateway, or its answer is on its way back.
func meanwhile(after bool, do func(*stage)) func(*stage) {
	return func(g *stage) {
		for _, gate := range g.shop.gates {
			hook := func(at string, body []byte) bool {
				if at == "/standard/create" && bytes.Contains(body, []byte(g.out)) {
					g.once.Do(func() { do(g); g.hit.Store(true) })
				}
				return true
			}
			if after {
				gate.hook(nil, hook)
			} else {
				gate.hook(hook, nil)
			}
		}
	}
}

func (g *stage) cancelNow() { g.cancel() }

// closeNow cancels the order, and waits until its payment, which the gateway does not know yet, is closed.
func (g *stage) closeNow() {
	g.cancel()
	g.shop.until("closed", func() bool { return g.state() == "closed" })
}

// state returns the state of the payment.
func (g *stage) state() string {
	return query[string](g.shop.world, g.shop.db, `select coalesce((select state from machine_instances
		where machine = 'payment' and key = $1), '')`, g.out)
}

// step arms the halt if it belongs to this step.
func (g *stage) step(name string) {
	if g.halt != nil && g.halt.before == name {
		g.halt.arm(g)
	}
}

// play runs a story to its end.
func (g *stage) play(story string) {
	s := g.shop
	f := fate{"payer": "pay", "after": "50ms"}
	switch story {
	case polled:
		f["callback"] = "never"
	case cancelled, expired:
		f = fate{}
	}
	s.sim.plan(g.out, f)
	life := time.Hour
	if story == expired {
		life = 2 * time.Second
	}
	g.coupon(g.name)
	g.step("order")
	g.order(&orderv1.CreateOrderRequest{OrderNo: g.name, Subject: g.name, Asset: "CNY", Amount: "7", Reserve: true,
		Payee: "shop", Coupon: g.name,
		Lines: []*orderv1.OrderLine{{Item: "goods", Quantity: 2}}, PayWithin: durationpb.New(life),
		Balance: &orderv1.BalancePart{Account: "wallet", Amount: "2"}})
	g.step("pay")
	g.pay(g.out)
	switch story {
	case paid, polled:
		g.step("await")
		g.patiently("paid", func() bool { return g.state() == "succeeded" })
		g.step("refund")
		ask(g.visit, func(ctx context.Context, c *client.Client) (*paymentv1.RefundPaymentResponse, error) {
			return c.Payments.RefundPayment(ctx,
				&paymentv1.RefundPaymentRequest{RefundNo: g.out + "R", OutTradeNo: g.out, Amount: proto.String("3")})
		})
	case cancelled:
		g.step("cancel")
		g.cancel()
	case expired:
		g.step("expire")
	}
}

// patiently waits for a condition. After 300 ms it makes calls at gateways due early.
func (g *stage) patiently(what string, done func() bool) bool {
	g.shop.t.Helper()
	for begun := time.Now(); !done(); <-time.After(50 * time.Millisecond) {
		if time.Since(begun) > 300*time.Millisecond {
			g.shop.hurry(0.5)
		}
		if time.Since(begun) > 15*time.Second {
			return false
		}
	}
	return true
}

// end describes the final state: in the database, and at the gateway.
func (g *stage) end() string {
	text := query[string](g.shop.world, g.shop.db, `select concat_ws(', ',
		(select 'order ' || state || ' ' || cause || ' ' || revision from machine_instances where machine = 'order'
		and key = $1),
		(select 'token ' || count(*) from token_submit_tokens where state = 'spent'
		and result::text like '%' || $1 || '"%'),
		(select string_agg('unit ' || state, ' ') from stock_reservations where reservation_no like $1 || '/%'),
		(select 'hold ' || state from ledger_holds where biz_no = $1 || '/hold'),
		(select 'coupon ' || state from machine_instances where machine = 'coupon' and key = $1),
		(select 'payment ' || state from machine_instances where machine = 'payment' and key = $2),
		(select format('took %s and gave %s, %s to give', amount, refunded, refunding) from payment_transactions
		where out_trade_no = $2),
		(select 'refund ' || state from machine_instances where machine = 'refund' and key = $2 || 'R'),
		(select 'flag ' || kind from payment_flags where out_trade_no = $2),
		(select 'call ' || call from payment_calls where number in ($2, $2 || 'R')),
		(select string_agg(type || ' ' || biz_no, ' ' order by biz_no) from ledger_transfers
		where biz_no like $1 || '/%' or biz_no like 'refund/' || $2 || '%'))`,
		g.name, g.out)
	for _, c := range g.shop.sim.charges() {
		if c.Number == g.out {
			text += fmt.Sprintf(", at the gateway %s in %d", c.Status, len(c.Transactions))
		}
	}
	return strings.NewReplacer(g.out, "PAYMENT", g.name, "ORDER").Replace(text)
}

// stage runs a story, and restarts killed servers. It returns the final state, as soon as it is the wanted one or after
// a timeout.
func (s *shop) stage(name, story string, h *halt, want string) (end string, hit bool) {
	g := &stage{trip: &trip{&visit{w: s.world, name: name, facts: map[string]string{}, outcomes: map[string]int{}}, s,
		0, "standard", "CNY"},
		struck: make(chan int, 1), halt: h}
	g.out = g.number("P")
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		for n := range g.struck {
			s.servers[n].start(s.t)
		}
	}()
	g.play(story)
	g.patiently("the same end", func() bool {
		end = g.end()
		return end == want && g.hit.Load() || want == "" && !strings.Contains(end, "call") &&
			!strings.Contains(end, "awaiting")
	})
	for n, l := range s.lines {
		l.cancelCut()
		s.gates[n].hook(nil, nil)
	}
	s.front.hook(nil, nil)
	close(g.struck)
	<-restarted
	return end, g.hit.Load()
}

// TestAPaymentEndsTheSameWhereverAServerIsKilled kills a server at each point between two commits, calls or notices,
// from the submission of a form until the payment is refunded or closed.
func TestAPaymentEndsTheSameWhereverAServerIsKilled(t *testing.T) {
	t.Parallel()
	s := newShop(t, &pgtest.Durable{DB: pgtest.New(t)})
	s.front.to = func() string { return s.url(0) }
	ends := map[string]string{}
	for _, story := range []string{paid, polled, cancelled, expired} {
		ends[story], _ = s.stage("calm"+story, story, nil, "")
		t.Logf("%s: %s", story, ends[story])
	}
	for n, h := range halts {
		begun := time.Now()
		end, hit := s.stage(fmt.Sprintf("halt%02d", n), h.story, &h, ends[h.story])
		t.Logf("%s: %v", h.name, time.Since(begun).Round(time.Millisecond))
		if end != ends[h.story] {
			t.Errorf("%s:\n%s\n%s, undisturbed", h.name, end, ends[h.story])
		}
		if !hit {
			t.Errorf("%s: this did not happen", h.name)
		}
	}
	s.empty("orders", ordersAsTheyEnd)
	s.empty("money", moneyHasAPlace)
	s.empty("accounts", accountsMatch)
	s.empty("refunds", refundsMatch)
	s.judgeGateways()
	s.verify()
}
