package rpc_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

func saleOf(name, item, asset string) *salev1.Sale {
	return &salev1.Sale{Sale: name, Item: item,
		Gives: &salev1.Sale_Order{Order: &salev1.SaleOrder{Asset: asset, Amount: "9.9"}}}
}

func putSale(s *salev1.Sale) *salev1.PutSaleRequest { return &salev1.PutSaleRequest{Sale: s} }

func grab(name, buyer string) *salev1.GrabRequest {
	return &salev1.GrabRequest{Sale: name, Grab: &salev1.Grab{Buyer: buyer}}
}

func issue(campaign string, codes ...string) *salev1.IssueCouponsRequest {
	return &salev1.IssueCouponsRequest{Campaign: campaign, Codes: codes, Metadata: manyNames}
}

func claimCoupon(code, owner string) *salev1.ClaimCouponRequest {
	return &salev1.ClaimCouponRequest{Code: code, Owner: owner}
}

func redeem(code, owner, cause string) *salev1.RedeemCouponRequest {
	return &salev1.RedeemCouponRequest{Code: code, Owner: owner, Cause: cause}
}

func saleName(tag string) string { return strings.ToLower("s-" + tag) }

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		c.stocked(x.paid)
		s := saleOf(saleName(x.paid), x.paid, x.asset)
		s.GetOrder().Payee = secretNote
		ok(c, "Sale.PutSale", putSale(s), new(salev1.PutSaleResponse), id...)
		ok(c, "Sale.IssueCoupons", issue("walk", "mine-"+x.paid, "other-"+x.paid), new(salev1.IssueCouponsResponse),
			id...)
		ok(c, "Sale.ClaimCoupon", claimCoupon("mine-"+x.paid, secretNote), new(salev1.ClaimCouponResponse), id...)
	})
	goWell = append(goWell, "Sale.ListSales", "Sale.ListCoupons", "Sale.IssueCoupons", "Sale.GrabMany")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Sale.PutSale": func(x resources) []proto.Message {
			return all(putSale(saleOf(saleName(x.paid), x.paid, x.asset)))
		},
		"Sale.GetSale": func(x resources) []proto.Message {
			return all(&salev1.GetSaleRequest{Sale: saleName(x.paid)})
		},
		"Sale.ListSales": func(resources) []proto.Message { return all(&salev1.ListSalesRequest{}) },
		"Sale.Grab":      func(x resources) []proto.Message { return all(grab(saleName(x.paid), "walker")) },
		"Sale.GrabMany": func(x resources) []proto.Message {
			return all(&salev1.GrabManyRequest{Sale: saleName(x.paid), Grabs: []*salev1.Grab{{Buyer: "many"}}})
		},
		"Sale.IssueCoupons": func(x resources) []proto.Message { return all(issue("walk", "new-"+x.paid)) },
		"Sale.ClaimCoupon":  func(x resources) []proto.Message { return all(claimCoupon("other-"+x.paid, "walker")) },
		"Sale.RedeemCoupon": func(x resources) []proto.Message {
			return all(redeem("mine-"+x.paid, secretNote,
				"walk"))
		},
		"Sale.GetCoupon": func(x resources) []proto.Message {
			return all(&salev1.GetCouponRequest{Code: "mine-" +
				x.paid})
		},
		"Sale.ListCoupons": func(resources) []proto.Message {
			return all(&salev1.ListCouponsRequest{Campaign: "walk"}, &salev1.ListCouponsRequest{Owner: secretNote})
		},
	} {
		examples[name] = example
	}
	preparers["Sale"] = func(c *caller, tag string) {
		ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
			new(ledgerv1.CreateAssetsResponse))
		c.stocked(tag)
		ok(c, "Sale.PutSale", putSale(saleOf(saleName(tag), tag, "COIN")), new(salev1.PutSaleResponse))
		ok(c, "Sale.IssueCoupons", issue("old", "free-"+tag, "mine-"+tag, "other-"+tag),
			new(salev1.IssueCouponsResponse))
		ok(c, "Sale.ClaimCoupon", claimCoupon("mine-"+tag, "u-"+tag), new(salev1.ClaimCouponResponse))
	}
	for name, x := range map[string]change{
		"Sale.PutSale": {well: func(tag string) proto.Message {
			return putSale(saleOf("new-"+saleName(tag), tag,
				"COIN"))
		}},
		"Sale.Grab": {well: func(tag string) proto.Message { return grab(saleName(tag), "b") }},
		"Sale.IssueCoupons": {well: func(tag string) proto.Message {
			return issue("new", "new-"+tag)
		}},
		"Sale.ClaimCoupon": {reason: "COUPON_OWNED",
			well:    func(tag string) proto.Message { return claimCoupon("free-"+tag, "v-"+tag) },
			refused: func(tag string) proto.Message { return claimCoupon("free-"+tag, "u-"+tag) }},
		"Sale.RedeemCoupon": {reason: "COUPON_UNCLAIMED",
			well:    func(tag string) proto.Message { return redeem("mine-"+tag, "u-"+tag, "c") },
			refused: func(tag string) proto.Message { return redeem("other-"+tag, "u-"+tag, "c") }},
	} {
		changes[name] = x
	}
}

