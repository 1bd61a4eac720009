package rpc_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

const batched = stockv1.Strategy_STRATEGY_BATCHED

// alone are the strategies whose calls have a transaction of their own.
var alone = []stockv1.Strategy{stockv1.Strategy_STRATEGY_ATOMIC, stockv1.Strategy_STRATEGY_OPTIMISTIC,
	stockv1.Strategy_STRATEGY_PESSIMISTIC, stockv1.Strategy_STRATEGY_ADVISORY}

// A call's strategy decides, or else that of its item, which can change at any time.
func TestStrategyOfTheCallOrOfTheItemIsUsed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.stocked("tea")
	for _, strategy := range append(alone, batched) {
		name := strategy.String()
		one := deduct("tea", "own "+name, 1)
		one.Strategy, one.MaxAttempts = strategy, 5
		first := ok(c, "Stock.Deduct", one, new(stockv1.DeductResponse), "Idempotency-Key", name)
		if first.GetExisted() || first.GetReservation().GetState() != stockv1.ReservationState_RESERVATION_STATE_SOLD {
			t.Errorf("%s: %v", name, first)
		}
		for _, other := range alone { // neither strategy nor tries are content: the record answers
			again := proto.Clone(one).(*stockv1.DeductRequest)
			again.Strategy, again.MaxAttempts = other, 0
			if a := c.call(connectJSON, "Stock.Deduct", again, "Idempotency-Key", name); !a.Replayed() {
				t.Errorf("%s, repeated by %s: %s", name, other, a.Raw)
			}
		}
		put := putItem("tea", name)
		put.Strategy = strategy
		if i := ok(c, "Stock.PutItem", put, new(stockv1.PutItemResponse)).GetItem(); i.GetStrategy() != strategy {
			t.Errorf("%s: the item has %s", name, i.GetStrategy())
		}
		ok(c, "Stock.Reserve", reserve("tea", "item "+name, 1), new(stockv1.ReserveResponse))
		again := reserve("tea", "item "+name, 1)
		again.Strategy = strategy
		if got := ok(c, "Stock.Reserve", again, new(stockv1.ReserveResponse)); !got.GetExisted() {
			t.Errorf("%s: %v", name, got)
		}
	}
	c.wantItem("tea", "80/10/10/100")
	if i := c.item("tea"); i.GetStrategy() != batched {
		t.Errorf("the item has %s", i.GetStrategy())
	}
}

// A strategy that the call names needs a transaction of its own. The strategy of the item is ignored in a shared one.
func TestStrategyOfACallStandsAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.stocked("tea")
	put := putItem("tea", "")
	put.Strategy = stockv1.Strategy_STRATEGY_PESSIMISTIC
	ok(c, "Stock.PutItem", put, new(stockv1.PutItemResponse))
	ok(c, "Stock.Deduct", deduct("tea", "alone", 1), new(stockv1.DeductResponse))
	c.executed(execute(operation("", deduct("tea", "yields", 1)), operation("", restock("tea", "with", 1))))
	ok(c, "Stock.Deduct", deduct("tea", "claimed", 1), new(stockv1.DeductResponse), "Claim-Key", `"page-1"`)
	for _, strategy := range alone {
		named := deduct("tea", "named", 1)
		named.Strategy = strategy
		a := c.call(connectJSON, "Batch.Execute",
			execute(operation("", restock("tea", "never", 1)), operation("", named)))
		if a.Code != "invalid_argument" || a.Reason(t) != "STRATEGY_STANDS_ALONE" ||
			!strings.Contains(a.Message, "operations[1].request.strategy ") {
			t.Errorf("in an Execute: %s", a.Raw)
		}
		a = c.call(connectJSON, "Stock.Deduct", named, "Claim-Key", `"page-2"`)
		if a.Code != "invalid_argument" || a.Reason(t) != "STRATEGY_STANDS_ALONE" {
			t.Errorf("with a claim: %s", a.Raw)
		}
		a = c.call(connectJSON, "Stock.Deduct", named, "Submit-Token", c.plain())
		if a.Code != "invalid_argument" || a.Reason(t) != "STRATEGY_STANDS_ALONE" {
			t.Errorf("with a token: %s", a.Raw)
		}
	}
	named := deduct("tea", "named", 1)
	named.Strategy = batched
	c.executed(execute(operation("", named)))
	c.wantItem("tea", "87/5/9/101")
}
