package crash_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// onSale are the items, each with a sale of its name, and their units: fewer than the visitors want. Orders of
// "fleeting" have to be paid within a second; "gift" gives coupons.
var onSale = map[string]int64{"lasting": 30, "fleeting": 6, "gift": 25}

const (
	guests  = 90 // buyers, for each of whom several callers grab
	printed = 40 // coupons to claim
)

// visit is one caller's session for a buyer: it grabs or claims, and pays or cancels its orders, or uses its coupon.
type visit struct {
	w           *world
	name, buyer string
	steps       []*step
	facts       map[string]string // in answers, by their subject
	names       []string          // winners named by answers "already"
	outcomes    map[string]int
}

// answered adapts any response to existing. A response without a field existed must be the same in a repeat.
type answered struct{ proto.Message }

func (a answered) GetExisted() bool {
	x, ok := a.Message.(interface{ GetExisted() bool })
	return ok && x.GetExisted()
}

func (a answered) String() string { return fmt.Sprint(a.Message) }

// ask repeats a call under its key until its outcome is known. ok: it was not refused.
func ask[R proto.Message](v *visit, call func(context.Context, *client.Client) (R, error)) (response R, ok bool) {
	s := &step{key: fmt.Sprint(v.name, "/", len(v.steps))}
	s.call = func(ctx context.Context, c *client.Client) (existing, error) {
		r, err := call(ctx, c)
		if err == nil {
			response = r
		}
		return answered{r}, err
	}
	v.steps = append(v.steps, s)
	if v.w.finish(s) {
		v.w.decided.Add(1)
	}
	reason, _, _ := strings.Cut(s.refused, " ")
	v.count(reason)
	return response, s.refused == "" && s.definite()
}

// count counts an outcome.
func (v *visit) count(outcome string) {
	v.outcomes[outcome]++
	v.w.outcomes.Lock()
	defer v.w.outcomes.Unlock()
	if v.w.outcomes.of == nil {
		v.w.outcomes.of = map[string]int64{}
	}
	v.w.outcomes.of[outcome]++
}

// unseen returns an outcome that has not occurred yet, or not often enough; empty: none.
func (w *world) unseen() string {
	w.outcomes.Lock()
	defer w.outcomes.Unlock()
	for name, n := range onSale {
		won := "OUTCOME_WON " + name
		if w.outcomes.of[won] < n || w.outcomes.of[won] == n && name != "gift" { // ended orders free units
			return won
		}
	}
	for _, outcome := range []string{"OUTCOME_SOLD_OUT lasting", "OUTCOME_SOLD_OUT gift", "OUTCOME_ALREADY lasting",
		"COUPON_TAKEN", "STATE_TAKEN"} {
		if w.outcomes.of[outcome] == 0 {
			return outcome
		}
	}
	return ""
}

// finish repeats a step until its outcome is known.
func (w *world) finish(s *step) bool {
	for end := time.Now().Add(patience); !w.take(s); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Errorf("%s has no definite answer", s.key)
			return false
		}
	}
	return true
}

// note records a fact that may not change during the visit.
func (v *visit) note(about, fact string) {
	if v.facts[about] != "" {
		v.w.t.Errorf("%s: %s was %s before, and is %s", v.name, about, v.facts[about], fact)
	}
	v.facts[about] = fact
}

// visitor makes one visit after the other until stop.
func (w *world) visitor(n int, stop <-chan struct{}) (all []*visit) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return all
		default:
		}
		v := &visit{w: w, name: fmt.Sprintf("visit-%d-%d", n, i), buyer: fmt.Sprint("guest-", rand.IntN(guests)),
			facts:    map[string]string{},
			outcomes: map[string]int{}}
		all = append(all, v)
		switch i % 5 {
		case 0, 1:
			v.order(v.grab([]string{"lasting", "fleeting"}[i%5]))
		case 2:
			v.many()
		case 3:
			v.coupon(v.grab("gift").GetCoupon())
		case 4:
			code := fmt.Sprint("PRINTED-", rand.IntN(printed))
			if _, ok := ask(v, func(ctx context.Context, c *client.Client) (*salev1.ClaimCouponResponse, error) {
				return c.Sales.ClaimCoupon(ctx, &salev1.ClaimCouponRequest{Code: code, Owner: v.buyer})
			}); ok {
				v.facts["owner of "+code] = v.buyer
				v.coupon(code)
			}
		}
	}
}