// saleSite returns a caller with 10 units of tv.
func saleSite(t *testing.T) *caller {
	t.Helper()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	c.executed(execute(operation("", putItem("tv", "TV")), operation("", restock("tv", "first", 10))))
	return c
}

func (c *caller) putSale(s *salev1.Sale) {
	c.T.Helper()
	ok(c, "Sale.PutSale", putSale(s), new(salev1.PutSaleResponse))
}

func (c *caller) grab(name, buyer string) *salev1.GrabResponse {
	c.T.Helper()
	return ok(c, "Sale.Grab", grab(name, buyer), new(salev1.GrabResponse))
}

func (c *caller) wantGrab(name, buyer string, want salev1.Outcome) *salev1.GrabResponse {
	c.T.Helper()
	g := c.grab(name, buyer)
	if g.GetOutcome() != want {
		c.T.Errorf("%s got %v, want %v", buyer, g, want)
	}
	return g
}

// Short names of outcomes.
const (
	won, already, soldOut = salev1.Outcome_OUTCOME_WON, salev1.Outcome_OUTCOME_ALREADY, salev1.Outcome_OUTCOME_SOLD_OUT
	notOpen, over         = salev1.Outcome_OUTCOME_NOT_OPEN, salev1.Outcome_OUTCOME_OVER
)

func TestFirstBuyersWin(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	two := c.second()
	c.putSale(saleOf("tv", "tv", "COIN"))
	var mu sync.Mutex
	orders, outcomes := map[string]string{}, map[salev1.Outcome]int{}
	var work sync.WaitGroup
	for i := range 120 {
		work.Go(func() {
			buyer := fmt.Sprint("b-", i%60)
			from := c
			if i%2 == 0 {
				from = two
			}
			g := from.grab("tv", buyer)
			mu.Lock()
			defer mu.Unlock()
			outcomes[g.GetOutcome()]++
			if no := g.GetOrderNo(); no != "" {
				if orders[buyer] != "" && orders[buyer] != no {
					t.Errorf("%s has orders %s and %s", buyer, orders[buyer], no)
				}
				orders[buyer] = no
			}
		})
	}
	work.Wait()
	if len(orders) != 10 || outcomes[won] != 10 || outcomes[soldOut]+outcomes[already] != 110 {
		t.Errorf("%d buyers have orders; %v", len(orders), outcomes)
	}
	s := ok(c, "Sale.GetSale", &salev1.GetSaleRequest{Sale: "tv"}, new(salev1.GetSaleResponse))
	if s.GetAvailable() != 0 || s.GetReserved() != 10 || s.GetSold() != 0 || !s.GetOpen() {
		t.Errorf("%v", s)
	}
	c.wantGrab("tv", "late", soldOut)
	for buyer, no := range orders {
		g := c.wantGrab("tv", buyer, already)
		if g.GetOrderNo() != no || g.GetOrderState() != "awaiting_payment" || g.GetPayBeforeTime() == nil {
			t.Errorf("%s: %v", buyer, g)
		}
		ok(c, "Order.MoveOrder", moveOrder(no, "paid", "p"), new(orderv1.MoveOrderResponse))
		if g := c.wantGrab("tv", buyer, already); g.GetOrderState() != "paid" || g.GetPayBeforeTime() != nil {
			t.Errorf("%s: %v", buyer, g)
		}
		if o := c.order(no); o.GetSale() != "tv" || o.GetAmount() != "9.90" || o.GetSubject() != buyer {
			t.Errorf("%v", o)
		}
		break
	}
}

