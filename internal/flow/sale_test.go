package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// putSale creates or changes a sale of an item of the same name, with units in stock.
func (m *market) putSale(name string, units int64, change ...func(*sale.Sale)) {
	m.Helper()
	s := sale.Sale{Item: name, PerBuyer: 1, Order: &sale.Order{Asset: "CNY", Amount: "9.9",
		Machine: machine.OrderMachine}}
	for _, f := range change {
		f(&s)
	}
	m.do(0, flow.Stock(&stock.PutItemCommand{Caller: caller, Item: name}))
	m.do(0, flow.Stock(&stock.ChangeCommand{Caller: caller, Item: name, ChangeNo: "first", Kind: stock.Restock,
		Quantity: units}))
	m.do(0, &flow.PutSale{Caller: caller, Named: sale.Named{Key: sale.Key{Tenant: 1, Sale: name}, Sale: s}})
}

// do runs a command that must succeed, and returns its answer.
func (m *market) do(engine int, c flow.Command) any {
	m.Helper()
	out, err := m.engines[engine].Do(context.Background(),
		flow.Submission{Tenant: 1, RequestID: "r", Rows: 6, Bytes: 400, Command: c})
	if err != nil {
		m.Errorf("%T: %v", c, err)
	}
	return out.Answer
}

// grabCall is a grab of a buyer, or the cancellation of the buyer's order.
type grabCall struct {
	buyer  string
	cancel string // number of the order; empty: a grab
}

// saleState is the state of a sale in the model.
type saleState struct {
	left   int
	orders string // "buyer=order " of each winner, sorted
}

// grabs is the model of a sale of 3 units, in which a cancelled order frees its unit and its buyer.
var grabs = porcupine.Model{
	Init: func() any { return saleState{left: 3} },
	Step: func(state, input, output any) (bool, any) {
		s, c, got := state.(saleState), input.(grabCall), output.(flow.Grabbed)
		held := ""
		for x := range strings.FieldsSeq(s.orders) {
			if buyer, no, _ := strings.Cut(x, "="); buyer == c.buyer {
				held = no
			}
		}
		without := strings.ReplaceAll(s.orders, c.buyer+"="+held+" ", "")
		switch {
		case c.cancel != "" && held == c.cancel:
			return true, saleState{s.left + 1, without}
		case c.cancel != "": // it was cancelled before
			return true, s
		case held != "":
			return got.Outcome == sale.Already && got.OrderNo == held, s
		case s.left == 0:
			return got.Outcome == sale.SoldOut, s
		}
		all := append(strings.Fields(s.orders), c.buyer+"="+got.OrderNo)
		slices.Sort(all)
		return got.Outcome == sale.Won && got.OrderNo != "", saleState{s.left - 1, strings.Join(all, " ") + " "}
	},
	Equal: func(a, b any) bool { return a == b },
}

// Buyers grab and cancel on two servers at once: one sequence of calls explains all answers.
func TestGrabsAreLinearizable(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	for round := range 4 {
		name := fmt.Sprint("sale-", round)
		m.putSale(name, 3)
		var mu sync.Mutex
		var calls []porcupine.Operation
		begun := time.Now()
		record := func(client int, c grabCall, run func() flow.Grabbed) flow.Grabbed {
			from := time.Since(begun).Nanoseconds()
			got := run()
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, porcupine.Operation{ClientId: client, Input: c, Call: from, Output: got,
				Return: time.Since(begun).Nanoseconds()})
			return got
		}
		var work sync.WaitGroup
		for client := range 8 {
			work.Go(func() {
				for n := range 12 {
					buyer, engine := fmt.Sprint("b", rand.IntN(5)), rand.IntN(2)
					g := record(client, grabCall{buyer: buyer}, func() flow.Grabbed {
						x, _ := m.do(engine, &flow.Grab{Caller: caller, Sale: name, Buyer: buyer, Unit: 1,
							OrderNo: fmt.Sprintf("%s-%d-%d", name, client, n)}).(flow.Grabbed)
						return x
					})
					if g.OrderNo != "" && rand.IntN(3) == 0 {
						record(client, grabCall{buyer, g.OrderNo}, func() flow.Grabbed {
							m.do(engine, &flow.MoveOrder{Caller: caller, OrderNo: g.OrderNo, Cancel: true,
								Params: machine.MoveParams{Cause: "cancel"}})
							return flow.Grabbed{}
						})
					}
				}
			})
		}
		work.Wait()
		if result := porcupine.CheckOperationsTimeout(grabs, calls, time.Minute); result != porcupine.Ok {
			t.Errorf("round %d: %v of %d calls", round, result, len(calls))
		}
	}
}

