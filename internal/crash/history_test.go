package crash_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

const (
	objectUnits   = 8 // of each item of a round, and of its sale
	objectNumbers = 6 // of reservations of an item: few, so that callers use the same
	roundSteps    = 12
	roundCallers  = 8
)

// operation is a call on one object: an item, or a sale with its orders.
type operation struct {
	object, do, name string // name: of a reservation, a buyer or an order
	units            int64
	by               stockv1.Strategy
}

// objectState is the state of an object in the model, which applies calls one after the other.
type objectState struct {
	left, held, sold int64
	states           map[string]string // of reservations; of buyers: their orders
}

// objectModel is the model of all objects.
var objectModel = porcupine.Model{
	Partition: func(calls []porcupine.Operation) [][]porcupine.Operation {
		objects := map[string][]porcupine.Operation{}
		for _, c := range calls {
			object := c.Input.(operation).object
			objects[object] = append(objects[object], c)
		}
		return slices.Collect(maps.Values(objects))
	},
	Init: func() any { return objectState{left: objectUnits, states: map[string]string{}} },
	Step: func(state, input, output any) (bool, any) {
		s, d := state.(objectState), input.(operation)
		s.states = maps.Clone(s.states)
		if d.do == "grab" { // the server makes the number of the order
			return s.grab(d, output.(string))
		}
		return s.end(d) == output, s
	},
	Equal: func(a, b any) bool {
		x, y := a.(objectState), b.(objectState)
		return x.left == y.left && x.held == y.held && x.sold == y.sold && maps.Equal(x.states, y.states)
	},
}

func (s *objectState) end(d operation) string {
	now := s.states[d.name]
	switch d.do {
	case "read":
		return fmt.Sprint(s.left, s.held, s.sold)
	case "cancel order":
		for buyer, no := range s.states {
			if no == d.name {
				delete(s.states, buyer)
				s.left, s.held = s.left+1, s.held-1
				return "cancelled"
			}
		}
		return "cancelled, existed"
	case "reserve", "deduct":
		switch {
		case now == "cancelled first":
			return "RESERVATION_ENDED"
		case now != "":
			return now + ", existed"
		case s.left < d.units:
			return "OUT_OF_STOCK"
		case d.do == "deduct":
			s.left, s.sold, s.states[d.name] = s.left-d.units, s.sold+d.units, "sold"
		default:
			s.left, s.held, s.states[d.name] = s.left-d.units, s.held+d.units, "reserved"
		}
	case "confirm":
		switch now {
		case "":
			return "RESERVATION_NOT_FOUND"
		case "sold":
			return "sold, existed"
		case "cancelled", "cancelled first":
			return "RESERVATION_ENDED"
		}
		s.held, s.sold, s.states[d.name] = s.held-d.units, s.sold+d.units, "sold"
	case "cancel":
		switch now {
		case "":
			s.states[d.name] = "cancelled first"
			return "cancelled"
		case "sold":
			return "RESERVATION_ENDED"
		case "cancelled", "cancelled first":
			return "cancelled, existed"
		}
		s.left, s.held, s.states[d.name] = s.left+d.units, s.held-d.units, "cancelled"
	}
	return s.states[d.name]
}

// grab applies a Grab of a buyer.
func (s *objectState) grab(d operation, output string) (ok bool, after any) {
	no, won := strings.CutPrefix(output, "won ")
	switch held := s.states[d.name]; {
	case held != "":
		return output == "already "+held, *s
	case s.left == 0:
		return output == "sold_out ", *s
	}
	s.left, s.held, s.states[d.name] = s.left-1, s.held+1, no
	return won && no != "", *s
}

