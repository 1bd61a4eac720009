package crash_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// units is the stock of each item: less than the callers want.
const units = 60

var items = map[string]int32{"plain": 1, "spread": 10} // with their segments

// basket is a purchase: a reservation, an instance of a machine, and the use of a coupon that other baskets compete
// for. Its steps run one after the other, each retried under its key until its outcome is known. A refused step ends
// the basket.
type basket struct {
	name, item string
	number     string // of the reservation
	machine    string // of the order
	quantity   int64
	coupon     string
	steps      []*step
}

// step is one call. reservation and instance are their states after the step; empty: unchanged.
type step struct {
	key                   string
	reservation, instance string
	call                  call
	answer, refused       string // when its outcome is known: the response, or the reason with its state
}

type call func(context.Context, *client.Client) (existing, error)

// existing is a response that reports whether the call repeats an earlier one with the same number.
type existing interface {
	proto.Message
	GetExisted() bool
}

func (s *step) definite() bool { return s.answer != "" || s.refused != "" }

func newBasket(n, i int) *basket {
	name := fmt.Sprintf("basket-%d-%d", n, i)
	b := &basket{name: name, number: name, machine: "order", item: []string{"plain", "spread"}[rand.IntN(2)],
		quantity: 1 + rand.Int64N(3),
		coupon:   fmt.Sprint("coupon-", i)}
	add := func(reservation, instance string, call call) {
		b.steps = append(b.steps, &step{key: fmt.Sprint(name, "/", len(b.steps)), reservation: reservation,
			instance: instance, call: call})
	}
	open, paid := b.create("order", name), b.move("order", name, "paid")
	switch i % 6 {
	case 0: // all in one Execute
		add("sold", "paid", func(ctx context.Context, c *client.Client) (existing, error) {
			r, err := c.Execute(ctx, client.Operation{Request: b.deduct(0)},
				client.Operation{Request: b.createRequest("order", name)},
				client.Operation{Request: b.moveRequest("order", name, "paid")})
			if err != nil {
				return nil, err
			}
			return client.ResponseOf[*machinev1.MoveResponse](r, 2)
		})
	case 1:
		add("sold", "", b.deductBy(stockv1.Strategy(rand.IntN(6))))
		add("", "open", open)
		add("", "paid", paid)
	case 2:
		add("reserved", "", b.reserveBy(stockv1.Strategy(rand.IntN(6))))
		add("", "open", open)
		add("", "paid", paid)
		add("sold", "", func(ctx context.Context, c *client.Client) (existing, error) {
			return c.Stock.Confirm(ctx, &stockv1.ConfirmRequest{Item: b.item, ReservationNo: name})
		})
	case 3:
		add("reserved", "", b.reserveBy(stockv1.Strategy(rand.IntN(6))))
		add("", "open", open)
		add("cancelled", "", func(ctx context.Context, c *client.Client) (existing, error) {
			return c.Stock.Cancel(ctx, &stockv1.CancelRequest{Item: b.item, ReservationNo: name})
		})
		add("", "cancelled", b.move("order", name, "cancelled"))
	case 4, 5: // by OrderService, which reserves
		b.number, b.machine = name+"/1", "simple_order"
		add("reserved", "pending", func(ctx context.Context, c *client.Client) (existing, error) {
			return c.Orders.CreateOrder(ctx, &orderv1.CreateOrderRequest{OrderNo: name, Subject: name, Asset: "CNY",
				Amount: "1", Machine: b.machine, Reserve: true,
				Lines: []*orderv1.OrderLine{{Item: b.item, Quantity: b.quantity}}})
		})
		if i%6 == 4 {
			add("sold", "paid", func(ctx context.Context, c *client.Client) (existing, error) {
				return c.Orders.MoveOrder(ctx, &orderv1.MoveOrderRequest{OrderNo: name, To: "paid", Cause: name})
			})
		} else {
			add("cancelled", "cancelled", func(ctx context.Context, c *client.Client) (existing, error) {
				return c.Orders.CancelOrder(ctx, &orderv1.CancelOrderRequest{OrderNo: name, Cause: name})
			})
		}
	}
	add("", "", b.create("voucher", b.coupon))
	add("", "used", b.move("voucher", b.coupon, "used"))
	return b
}

func (b *basket) deduct(by stockv1.Strategy) *stockv1.DeductRequest {
	return &stockv1.DeductRequest{Item: b.item, ReservationNo: b.name, Quantity: b.quantity, Strategy: by}
}

func (b *basket) deductBy(by stockv1.Strategy) call {
	return func(ctx context.Context, c *client.Client) (existing, error) {
		return c.Stock.Deduct(ctx, b.deduct(by))
	}
}