func (v *visit) grab(sale string) *salev1.GrabResponse {
	g, _ := ask(v, func(ctx context.Context, c *client.Client) (*salev1.GrabResponse, error) {
		return c.Sales.Grab(ctx, &salev1.GrabRequest{Sale: sale, Grab: &salev1.Grab{Buyer: v.buyer}})
	})
	v.told(sale, v.buyer, g)
	return g
}

func (v *visit) told(sale, buyer string, g *salev1.GrabResponse) {
	name := g.GetOrderNo() + g.GetCoupon()
	v.count(g.GetOutcome().String() + " " + sale)
	switch g.GetOutcome() {
	case salev1.Outcome_OUTCOME_WON:
		v.note("winner of "+name, sale+" "+buyer)
	case salev1.Outcome_OUTCOME_ALREADY:
		v.names = append(v.names, "winner of "+name+" is "+sale+" "+buyer)
	}
}

// many grabs for four buyers in one call, and pays, cancels or leaves the orders of the winners.
func (v *visit) many() {
	r := &salev1.GrabManyRequest{Sale: "lasting"}
	for range 4 {
		r.Grabs = append(r.Grabs, &salev1.Grab{Buyer: fmt.Sprint("guest-", rand.IntN(guests))})
	}
	res, ok := ask(v, func(ctx context.Context, c *client.Client) (*salev1.GrabManyResponse, error) {
		res, err := c.Sales.GrabMany(ctx, r)
		for _, x := range res.GetResults() {
			if x.GetError() != nil { // such as a batch interrupted by a kill: a retry with the same key grabs the rest
				err = errors.Join(err, errors.New(x.GetError().GetReason()))
			}
		}
		return res, err
	})
	for n, x := range res.GetResults() {
		if ok {
			v.told("lasting", r.Grabs[n].GetBuyer(), x.GetGrab())
			v.order(x.GetGrab())
		}
	}
}

// order pays the order of a winner, cancels it, or leaves it.
func (v *visit) order(g *salev1.GrabResponse) {
	if g.GetOutcome() == salev1.Outcome_OUTCOME_WON {
		v.settle(g.GetOrderNo(), []string{"paid", "cancelled", ""}[rand.IntN(3)])
	}
}

// settle moves an order.
func (v *visit) settle(no, to string) {
	if to == "" {
		return
	}
	if _, ok := ask(v, func(ctx context.Context, c *client.Client) (existing, error) {
		if to == "cancelled" {
			return c.Orders.CancelOrder(ctx, &orderv1.CancelOrderRequest{OrderNo: no, Cause: v.name})
		}
		return c.Orders.MoveOrder(ctx, &orderv1.MoveOrderRequest{OrderNo: no, To: to, Cause: v.name})
	}); ok {
		v.note("end of "+no, to+" "+v.name)
	}
}

// coupon redeems a coupon, or uses it for an order, which may be cancelled. Other visits of the same buyer may try too.
func (v *visit) coupon(code string) {
	if code == "" {
		return
	}
	if end := []string{"", "paid", "cancelled"}[rand.IntN(3)]; end != "" {
		if _, ok := ask(v, func(ctx context.Context, c *client.Client) (*orderv1.CreateOrderResponse, error) {
			return c.Orders.CreateOrder(ctx, &orderv1.CreateOrderRequest{OrderNo: v.name, Subject: v.buyer,
				Asset: "CNY", Amount: "1", Coupon: code})
		}); !ok {
			return
		}
		if v.settle(v.name, end); end == "paid" {
			v.note("use of "+code, v.name)
			return
		}
	}
	if r, ok := ask(v, func(ctx context.Context, c *client.Client) (*salev1.RedeemCouponResponse, error) {
		return c.Sales.RedeemCoupon(ctx, &salev1.RedeemCouponRequest{Code: code, Owner: v.buyer, Cause: v.name})
	}); ok {
		v.note("use of "+code, r.GetCoupon().GetCause())
	}
}