// An order that is cancelled late, such as by a scheduler that was down, does not free the unit of the next one.
func TestOldOrderDoesNotFreeTheNewUnit(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.putSale("one", 1, func(s *sale.Sale) { s.Order.PayWithin = time.Minute })
	ask := func(engine int, buyer, no string) flow.Grabbed {
		x, _ := m.do(engine, &flow.Grab{Caller: caller, Sale: "one", Buyer: buyer, Unit: 1, OrderNo: no}).(flow.Grabbed)
		return x
	}
	if g := ask(0, "ann", "o-1"); g.Outcome != sale.Won || g.PayBefore.IsZero() {
		t.Errorf("%+v", g)
	}
	if g := ask(1, "bob", "o-2"); g.Outcome != sale.SoldOut {
		t.Errorf("%+v", g)
	}
	m.clock.Set(t, 2*time.Minute)
	if g := ask(1, "ann", "o-3"); g.Outcome != sale.Won || g.OrderNo != "o-3" { // the end of o-1 is not recorded
		t.Errorf("%+v", g)
	}
	m.do(0, flow.Fire(&machine.FireCommand{Caller: caller,
		Key: machine.Key{Tenant: 1, Machine: machine.OrderMachine, Key: "o-1"}}))
	if g := ask(0, "ann", "o-4"); g.Outcome != sale.Already || g.OrderNo != "o-3" || g.State != "awaiting_payment" {
		t.Errorf("%+v", g)
	}
	if g := ask(0, "bob", "o-5"); g.Outcome != sale.SoldOut {
		t.Errorf("%+v", g)
	}
	if got := m.text("select string_agg(order_no || ' ' || state, ', ' order by order_no) from audit.orders"); got !=
		"o-1 cancelled, o-3 awaiting_payment" {
		t.Error(got)
	}
}

// A coupon is locked by one of many orders at once, and comes back when that one is cancelled.
func TestCouponsRaceOnTwoServers(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.do(0, &flow.IssueCoupons{Caller: caller, Campaign: "spring", Codes: []string{"A"}})
	var work sync.WaitGroup
	for i := range 20 {
		work.Go(func() {
			_, _ = m.engines[i%2].Do(context.Background(),
				flow.Submission{Tenant: 1, RequestID: "r", Rows: 6, Bytes: 400,
					Command: &flow.ClaimCoupon{Caller: caller, Code: "A", Owner: fmt.Sprint("u", i)}})
		})
	}
	work.Wait()
	owner := m.text("select owner from audit.coupons")
	for round := range 5 {
		won := make([]bool, 20)
		for i := range won {
			work.Go(func() {
				_, err := m.engines[i%2].Do(context.Background(),
					flow.Submission{Tenant: 1, RequestID: "r", Rows: 6, Bytes: 400,
						Command: &flow.CreateOrder{Caller: caller, OrderNo: fmt.Sprint("o-", round, "-", i),
							Facts: order.Facts{
								Machine: machine.OrderMachine, Subject: owner, Asset: "CNY", Amount: dec("10"),
								Coupon: "A"}}})
				won[i] = err == nil
			})
		}
		work.Wait()
		winner := slices.Index(won, true)
		if winner < 0 || slices.Contains(won[winner+1:], true) {
			t.Fatalf("round %d: %v", round, won)
		}
		if got := m.text("select state || ' ' || cause from audit.coupons"); got != fmt.Sprint("locked o-", round, "-",
			winner) {
			t.Error(got)
		}
		m.do(round%2, &flow.MoveOrder{Caller: caller, OrderNo: fmt.Sprint("o-", round, "-", winner), Cancel: true,
			Params: machine.MoveParams{Cause: "cancel"}})
	}
	if got := m.text("select state from audit.coupons"); got != "claimed" {
		t.Error(got)
	}
}