func (b *basket) reserveBy(by stockv1.Strategy) call {
	return func(ctx context.Context, c *client.Client) (existing, error) {
		return c.Stock.Reserve(ctx, &stockv1.ReserveRequest{Item: b.item, ReservationNo: b.name, Quantity: b.quantity,
			Strategy: by, Life: durationpb.New(time.Hour)})
	}
}

func (b *basket) createRequest(machine, key string) *machinev1.CreateInstanceRequest {
	return &machinev1.CreateInstanceRequest{Machine: machine, Key: key}
}

func (b *basket) create(machine, key string) call {
	return func(ctx context.Context, c *client.Client) (existing, error) {
		return c.Machines.CreateInstance(ctx, b.createRequest(machine, key))
	}
}

func (b *basket) moveRequest(machine, key, to string) *machinev1.MoveRequest {
	return &machinev1.MoveRequest{Machine: machine, Key: key, To: to, Cause: b.name}
}

func (b *basket) move(machine, key, to string) call {
	return func(ctx context.Context, c *client.Client) (existing, error) {
		return c.Machines.Move(ctx, b.moveRequest(machine, key, to))
	}
}

// take tries a step once, on any server, and records a definite answer. An answer that differs from the first fails the
// test.
func (w *world) take(s *step) (told bool) {
	ctx, cancel := context.WithTimeout(client.WithKey(context.Background(), s.key), 2*time.Second)
	defer cancel()
	c := w.once()
	defer c.Close()
	response, err := s.call(ctx, c)
	answer, refused := "existed", "" // without the content, which shows the current state
	if err == nil && !response.GetExisted() {
		answer = fmt.Sprint(response)
	}
	if err != nil {
		e, _ := client.AsError(err)
		if e == nil || e.Class == "" || e.Class == client.ClassSystem || e.Class == client.ClassConflict {
			return false
		}
		if answer = ""; e.Class != client.ClassRefusal {
			w.t.Errorf("%s: %v", s.key, err)
		}
		refused = fmt.Sprint(e.Reason, " ", e.Metadata)
		switch e.Reason {
		case "OUT_OF_STOCK":
			w.soldOut.Store(true)
		case "STATE_TAKEN":
			w.stateTaken.Store(true)
		}
	}
	if s.definite() && (answer != s.answer || refused != s.refused) {
		w.t.Errorf("%s: first %s%s, now %s%s", s.key, s.answer, s.refused, answer, refused)
	}
	s.answer, s.refused = answer, refused
	return true
}

// shopper fills one basket after the other until stop.
func (w *world) shopper(n int, next func(n, i int) *basket, stop <-chan struct{}) (all []*basket) {
	for i := 0; ; i++ {
		b := next(n, i)
		all = append(all, b)
		for at, s := range b.steps {
			for !s.definite() {
				select {
				case <-stop:
					b.steps = b.steps[:at+1]
					return all
				default:
				}
				if !w.take(s) {
					<-time.After(5 * time.Millisecond)
				}
			}
			w.decided.Add(1)
			if s.refused != "" {
				b.steps = b.steps[:at+1]
				break
			}
		}
	}
}