// beginSales puts the items on sale, and issues the coupons to claim.
func (w *world) beginSales() {
	ctx := context.Background()
	c := w.once()
	defer c.Close()
	var codes []string
	for n := range printed {
		codes = append(codes, fmt.Sprint("PRINTED-", n))
	}
	_, err := c.Sales.IssueCoupons(ctx, &salev1.IssueCouponsRequest{Campaign: "printed", Codes: codes})
	for name, n := range onSale {
		s := &salev1.Sale{Sale: name, Item: name,
			Gives: &salev1.Sale_Order{Order: &salev1.SaleOrder{Asset: "CNY", Amount: "9", Machine: "simple_order"}}}
		switch name {
		case "fleeting":
			s.GetOrder().PayWithin = durationpb.New(time.Second)
		case "gift":
			s.Gives = &salev1.Sale_Coupon{Coupon: &salev1.SaleCoupon{Campaign: name}}
		}
		if err == nil {
			_, err = c.Stock.PutItem(ctx, &stockv1.PutItemRequest{Item: name})
		}
		if err == nil {
			_, err = c.Stock.Restock(ctx, &stockv1.RestockRequest{Item: name, ChangeNo: "first", Quantity: n})
		}
		if err == nil {
			_, err = c.Sales.PutSale(ctx, &salev1.PutSaleRequest{Sale: s})
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// TestGrabsAndCouponsHappenOnceDespiteKills repeatedly kills both servers and Postgres, and cuts connections at COMMIT,
// while callers grab, pay and cancel, and claim and use coupons.
func TestGrabsAndCouponsHappenOnceDespiteKills(t *testing.T) {
	t.Parallel()
	w := &world{t: t, db: pgtest.NewDurable(t)}
	for range 2 {
		w.lines = append(w.lines, newLine(t, w.db.AppDSN))
	}
	w.begin()
	w.beginSales()
	stop := make(chan struct{})
	var load sync.WaitGroup
	var cuts atomic.Int32
	done := make([][]*visit, callers)
	for n := range done {
		load.Go(func() { done[n] = w.visitor(n, stop) })
	}
	load.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-w.lines[i%2].cutNext(cutAt(i/2%3), "guest-", func() {}):
				cuts.Add(1)
			case <-stop:
				return
			}
			<-time.After(200 * time.Millisecond)
		}
	})
	kills := w.killAtRandom(5 * time.Second)
	w.until("cuts", func() bool { return cuts.Load() > 5 })
	defer func() {
		if missing := w.unseen(); missing != "" {
			t.Log("no visitor had this, or not often enough: ", missing)
		}
	}()
	w.until("every outcome", func() bool { return w.unseen() == "" })
	close(stop)
	load.Wait()
	for n := range done {
		load.Go(func() {
			for _, v := range done[n] {
				for _, s := range v.steps {
					w.finish(s) // the same answer, or the test fails
				}
			}
		})
	}
	load.Wait()
	all := slices.Concat(done...)
	t.Logf("%d visits, %d answers, killed %v, cut %d connections", len(all), w.decided.Load(), kills, cuts.Load())
	if kills["postgres"] == 0 || kills["server"] == 0 {
		t.Error("the test killed too little")
	}
	w.judgeVisits(all)
}