// A unit of a cancelled order is available again. Its buyer may grab again, unless the sale has once.
func TestUnitOfACancelledOrderComesBack(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	ok(c, "Stock.Deduct", deduct("tv", "others", 9), new(stockv1.DeductResponse))
	for _, once := range []bool{false, true} {
		s := saleOf(fmt.Sprint("once-", once), "tv", "COIN")
		s.Once = once
		s.GetOrder().PayWithin = durationpb.New(time.Second)
		c.putSale(s)
		first := c.wantGrab(s.GetSale(), "ada", won)
		c.wantGrab(s.GetSale(), "bob", soldOut)
		eventually(t, 30*time.Second, "bob gets it", func() bool {
			return c.grab(s.GetSale(), "bob").GetOutcome() == won
		})
		eventually(t, 30*time.Second, "it is back again", func() bool { return c.item("tv").GetAvailable() == 1 })
		g := c.grab(s.GetSale(), "ada")
		if once && (g.GetOutcome() != already || g.GetOrderNo() != first.GetOrderNo() ||
			g.GetOrderState() != "cancelled") ||
			!once && (g.GetOutcome() != won || g.GetOrderNo() == first.GetOrderNo()) {
			t.Errorf("once %t: %v, then %v", once, first, g)
		}
		eventually(t, 30*time.Second, "all is back", func() bool { return c.item("tv").GetAvailable() == 1 })
	}
}

func TestSaleHasHours(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	s := saleOf("tv", "tv", "COIN")
	s.OpenTime = timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Microsecond))
	c.putSale(s)
	c.wantGrab("tv", "ada", notOpen)
	s.OpenTime = nil
	c.putSale(s)
	first := c.wantGrab("tv", "ada", won)
	s.CloseTime = timestamppb.New(time.Now().Add(-time.Hour).Truncate(time.Microsecond))
	c.putSale(s)
	c.wantGrab("tv", "bob", over)
	if g := c.wantGrab("tv", "ada", already); g.GetOrderNo() != first.GetOrderNo() {
		t.Errorf("%v, then %v", first, g)
	}
	if x := ok(c, "Sale.GetSale", &salev1.GetSaleRequest{Sale: "tv"}, new(salev1.GetSaleResponse)); x.GetOpen() {
		t.Errorf("%v", x)
	}
	if a := c.call(connectJSON, "Sale.Grab", grab("none", "ada")); a.Reason(t) != "SALE_NOT_FOUND" {
		t.Errorf("%s", a.Raw)
	}
	if a := c.call(connectJSON, "Sale.PutSale", putSale(saleOf("x", "none", "COIN"))); a.Reason(t) != "ITEM_NOT_FOUND" {
		t.Errorf("%s", a.Raw)
	}
	fine := saleOf("x", "tv", "COIN")
	fine.GetOrder().Amount = "0.001"
	if a := c.call(connectJSON, "Sale.PutSale", putSale(fine)); a.Reason(t) != "AMOUNT_TOO_PRECISE" ||
		!slices.Equal(a.Fields(t), []string{"sale.order.amount"}) {
		t.Errorf("%s", a.Raw)
	}
}

// A sale whose orders could not be created is refused, with the field that is wrong.
func TestASaleNeedsAMachineForItsOrders(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	own := ticket("own", "")
	for i, r := range []*machinev1.DefineMachineRequest{ticket("expires", ""), ticket("waits", ""), own} {
		r.Definition.States[1].OrderParts = machinev1.OrderParts_ORDER_PARTS_CANCEL
		switch i {
		case 0:
			r.Definition.States[1].OrderParts = machinev1.OrderParts_ORDER_PARTS_UNSPECIFIED
		case 1:
			r.Definition.States[0].Timer = nil
			r.Definition.Moves[0].By = nil
		}
		ok(c, "Machine.DefineMachine", r, new(machinev1.DefineMachineResponse))
	}
	for _, x := range []struct {
		machine, amount string
		within          time.Duration
		reason, field   string
	}{
		{"missing", "1", 0, "MACHINE_NOT_FOUND", "machine"},
		{"expires", "1", 0, "FIELD_INVALID", "machine"},
		{"waits", "1", 0, "FIELD_INVALID", "machine"},
		{"waits", "1", time.Hour, "FIELD_INVALID", "payWithin"},
		{"own", "0", 0, "FIELD_INVALID", "machine"},
		{"own", "1", time.Hour, "", ""},
		{"own", "1", 0, "", ""},
		{"simple_order", "0", 0, "", ""},
		{"order", "1", 0, "", ""},
	} {
		s := saleOf("x", "tv", "COIN")
		o := s.GetOrder()
		if o.Machine, o.Amount = x.machine, x.amount; x.within > 0 {
			o.PayWithin = durationpb.New(x.within)
		}
		a := c.call(connectJSON, "Sale.PutSale", putSale(s))
		if x.reason == "" {
			c.putSale(s)
			if g := ok(c, "Sale.Grab", grab("x", x.machine+x.within.String()),
				new(salev1.GrabResponse)); g.GetOutcome() != won {
				t.Errorf("%+v: %v", x, g)
			}
		} else if a.Reason(t) != x.reason || !strings.Contains(string(a.Raw), `"sale.order.`+x.field+`"`) {
			t.Errorf("%+v: %s", x, a.Raw)
		}
	}
}