// A buyer gets the won order of a unit again, even if the sale no longer gives that unit.
func TestWinnersGetTheirOrdersAfterAChange(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.putSale("two", 5, func(s *sale.Sale) { s.PerBuyer = 2 })
	ask := func(no string) *flow.Grab {
		return &flow.Grab{Caller: caller, Sale: "two", Buyer: "ann", Unit: 2, OrderNo: no}
	}
	m.wants(ask("o-1"), "won o-1 awaiting_payment in time")
	m.putSale("two", 5)
	m.wants(ask("o-2"), "already o-1 awaiting_payment in time")
	other := ask("o-3")
	other.Buyer = "bob"
	m.wants(other, "FIELD_INVALID")
}

// Grabs before and after a change of their sale, in one batch, use the sale as it is at their position.
func TestSaleChangesBetweenGrabs(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.putSale("tv", 5)
	m.putSale("radio", 5)
	ask := func(buyer, no string) *flow.Grab {
		return &flow.Grab{Caller: caller, Sale: "tv", Buyer: buyer, Unit: 1, OrderNo: no}
	}
	change := &flow.PutSale{Caller: caller, Named: sale.Named{Key: sale.Key{Tenant: 1, Sale: "tv"},
		Sale: sale.Sale{Item: "radio", PerBuyer: 1,
			Order: &sale.Order{Asset: "CNY", Amount: "1", Machine: machine.OrderMachine}}}}
	ends := m.batch(0, ask("ann", "o-1"), change, ask("bob", "o-2"))
	if got := strings.Join(ends, ", "); got != "won o-1 awaiting_payment in time, ok, "+
		"won o-2 awaiting_payment in time" {
		t.Error(got)
	}
	if got := m.text("select string_agg(item || ' ' || available, ', ' order by sale) " +
		"from audit.sales"); got != "radio 4, radio 4" {
		t.Error(got)
	}
}

// A RedeemCoupon with an order's number as its cause neither uses the coupon that the order locks, nor counts as that
// order.
func TestOnlyItsOrderUsesALockedCoupon(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.wants(&flow.IssueCoupons{Caller: caller, Campaign: "spring", Codes: []string{"A"}}, "issued A")
	m.wants(&flow.ClaimCoupon{Caller: caller, Code: "A", Owner: "ann"}, "A claimed ann claim")
	withCoupon := func(c *flow.CreateOrder) { plain(c); c.Coupon = "A" }
	redeem := func(cause string) *flow.RedeemCoupon {
		return &flow.RedeemCoupon{Caller: caller, Code: "A", Owner: "ann", Cause: cause}
	}
	m.wants(newOrder("a", withCoupon), "a awaiting_payment")
	m.wants(redeem("a"), "STATE_TAKEN")
	m.wants(&flow.MoveOrder{Caller: caller, OrderNo: "a", Cancel: true, Params: machine.MoveParams{Cause: "c"}},
		"a cancelled")
	m.wants(redeem("b"), "A used ann b")
	m.wants(redeem("b"), "A used ann b existed")
	m.wants(newOrder("b", withCoupon), "STATE_TAKEN")
}

