package flow_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// fairOrders is the sequential model of a history of calls on sales, orders and coupons.
var fairOrders = porcupine.Model{
	Init: func() any {
		return &fair{items: map[string]shelf{"tea": {}, "milk": {}}, sales: map[string]terms{},
			orders: map[string]fairOrder{}, units: map[string]string{}, had: map[string]bool{},
			coupons: map[string]fairCoupon{}, campaigns: map[string]string{}}
	},
	Step: func(state, input, output any) (bool, any) {
		before := state.(*fair).clone()
		before.pass()
		after := before.clone()
		end := input.(fairCommand).end(after)
		if refusal(end) {
			after = before
		}
		return end == output, after
	},
	Equal: func(a, b any) bool {
		x, y := *a.(*fair), *b.(*fair)
		x.had, y.had = nil, nil // no answer of one call depends on it
		return reflect.DeepEqual(x, y)
	},
}

// fairHistory has callers on two servers make random calls, while time passes.
type fairHistory struct {
	*market
	play  *fairPlay
	begun time.Time

	mu       sync.Mutex
	calls    []porcupine.Operation
	orders   []string
	coupons  []string
	made     int
	outcomes map[string]int
}

// run makes calls together, and records them.
func (h *fairHistory) run(client int, together ...fairCommand) {
	submissions := make([]flow.Submission, len(together))
	for i, c := range together {
		submissions[i] = flow.Submission{Tenant: h.play.caller.Tenant, RequestID: "r", Rows: rowsOf(c.command),
			Bytes: 400, Command: c.command}
	}
	call := int64(time.Since(h.begun))
	results := h.engines[client%2].DoAll(context.Background(), submissions)
	h.record(call, client, together, results)
}

func (h *fairHistory) record(call int64, client int, together []fairCommand, results []commit.Result) {
	returned := int64(time.Since(h.begun))
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, c := range together {
		got := "ok" // of passTime
		if results != nil {
			got = ordered(results[i])
			if g, ok := results[i].Outcome.Answer.(flow.Grabbed); ok && g.Outcome == sale.Won {
				h.orders, h.coupons = append(h.orders, g.OrderNo), append(h.coupons, g.Coupon)
			}
		}
		kind, rest, _ := strings.Cut(got, " ")
		if kind == "sold" || kind == "not" {
			kind += " " + rest
		}
		h.outcomes[kind]++
		h.calls = append(h.calls, porcupine.Operation{ClientId: client, Input: c, Output: got, Call: call,
			Return: returned})
	}
}

// one returns a random name of a list, or "none".
func one(of []string) string {
	of = slices.DeleteFunc(slices.Clone(of), func(s string) bool { return s == "" })
	if len(of) == 0 {
		return "none"
	}
	return of[rand.IntN(len(of))]
}

// next returns a caller's next call, or the grabs of a GrabMany.
func (h *fairHistory) next() []fairCommand {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, buyer := h.play, one([]string{"ann", "bob", "cid"})
	name := one([]string{"noon", "night", "lot"})
	switch rand.IntN(14) {
	case 0, 1, 2, 3, 4:
		return []fairCommand{h.grab(name, buyer)}
	case 5:
		return []fairCommand{h.grab(name, "ann"), h.grab(name, "bob"), h.grab(name, buyer)}
	case 6, 7:
		return []fairCommand{p.move(one(h.orders), "paid", one([]string{"p", "q"}))}
	case 8:
		return []fairCommand{p.move(one(h.orders), "cancelled", "c")}
	case 9:
		h.made++
		no := fmt.Sprint("o", h.made)
		h.orders = append(h.orders, no)
		return []fairCommand{p.create(no, errand{subject: buyer, item: one([]string{"", "tea"}),
			coupon: one(h.coupons), machine: one([]string{"order", "simple_order"}), amount: "5", within: 10})}
	case 10:
		return []fairCommand{p.claim(one(h.coupons), buyer)}
	case 11:
		code, cause := one(h.coupons), one([]string{"till", "a"})
		return []fairCommand{{command: &flow.RedeemCoupon{Caller: p.caller, Code: code, Owner: buyer, Cause: cause},
			end: func(f *fair) string { return f.use(code, buyer, "used", cause) }}}
	default:
		return []fairCommand{h.restock(one([]string{"tea", "milk"}), 1)}
	}
}

func (h *fairHistory) grab(name, buyer string) fairCommand {
	h.made++
	unit, no, code := int32(1+rand.IntN(2)), fmt.Sprint("n", h.made), fmt.Sprint("k", h.made)
	return fairCommand{command: &flow.Grab{Caller: h.play.caller, Sale: name, Buyer: buyer, Unit: unit, OrderNo: no,
		Code: code}, end: func(f *fair) string { return f.grab(name, buyer, unit, no, code) }}
}

func (h *fairHistory) restock(item string, n int64) fairCommand {
	return fairCommand{command: h.play.restock(item, n), end: func(f *fair) string {
		s := f.items[item]
		s.available += int(n)
		f.items[item] = s
		return "ok"
	}}
}