func TestAGrabIsTheResultOfItsToken(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	c.putSale(saleOf("tv", "tv", "COIN"))
	issued := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	g := ok(c, "Sale.Grab", grab("tv", "ada"), new(salev1.GrabResponse), "Submit-Token", issued, "Claim-Key", `"page"`)
	a := c.call(connectJSON, "Sale.Grab", grab("tv", "ada"), "Submit-Token", issued)
	if a.Reason(t) != "TOKEN_SPENT" || a.State("first_resource") != "grab" ||
		a.State("first_order_no") != g.GetOrderNo() {
		t.Errorf("%s", a.Raw)
	}
	claimed := ok(c, "Idempotency.GetClaim", &idempotencyv1.GetClaimRequest{Key: "page"},
		new(idempotencyv1.GetClaimResponse)).GetClaim()
	if claimed.GetResult() != g.GetOrderNo() {
		t.Errorf("%v", claimed)
	}
}

// Every outcome of a grab spends its token, and a repeat under its key gets the same answer.
func TestAGrabWithoutAUnitSpendsItsToken(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	later := saleOf("tv", "tv", "COIN")
	later.OpenTime = timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Second))
	c.putSale(later)
	issued := ok(c, "Idempotency.IssueTokens", &idempotencyv1.IssueTokensRequest{},
		new(idempotencyv1.IssueTokensResponse)).GetTokens()[0]
	early := func() salev1.Outcome {
		return ok(c, "Sale.Grab", grab("tv", "ada"), new(salev1.GrabResponse), "Submit-Token", issued,
			"Idempotency-Key", "early").GetOutcome()
	}
	if o := early(); o != salev1.Outcome_OUTCOME_NOT_OPEN {
		t.Errorf("before the sale: %v", o)
	}
	later.OpenTime = nil
	c.putSale(later)
	if o := early(); o != salev1.Outcome_OUTCOME_NOT_OPEN {
		t.Errorf("a repeat: %v", o)
	}
	if a := c.call(connectJSON, "Sale.Grab", grab("tv", "ada"), "Submit-Token", issued); a.Reason(t) != "TOKEN_SPENT" {
		t.Errorf("%s", a.Raw)
	}
	g := ok(c, "Sale.Grab", grab("tv", "ada"), new(salev1.GrabResponse), "Idempotency-Key", "in time")
	if g.GetOutcome() != salev1.Outcome_OUTCOME_WON {
		t.Errorf("under a new key: %v", g)
	}
}

func TestASaleKeepsWhatItGives(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	s := saleOf("tv", "tv", "COIN")
	s.GetOrder().Amount = "19"
	for _, existed := range []bool{false, true} {
		r := ok(c, "Sale.PutSale", putSale(s), new(salev1.PutSaleResponse))
		if r.GetExisted() != existed || r.GetSale().GetOrder().GetAmount() != "19.00" {
			t.Errorf("%v", r)
		}
		s.GetOrder().Amount = "19.0"
	}
	s.Gives = &salev1.Sale_Coupon{Coupon: &salev1.SaleCoupon{Campaign: "spring"}}
	if a := c.refused("Sale.PutSale", putSale(s), "FIELD_INVALID"); !strings.Contains(string(a.Raw), "sale.sale") {
		t.Errorf("%s", a.Raw)
	}
}