// beginShop creates the items and machines.
func (w *world) beginShop() {
	ctx := context.Background()
	c := w.once()
	defer c.Close()
	for item, segments := range items {
		_, err := c.Stock.PutItem(ctx, &stockv1.PutItemRequest{Item: item, Segments: segments})
		if err == nil {
			_, err = c.Stock.Restock(ctx, &stockv1.RestockRequest{Item: item, ChangeNo: "first", Quantity: units})
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	for machine, ends := range map[string][]string{"order": {"paid", "cancelled"}, "voucher": {"used"}} {
		d := &machinev1.Definition{States: []*machinev1.State{{Name: "open", Initial: true}}}
		for _, end := range ends {
			d.States = append(d.States, &machinev1.State{Name: end})
			d.Moves = append(d.Moves, &machinev1.AllowedMove{From: []string{"open"}, To: end})
		}
		if _, err := c.Machines.DefineMachine(ctx,
			&machinev1.DefineMachineRequest{Machine: machine, Definition: d}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestSalesAndMovesHappenOnceDespiteKills repeatedly kills both servers and Postgres while callers sell units, move
// instances of machines, and create and end orders.
func TestSalesAndMovesHappenOnceDespiteKills(t *testing.T) {
	t.Parallel()
	w := &world{t: t, db: pgtest.NewDurable(t)}
	w.begin()
	w.beginShop()
	w.beginOrders()
	stop := make(chan struct{})
	var load sync.WaitGroup
	done := make([][]*basket, callers+buyers)
	for n := range done {
		next := newBasket
		if n >= callers {
			next = newPurchase
		}
		load.Go(func() { done[n] = w.shopper(n, next, stop) })
	}
	kills := w.killAtRandom(4 * time.Second)
	w.until("sold out", func() bool { return w.soldOut.Load() })
	w.until("a coupon that is used", func() bool { return w.stateTaken.Load() })
	close(stop)
	load.Wait()
	for n := range done {
		load.Go(func() {
			for _, b := range done[n] {
				w.repeat(b)
			}
		})
	}
	load.Wait()
	all := slices.Concat(done[:callers]...)
	t.Logf("%d baskets, %d answers, killed %v", len(all), w.decided.Load(), kills)
	if kills["postgres"] == 0 || kills["server"] == 0 {
		t.Error("the test killed too little")
	}
	w.judgeBaskets(all)
	w.judgePurchases(slices.Concat(done[callers:]...))
}

// repeat retries every step of a basket under its key: the answer must be the first one, if there was one. It then
// calls each successful step without its key: the response must report a repeat, by the numbers in the request.
func (w *world) repeat(b *basket) {
	for _, s := range b.steps {
		for end := time.Now().Add(patience); !w.take(s); {
			if time.Now().After(end) {
				w.t.Errorf("%s has no definite answer", s.key)
				return
			}
		}
		if s.refused != "" {
			continue
		}
		c := w.once()
		response, err := s.call(context.Background(), c)
		if c.Close(); err != nil || !response.GetExisted() {
			w.t.Errorf("%s: without its key %v, %v", s.key, response, err)
		}
	}
}

// judgeBaskets compares the answers with the database.
func (w *world) judgeBaskets(all []*basket) {
	want := map[string]string{}
	sold, reserved := map[string]int64{}, map[string]int64{}
	refused := map[string]int{}
	for _, b := range all {
		state := ""
		for _, s := range b.steps {
			if s.refused != "" {
				refused[strings.Fields(s.refused)[0]]++
				continue
			}
			if s.reservation != "" {
				state = s.reservation
				want["reservation "+b.number] = fmt.Sprint(b.item, " ", b.quantity, " ", state)
			}
			switch s.instance {
			case "":
			case "open", "pending":
				want[b.machine+" "+b.name] = s.instance + " creation"
			case "used":
				if first := want["voucher "+b.coupon]; first != "" {
					w.t.Errorf("%s was acknowledged as the use of %s, which is %s", b.name, b.coupon, first)
				}
				want["voucher "+b.coupon] = "used " + b.name
			default:
				want[b.machine+" "+b.name] = s.instance + " " + b.name
			}
		}
		switch state {
		case "sold":
			sold[b.item] += b.quantity
		case "reserved":
			reserved[b.item] += b.quantity
		}
	}
	for item := range items {
		want["item "+item] = fmt.Sprintf("%d available, %d reserved, %d sold of %d", units-sold[item]-reserved[item],
			reserved[item], sold[item], units)
	}
	got := w.shopRows()
	for name := range want {
		if got[name] == "" {
			w.t.Errorf("%s was acknowledged as %s, and is lost", name, want[name])
		}
	}
	for name, line := range got {
		if line != want[name] {
			w.t.Errorf("%s is %q, and was acknowledged as %q", name, line, want[name])
		}
	}
	w.t.Logf("%d rows, refused %v", len(got), refused)
	if refused["OUT_OF_STOCK"] == 0 || refused["STATE_TAKEN"] == 0 {
		w.t.Error("the test exercised too little")
	}
}

// shopRows returns reservations, instances and items in the database as text by name, without the rows of orders.
func (w *world) shopRows() map[string]string {
	rows, err := pgtest.Pool(w.t, w.db.SuperDSN).Query(context.Background(), `
		select 'reservation ' || reservation_no, concat_ws(' ', item, quantity, state) from stock_reservations
		where item <> 'ordered'
		union all
		select machine || ' ' || key, state || ' ' || cause from machine_instances
			where (machine = 'order' or state <> 'open') and key not like 'order-%'
		union all
		select 'item ' || item, format('%s available, %s reserved, %s sold of %s', sum(available), sum(reserved),
			sum(sold), sum(stocked)) from stock_items where item <> 'ordered' group by item`)
	if err != nil {
		w.t.Fatal(err)
	}
	found := map[string]string{}
	var name, line string
	if _, err := pgx.ForEachRow(rows, []any{&name, &line},
		func() error { found[name] = line; return nil }); err != nil {
		w.t.Fatal(err)
	}
	return found
}