// judgeVisits compares all answers with the database.
func (w *world) judgeVisits(all []*visit) {
	w.until("recorded", func() bool { // by the scheduler
		return query[bool](w, w.db, "select count(*) = 0 from machine_instances where timer_at <= now()")
	})
	facts := map[string]string{}
	for _, v := range all {
		for about, fact := range v.facts {
			if first := facts[about]; first != "" && !strings.HasPrefix(about, "owner of ") {
				w.t.Errorf("%s: answers say %s and %s", about, first, fact)
			}
			facts[about] = fact
		}
	}
	for _, v := range all {
		for _, name := range v.names {
			about, winner, _ := strings.Cut(name, " is ")
			if facts[about] != winner {
				w.t.Errorf("%s: the answer to %s was %s, and it is %s", about, v.name, winner, facts[about])
			}
		}
	}
	got := w.facts()
	for about := range maps.Keys(facts) {
		if got[about] != facts[about] {
			w.t.Errorf("%s: %q, and answers said %q", about, got[about], facts[about])
		}
	}
	for about, fact := range got {
		if facts[about] == "" {
			w.t.Errorf("%s is %s, and no answer said so", about, fact)
		}
	}
	w.units()
	w.t.Logf("%d facts, %v", len(facts), w.outcomes.of)
}

// facts returns the facts that answers must have contained: winners, ends of orders that did not time out, and owners
// and uses of coupons.
func (w *world) facts() map[string]string {
	found := map[string]string{}
	for _, fact := range query[[]string](w, w.db, `select array_agg(fact) from (
		select concat('winner of ', order_no, '=', sale, ' ', subject) as fact from order_orders where sale is not null
		union all
		select concat('winner of ', code, '=gift ', i.owner) from coupon_coupons c
			join machine_instances i on i.machine = 'coupon' and i.key = c.code where campaign = 'gift'
		union all
		select concat('owner of ', code, '=', i.owner) from coupon_coupons c
			join machine_instances i on i.machine = 'coupon' and i.key = c.code where campaign = 'printed'
			and i.owner is not null
		union all
		select concat('end of ', key, '=', state, ' ', cause) from machine_instances
			where machine in ('order', 'simple_order') and state in ('paid', 'cancelled')
		union all
		select concat('use of ', key, '=', cause) from machine_instances where machine = 'coupon'
		and state = 'used') f`) {
		about, told, _ := strings.Cut(fact, "=")
		if found[about] != "" {
			w.t.Errorf("%s twice", about)
		}
		found[about] = told
	}
	return found
}

// units checks that units add up, and that no buyer has two.
func (w *world) units() {
	for name, n := range onSale {
		got := query[string](w, w.db, "select format('%s %s %s', available, reserved, sold) from stock_items "+
			"where item = $1", name)
		counts := `select count(*) filter (where i.state = 'pending'), count(*) filter (where i.state = 'paid')
			from order_orders o join machine_instances i on i.machine = o.machine and i.key = o.order_no
			where o.sale = $1`
		if name == "gift" {
			counts = "select 0, count(*) from coupon_coupons where campaign = $1"
		}
		want := query[string](w, w.db, "select format('%s %s %s', $2::bigint - reserved - sold, reserved, sold) "+
			"from ("+counts+") c (reserved, sold)", name, n)
		if got != want {
			w.t.Errorf("%s: %s units are available, reserved and sold; orders and coupons give %s", name, got, want)
		}
	}
	if twice := query[string](w, w.db, `select coalesce(string_agg(buyer, ', '), '') from (
		select sale || ' ' || subject as buyer from order_orders o join machine_instances i on i.machine = o.machine
		and i.key = o.order_no
			where sale is not null and i.state in ('pending', 'paid') group by 1 having count(*) > 1
		union all
		select i.owner from coupon_coupons c join machine_instances i on i.machine = 'coupon' and i.key = c.code
			where i.owner is not null group by campaign, i.owner having count(*) > 1) b`); twice != "" {
		w.t.Errorf("buyers with two units: %s", twice)
	}
}