func TestManyGrabsAreAnsweredEach(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	s := saleOf("tv", "tv", "COIN")
	s.PerBuyer = 2
	c.putSale(s)
	r := &salev1.GrabManyRequest{Sale: "tv", Grabs: []*salev1.Grab{{Buyer: "ada"}, {Buyer: "ada", Unit: 2},
		{Buyer: "ada"},
		{Buyer: "ada", Unit: 3}}}
	for i := range 12 {
		r.Grabs = append(r.Grabs, &salev1.Grab{Buyer: fmt.Sprint("b-", i)})
	}
	res := ok(c, "Sale.GrabMany", r, new(salev1.GrabManyResponse), "Idempotency-Key", "k").GetResults()
	count := map[salev1.Outcome]int{}
	for _, x := range res {
		count[x.GetGrab().GetOutcome()]++
	}
	if count[won] != 10 || count[already] != 1 || count[soldOut] != 4 ||
		res[3].GetError().GetReason() != "FIELD_INVALID" ||
		res[0].GetGrab().GetOrderNo() == res[1].GetGrab().GetOrderNo() ||
		res[0].GetGrab().GetOrderNo() != res[2].GetGrab().GetOrderNo() {
		t.Errorf("%v: %v", count, res)
	}
	again := ok(c, "Sale.GrabMany", r, new(salev1.GrabManyResponse), "Idempotency-Key", "k").GetResults()
	for i := range again {
		if i != 3 && !proto.Equal(again[i], res[i]) {
			t.Errorf("%d: %v, then %v", i, res[i], again[i])
		}
	}
}

// The grabs of a GrabMany in an Execute commit together with its other operations, or none of them does.
func TestManyGrabsInAnExecute(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	s := saleOf("tv", "tv", "COIN")
	s.PerBuyer = 2
	c.putSale(s)
	many := func(more ...*salev1.Grab) *salev1.GrabManyRequest {
		r := &salev1.GrabManyRequest{Sale: "tv",
			Grabs: []*salev1.Grab{{Buyer: "ada"}, {Buyer: "ada", Unit: 2}, {Buyer: "ada"}}}
		for i := range 12 {
			r.Grabs = append(r.Grabs, &salev1.Grab{Buyer: fmt.Sprint("b-", i)})
		}
		r.Grabs = append(r.Grabs, more...)
		return r
	}
	a := c.call(connectProto, "Batch.Execute", execute(operation("", restock("tv", "second", 1)),
		operation("", many(&salev1.Grab{Buyer: "ada", Unit: 3}))))
	if a.Reason(t) != "FIELD_INVALID" || a.Fields(t)[0] != "operations[1].request.grabs[15].unit" {
		t.Errorf("%s", a.Raw)
	}
	c.wantItem("tv", "10/0/0/10")
	r := execute(operation("", restock("tv", "second", 1)), operation("", many()))
	for n, want := range []map[salev1.Outcome]int{{won: 11, already: 1, soldOut: 3}, {already: 12, soldOut: 3}} {
		responses, _ := c.executed(r)
		res := responses[1].(*salev1.GrabManyResponse).GetResults()
		count := map[salev1.Outcome]int{}
		for _, x := range res {
			count[x.GetGrab().GetOutcome()]++
		}
		if !maps.Equal(count, want) || res[0].GetGrab().GetOrderNo() != res[2].GetGrab().GetOrderNo() {
			t.Errorf("Execute %d: %v, want %v: %v", n, count, want, res)
		}
	}
	c.wantItem("tv", "0/11/0/11")
}

func TestSaleGivesCoupons(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	c.putSale(&salev1.Sale{Sale: "spring", Item: "tv", Gives: &salev1.Sale_Coupon{Coupon: &salev1.SaleCoupon{
		Campaign: "spring", Life: durationpb.New(time.Hour), Metadata: map[string]string{"off": "10"}}}})
	g := c.wantGrab("spring", "ada", won)
	if again := c.wantGrab("spring", "ada", already); again.GetCoupon() != g.GetCoupon() || len(g.GetCoupon()) != 20 {
		t.Errorf("%v, then %v", g, again)
	}
	x := c.coupon(g.GetCoupon())
	if x.GetOwner() != "ada" || x.GetState() != claimedCoupon || x.GetMetadata()["off"] != "10" ||
		x.GetExpireTime().AsTime().Sub(x.GetCreateTime().AsTime()) != time.Hour {
		t.Errorf("%v", x)
	}
	for i := range 9 {
		c.wantGrab("spring", fmt.Sprint("b-", i), won)
	}
	c.wantGrab("spring", "late", soldOut)
	c.wantItem("tv", "0/0/10/10")
}