// A coupon is free from the moment at which the time of its order is over, whether or not that is recorded.
func TestCouponIsFreeWhenItsOrderHasTimedOut(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	withCoupon := func(code string) func(c *flow.CreateOrder) {
		return func(c *flow.CreateOrder) {
			plain(c)
			c.Coupon, c.Machine, c.PayWithin = code, "simple_order", time.Minute
		}
	}
	codes := []string{"A", "B", "C"}
	for _, code := range codes {
		m.wants(&flow.IssueCoupons{Caller: caller, Campaign: "spring-" + strings.ToLower(code), Codes: []string{code}},
			"issued "+code)
		m.wants(&flow.ClaimCoupon{Caller: caller, Code: code, Owner: "ann"}, code+" claimed ann claim")
		m.wants(newOrder("first-"+code, withCoupon(code)), "first-"+code+" pending")
	}
	m.clock.Set(t, 2*time.Minute)
	m.wants(&flow.RedeemCoupon{Caller: caller, Code: "A", Owner: "ann", Cause: "till"}, "A used ann till")
	m.wants(newOrder("second", withCoupon("B")), "second pending")
	m.wants(&flow.ClaimCoupon{Caller: caller, Code: "C", Owner: "ann"}, "C claimed ann first-C existed")
	if got := m.text("select string_agg(code || ' ' || state || ' ' || cause, ', ' order by code) " +
		"from audit.coupons"); got !=
		"A used till, B locked second, C claimed first-C" {
		t.Error(got)
	}
}

// A dry run of a grab finds the order that its buyer has won.
func TestDryRunOfAWinnersGrab(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.putSale("tv", 5, func(s *sale.Sale) { s.Order.Machine = "simple_order" })
	ask := func(no string) flow.Command {
		return together{&flow.Grab{Caller: caller, Sale: "tv", Buyer: "ann", Unit: 1, OrderNo: no}}
	}
	m.wants(ask("o-1"), "won o-1 pending in time")
	dry := func(want string) {
		t.Helper()
		c := ask("o-2")
		out, err := m.engines[0].Do(t.Context(),
			flow.Submission{Tenant: 1, RequestID: "r", Rows: rowsOf(c), Bytes: 400, Command: c, DryRun: true})
		if got := describeOrder(out.Answer, err); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	dry("already o-1 pending in time")
	m.clock.Set(t, 31*time.Minute)
	dry("won o-2 pending in time")
	m.wants(ask("o-3"), "won o-3 pending in time")
}

// describeFair describes the answers of commands on sales and coupons; "" for others.
func describeFair(answer any) string {
	switch a := answer.(type) {
	case flow.Grabbed:
		text := map[sale.Outcome]string{sale.Won: "won", sale.Already: "already", sale.SoldOut: "sold out",
			sale.NotOpen: "not open",
			sale.Over:    "over"}[a.Outcome]
		for _, s := range []string{a.OrderNo, a.State, a.Coupon} {
			if s != "" {
				text += " " + s
			}
		}
		if !a.PayBefore.IsZero() {
			text += " in time"
		}
		return text
	case coupon.View:
		return strings.Join([]string{a.Code, a.State.State, a.Owner, a.Cause}, " ")
	case []string:
		return "issued " + strings.Join(a, ",")
	}
	return ""
}

// The machine of a sale's orders changes, so that none can be created: the fault names the sale, not fields that a grab
// does not have.
func TestGrabOfASaleWhoseMachineHasChanged(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("own", "cancelled")
	m.putSale("tv", 5, func(s *sale.Sale) { s.Order.Machine, s.Order.PayWithin = "own", time.Minute })
	m.putSale("radio", 5, func(s *sale.Sale) { s.Order.Machine = "own" })
	m.define("own", "")
	for _, name := range []string{"tv", "radio"} {
		_, err := m.engines[0].Do(t.Context(), flow.Submission{Tenant: 1, RequestID: "r", Rows: 5, Bytes: 400,
			Command: &flow.Grab{Caller: caller, Sale: name, Buyer: "ann", Unit: 1, OrderNo: "o-" + name}})
		if f := fault.Of(err); f == nil || f.Reason != fault.FieldInvalid || len(f.Fields) != 1 ||
			f.Fields[0].Path != "sale" ||
			!strings.HasPrefix(f.Message, "sale: its orders cannot be created: ") {
			t.Errorf("%s: %v %+v", name, err, f)
		}
	}
}