// random returns an operation on one of the objects of a round. The first half of the numbers is for reservations, the
// second half for direct sales.
func (w *world) random(round int) operation {
	if rand.IntN(3) == 0 {
		return operation{object: fmt.Sprint("sale-", round), do: []string{"grab", "grab", "grab", "read"}[rand.IntN(4)],
			name: fmt.Sprint("buyer-", rand.IntN(objectUnits+3))}
	}
	n := rand.IntN(objectNumbers)
	d := operation{object: fmt.Sprint([]string{"plain-", "spread-"}[rand.IntN(2)], round), name: fmt.Sprint("n", n),
		units: 1 + int64(n)%3, by: stockv1.Strategy(rand.IntN(6))}
	d.do = []string{"reserve", "reserve", "confirm", "cancel", "read"}[rand.IntN(5)]
	if n >= objectNumbers/2 && d.do != "read" {
		d.do = "deduct"
	}
	return d
}

// response calls a server.
func (d operation) response(ctx context.Context, c *client.Client) (output string, err error) {
	var r interface{ GetReservation() *stockv1.Reservation }
	switch d.do {
	case "reserve":
		r, err = c.Stock.Reserve(ctx, &stockv1.ReserveRequest{Item: d.object, ReservationNo: d.name, Quantity: d.units,
			Strategy: d.by, Life: durationpb.New(time.Hour)})
	case "deduct":
		r, err = c.Stock.Deduct(ctx, &stockv1.DeductRequest{Item: d.object, ReservationNo: d.name, Quantity: d.units,
			Strategy: d.by})
	case "confirm":
		r, err = c.Stock.Confirm(ctx, &stockv1.ConfirmRequest{Item: d.object, ReservationNo: d.name})
	case "cancel":
		r, err = c.Stock.Cancel(ctx, &stockv1.CancelRequest{Item: d.object, ReservationNo: d.name})
	case "read":
		i, err := c.Stock.GetItem(ctx, &stockv1.GetItemRequest{Item: d.object})
		return fmt.Sprint(i.GetItem().GetAvailable(), i.GetItem().GetReserved(), i.GetItem().GetSold()), err
	case "grab":
		g, err := c.Sales.Grab(ctx, &salev1.GrabRequest{Sale: d.object, Grab: &salev1.Grab{Buyer: d.name}})
		return strings.ToLower(strings.TrimPrefix(g.GetOutcome().String(), "OUTCOME_")) + " " + g.GetOrderNo(), err
	case "cancel order":
		o, err := c.Orders.CancelOrder(ctx, &orderv1.CancelOrderRequest{OrderNo: d.name, Cause: "cancel"})
		return o.GetOrder().GetState() + existed(o), err
	}
	if err != nil {
		return "", err
	}
	state := strings.TrimPrefix(r.GetReservation().GetState().String(), "RESERVATION_STATE_")
	return strings.ToLower(state) + existed(r), nil
}

func existed(response any) string {
	if e, ok := response.(interface{ GetExisted() bool }); ok && e.GetExisted() {
		return ", existed"
	}
	return ""
}

// history records calls and their answers.
type history struct {
	*world
	begun time.Time
	mu    sync.Mutex
	calls []porcupine.Operation
	ends  map[string]int
}