const claimedCoupon, lockedCoupon, usedCoupon, expiredCoupon = salev1.CouponState_COUPON_STATE_CLAIMED,
	salev1.CouponState_COUPON_STATE_LOCKED, salev1.CouponState_COUPON_STATE_USED,
	salev1.CouponState_COUPON_STATE_EXPIRED

func (c *caller) coupon(code string) *salev1.Coupon {
	c.T.Helper()
	return ok(c, "Sale.GetCoupon", &salev1.GetCouponRequest{Code: code}, new(salev1.GetCouponResponse)).GetCoupon()
}

func (c *caller) wantCoupon(code string, state salev1.CouponState) {
	c.T.Helper()
	if x := c.coupon(code); x.GetState() != state {
		c.T.Errorf("coupon %v, want %v", x, state)
	}
}

func TestCouponIsClaimedAndUsedOnce(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	made := ok(c, "Sale.IssueCoupons", &salev1.IssueCouponsRequest{Campaign: "spring", Count: 1000},
		new(salev1.IssueCouponsResponse)).GetCodes()
	if len(made) != 1000 || len(made[0]) != 20 || made[0] == made[1] {
		t.Errorf("%d codes, such as %v", len(made), made[:2])
	}
	ok(c, "Sale.IssueCoupons", issue("spring", "A", "B"), new(salev1.IssueCouponsResponse))
	if again := ok(c, "Sale.IssueCoupons", issue("spring", "A", "B"),
		new(salev1.IssueCouponsResponse)); !again.GetExisted() {
		t.Errorf("%v", again)
	}
	plain := issue("autumn", "A", "B")
	plain.Metadata = nil
	brief := issue("spring", "A", "B")
	brief.ExpireTime = timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Microsecond))
	for differs, r := range map[string]*salev1.IssueCouponsRequest{"campaign": issue("autumn", "A", "B"),
		"campaign,metadata": plain, "codes": issue("spring", "C", "A", "B"), "expire_time": brief} {
		a := c.call(connectJSON, "Sale.IssueCoupons", r)
		if a.Reason(t) != "COUPON_EXISTS_DIFFERENT" || a.State("code") != "A" || a.State("first_id") == "" ||
			a.State("differs") != differs {
			t.Errorf("%q: %s", differs, a.Raw)
		}
		if got := a.Fields(t); differs == "codes" && !slices.Equal(got, []string{"codes[1]", "codes[2]"}) {
			t.Errorf("%v", got)
		}
	}
	brief.Codes = []string{"S"}
	ok(c, "Sale.IssueCoupons", brief, new(salev1.IssueCouponsResponse))
	if brief.ExpireTime = nil; c.call(connectJSON, "Sale.IssueCoupons", brief).State("differs") != "expire_time" {
		t.Error("a coupon that lives for an hour is the same as one that lives for the longest time")
	}
	refused := func(name string, m proto.Message, reason string) answer {
		t.Helper()
		a := c.call(connectJSON, name, m)
		if a.Reason(t) != reason {
			t.Errorf("%s, want %s", a.Raw, reason)
		}
		return a
	}
	refused("Sale.RedeemCoupon", redeem("A", "ada", "p"), "COUPON_UNCLAIMED")
	ok(c, "Sale.ClaimCoupon", claimCoupon("A", "ada"), new(salev1.ClaimCouponResponse))
	if again := ok(c, "Sale.ClaimCoupon", claimCoupon("A", "ada"),
		new(salev1.ClaimCouponResponse)); !again.GetExisted() {
		t.Errorf("%v", again)
	}
	refused("Sale.ClaimCoupon", claimCoupon("A", "bob"), "COUPON_TAKEN")
	if a := refused("Sale.ClaimCoupon", claimCoupon("B", "ada"), "COUPON_OWNED"); a.State("code") != "A" {
		t.Errorf("%s", a.Raw)
	}
	refused("Sale.RedeemCoupon", redeem("A", "bob", "p"), "COUPON_TAKEN")
	ok(c, "Sale.RedeemCoupon", redeem("A", "ada", "p"), new(salev1.RedeemCouponResponse))
	if again := ok(c, "Sale.RedeemCoupon", redeem("A", "ada", "p"),
		new(salev1.RedeemCouponResponse)); !again.GetExisted() {
		t.Errorf("%v", again)
	}
	if a := refused("Sale.RedeemCoupon", redeem("A", "ada", "q"), "STATE_TAKEN"); a.State("cause") != "p" {
		t.Errorf("%s", a.Raw)
	}
	refused("Sale.GetCoupon", &salev1.GetCouponRequest{Code: "none"}, "COUPON_NOT_FOUND")
	refused("Machine.Move", &machinev1.MoveRequest{Machine: "coupon", Key: "B", To: "claimed", Cause: "me"},
		"MOVE_NOT_YOURS")
	refused("Machine.DefineMachine", ticket("coupon", ""), "FIELD_INVALID")
	own := saleOf("own", "tv", "COIN")
	own.GetOrder().Machine = "payment"
	if a := refused("Sale.PutSale", putSale(own), "FIELD_INVALID"); !strings.Contains(string(a.Raw),
		"sale.order.machine") {
		t.Errorf("%s", a.Raw)
	}
	refused("Machine.CreateInstance", &machinev1.CreateInstanceRequest{Machine: "coupon", Key: "mine"}, "FIELD_INVALID")
	got := ok(c, "Sale.ListCoupons", &salev1.ListCouponsRequest{Campaign: "spring",
		State: usedCoupon}, new(salev1.ListCouponsResponse)).GetCoupons()
	if len(got) != 1 || got[0].GetCode() != "A" || !proto.Equal(got[0], c.coupon("A")) {
		t.Errorf("%v", got)
	}
}