func (h *fairHistory) put(name string, t terms, s sale.Sale) fairCommand {
	return fairCommand{command: &flow.PutSale{Caller: h.play.caller,
		Named: sale.Named{Key: sale.Key{Tenant: h.play.caller.Tenant, Sale: name}, Sale: s}},
		end: func(f *fair) string { return f.put(name, t) }}
}

// passTime moves the clock until all callers are done.
func (h *fairHistory) passTime(t *testing.T, from int, stop <-chan struct{}) (minutes int) {
	for now := 2; ; now += 2 {
		select {
		case <-stop:
			return now - 2
		case <-time.After(5 * time.Millisecond):
		}
		call := int64(time.Since(h.begun))
		h.clock.Set(t, time.Duration(from+now)*time.Minute)
		h.record(call, 99, []fairCommand{{end: func(f *fair) string { f.now = now; return "ok" }}}, nil)
	}
}

// Callers on two servers grab from sales with hours, several units a buyer, orders that expire, and coupons. They pay,
// cancel, create orders, claim and use coupons, while time passes. One sequence of all calls explains every answer.
func TestEveryAnswerOfASaleFitsOneOrderOfAllCalls(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	minutes, explained, seen := 0, 0, map[string]int{}
	for round := range 12 {
		h := &fairHistory{market: m, begun: time.Now(), outcomes: seen, play: &fairPlay{market: m, caller: caller,
			errands: map[string]errand{}, issues: map[string]fairBag{},
			base: time.Now().Add(time.Duration(minutes) * time.Minute).Truncate(time.Microsecond).UTC()}}
		h.play.caller.Tenant = int32(200 + round)
		h.open()
		stop := make(chan struct{})
		var callers, clock sync.WaitGroup
		var passed int
		clock.Go(func() { passed = h.passTime(t, minutes, stop) })
		for client := range 4 {
			callers.Go(func() {
				for range 24 {
					h.run(client, h.next()...)
				}
			})
		}
		callers.Wait()
		close(stop)
		clock.Wait()
		minutes += passed
		began := time.Now()
		result := porcupine.CheckOperationsTimeout(fairOrders, h.calls, 5*time.Second)
		t.Logf("%d calls, %d minutes: %s after %v", len(h.calls), passed, result, time.Since(began))
		switch result {
		case porcupine.Illegal:
			t.Fatalf("round %d: no order explains the answers of %d calls", round, len(h.calls))
		case porcupine.Ok:
			explained++
		}
	}
	if explained < 6 { // a few histories take too long to check
		t.Errorf("only %d histories were checked", explained)
	}
	for _, outcome := range []string{"won", "already", "sold out", "over", "STATE_TAKEN", "COUPON_TAKEN",
		"MOVE_NOT_ALLOWED"} {
		if seen[outcome] == 0 {
			t.Errorf("none was %s: %v", outcome, seen)
		}
	}
}

// open stocks the items, and creates the sales.
func (h *fairHistory) open() {
	all := together{flow.Ledger(&ledger.CreateAssetsCommand{Caller: h.play.caller,
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}})}
	for item, segments := range map[string]int{"tea": 1, "milk": 3} {
		all = append(all, flow.Stock(&stock.PutItemCommand{Caller: h.play.caller, Item: item, Segments: segments}))
	}
	begin := fairCommand{command: all, end: func(*fair) string { return "ok; ok; ok" }}
	paid := &sale.Order{Asset: "CNY", Amount: "5", Machine: "order", PayWithin: 10 * time.Minute}
	simple := &sale.Order{Asset: "CNY", Amount: "5", Machine: "simple_order", PayWithin: 6 * time.Minute}
	for _, c := range []fairCommand{begin, h.restock("tea", 3), h.restock("milk", 3),
		h.put("noon", terms{item: "tea", asset: "CNY", amount: "5", machine: "order", within: 10, perBuyer: 2,
			opensAt: never, closes: 14}, sale.Sale{Item: "tea", PerBuyer: 2, ClosesAt: h.play.at(14), Order: paid}),
		h.put("night", terms{item: "milk", asset: "CNY", amount: "5", machine: "simple_order", within: 6, perBuyer: 1,
			once: true, opensAt: 4, closes: never}, sale.Sale{Item: "milk", PerBuyer: 1, Once: true,
			OpensAt: h.play.at(4), Order: simple}),
		h.put("lot", terms{item: "tea", campaign: "spring", life: 8, perBuyer: 1, opensAt: never, closes: never},
			sale.Sale{Item: "tea", PerBuyer: 1, Coupon: &sale.Coupon{Campaign: "spring", Life: 8 * time.Minute}}),
		h.play.issue(fairBag{campaign: "autumn", codes: []string{"A", "B"}, expires: 30}),
	} {
		h.run(0, c)
	}
	h.coupons = []string{"A", "B"}
}