// do repeats a call under its key, on any server, until its outcome is known.
func (h *history) do(caller int, key string, d operation) (output string) {
	s := &step{key: key}
	s.call = func(ctx context.Context, c *client.Client) (existing, error) {
		var err error
		if output, err = d.response(ctx, c); client.ReasonOf(err) == client.ReasonReservationNotFound {
			output, err = "RESERVATION_NOT_FOUND", nil // not a recorded refusal: another call may create it later
		}
		return answered{}, err
	}
	from := time.Since(h.begun)
	if !h.finish(s) {
		return ""
	}
	to := time.Since(h.begun)
	h.decided.Add(1)
	if s.refused != "" {
		output, _, _ = strings.Cut(s.refused, " ")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	kind, _, _ := strings.Cut(output, " ")
	h.ends[d.do+" "+kind]++
	h.calls = append(h.calls, porcupine.Operation{ClientId: caller, Input: d, Output: output, Call: int64(from),
		Return: int64(to)})
	return output
}

// round runs concurrent callers of a sale and of two items, one of them in segments.
func (h *history) round(n int) {
	h.put(n)
	h.begun, h.calls = time.Now(), nil
	var load sync.WaitGroup
	for caller := range roundCallers {
		load.Go(func() {
			for i := range roundSteps {
				key, d := fmt.Sprint("round-", n, "/", caller, "/", i), h.random(n)
				no, won := strings.CutPrefix(h.do(caller, key, d), "won ")
				if won && rand.IntN(2) == 0 {
					h.do(caller, key+"/cancel", operation{object: d.object, do: "cancel order", name: no})
				}
			}
		})
	}
	load.Wait()
	for _, object := range []string{"plain-", "spread-", "sale-"} {
		h.do(0, fmt.Sprint("read-", object, n), operation{object: fmt.Sprint(object, n), do: "read"})
	}
	if result := porcupine.CheckOperationsTimeout(objectModel, h.calls, time.Minute); result != porcupine.Ok {
		h.t.Errorf("round %d: %v of %d calls", n, result, len(h.calls))
		for _, c := range h.calls {
			h.t.Logf("%d %v to %v: %v: %v", c.ClientId, time.Duration(c.Call), time.Duration(c.Return), c.Input,
				c.Output)
		}
	}
}

// put creates the objects of a round.
func (h *history) put(n int) {
	setup := func(what string, call func(context.Context, *client.Client) error) {
		h.finish(&step{key: fmt.Sprint(what, "/put"),
			call: func(ctx context.Context, c *client.Client) (existing, error) { return answered{}, call(ctx, c) }})
	}
	sale := fmt.Sprint("sale-", n)
	objects := map[string]int32{fmt.Sprint("plain-", n): 1, fmt.Sprint("spread-", n): 5, sale: 1}
	for object, segments := range objects {
		setup(object, func(ctx context.Context, c *client.Client) error {
			_, err := c.Stock.PutItem(ctx, &stockv1.PutItemRequest{Item: object, Segments: segments})
			return err
		})
		setup(object+"/units", func(ctx context.Context, c *client.Client) error {
			_, err := c.Stock.Restock(ctx, &stockv1.RestockRequest{Item: object, ChangeNo: "first",
				Quantity: objectUnits})
			return err
		})
	}
	setup(sale+"/sale", func(ctx context.Context, c *client.Client) error {
		_, err := c.Sales.PutSale(ctx, &salev1.PutSaleRequest{Sale: &salev1.Sale{Sale: sale, Item: sale,
			Gives: &salev1.Sale_Order{Order: &salev1.SaleOrder{Asset: "CNY", Amount: "9", Machine: "simple_order"}}}})
		return err
	})
}

// TestAnswersOfTwoServersFitOneOrderDespiteKills has callers grab, and reserve and sell by all strategies, on two
// server processes. The servers and Postgres are killed meanwhile. The calls must be linearizable: some sequential
// order of them explains every answer.
func TestAnswersOfTwoServersFitOneOrderDespiteKills(t *testing.T) {
	t.Parallel()
	h := &history{world: &world{t: t, db: pgtest.NewDurable(t)}, ends: map[string]int{}}
	h.begin()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
				h.round(n)
			}
		}
	}()
	kills := h.killAtRandom(4 * time.Second)
	h.until("every end", func() bool { return h.unseen() == "" })
	close(stop)
	rounds := <-done
	t.Logf("%d rounds, %d answers, killed %v: %v", rounds, h.decided.Load(), kills, h.ends)
	if kills["postgres"] == 0 || kills["server"] == 0 {
		t.Error("the test killed too little")
	}
}

// unseen returns an outcome that no call has had yet; empty: none.
func (h *history) unseen() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, end := range []string{"reserve reserved", "reserve reserved,", "reserve OUT_OF_STOCK", "deduct sold",
		"deduct sold,", "deduct OUT_OF_STOCK", "confirm sold", "cancel cancelled", "grab won", "grab already",
		"grab sold_out", "cancel order cancelled"} {
		if h.ends[end] == 0 {
			return end
		}
	}
	return ""
}