func TestOrderUsesItsCoupon(t *testing.T) {
	t.Parallel()
	c := saleSite(t)
	ends := timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Microsecond))
	r := issue("spring", "A")
	r.ExpireTime = ends
	ok(c, "Sale.IssueCoupons", r, new(salev1.IssueCouponsResponse))
	ok(c, "Sale.ClaimCoupon", claimCoupon("A", "ada"), new(salev1.ClaimCouponResponse))
	buy := func(no, who string) *orderv1.CreateOrderRequest {
		return &orderv1.CreateOrderRequest{OrderNo: no, Subject: who, Asset: "COIN", Amount: "1", Coupon: "A"}
	}
	if a := c.call(connectJSON, "Order.CreateOrder", buy("o-0", "bob")); a.Reason(t) != "COUPON_TAKEN" {
		t.Errorf("%s", a.Raw)
	}
	if o := c.createOrder(buy("o-1", "ada")); o.GetOrder().GetCoupon() != "A" {
		t.Errorf("%v", o)
	}
	c.wantCoupon("A", lockedCoupon)
	if a := c.call(connectJSON, "Order.CreateOrder", buy("o-2", "ada")); a.Reason(t) != "STATE_TAKEN" ||
		a.State("cause") != "o-1" {
		t.Errorf("%s", a.Raw)
	}
	ok(c, "Order.CancelOrder", cancelOrder("o-1"), new(orderv1.CancelOrderResponse))
	c.wantCoupon("A", claimedCoupon)
	if x := c.coupon("A"); !proto.Equal(x.GetExpireTime(), ends) {
		t.Errorf("%v", x)
	}
	c.createOrder(buy("o-3", "ada"))
	ok(c, "Order.MoveOrder", moveOrder("o-3", "paid", "p"), new(orderv1.MoveOrderResponse))
	c.wantCoupon("A", usedCoupon)

	// A coupon whose life ends while it is locked expires when it comes back.
	r = issue("summer", "B")
	r.ExpireTime = timestamppb.New(time.Now().Add(2 * time.Second).Truncate(time.Microsecond))
	ok(c, "Sale.IssueCoupons", r, new(salev1.IssueCouponsResponse))
	ok(c, "Sale.ClaimCoupon", claimCoupon("B", "ada"), new(salev1.ClaimCouponResponse))
	last := buy("o-4", "ada")
	last.Coupon = "B"
	c.createOrder(last)
	eventually(t, 30*time.Second, "its time is over",
		func() bool { return time.Now().After(r.ExpireTime.AsTime().Add(time.Second)) })
	c.wantCoupon("B", lockedCoupon)
	ok(c, "Order.CancelOrder", cancelOrder("o-4"), new(orderv1.CancelOrderResponse))
	c.wantCoupon("B", expiredCoupon)
}
