package flow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// hooks is an engine that sends, with a machine that publishes, and the endpoints all and paid.
type hooks struct {
	*testing.T
	engine *flow.Engine
	pool   *pgxpool.Pool
	db     *pgtest.DB
}

// newSendingEngine returns an engine that publishes events, on a pool of its own.
func newSendingEngine(t *testing.T, db *pgtest.DB) *flow.Engine {
	pool, err := pg.Open(context.Background(), db.AllDSN, 6)
	if err != nil {
		t.Fatal(err)
	}
	engine := flow.NewSendingEngine(pool, "test", nil, nil, &notify.Outbox{Master: secret.New(), Instance: "test"})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return engine
}

func newHooks(t *testing.T) *hooks {
	db := pgtest.New(t)
	h := &hooks{t, newSendingEngine(t, db), pgtest.Pool(t, db.SuperDSN), db}
	if _, err := h.pool.Exec(t.Context(), "insert into access_tenants (tenant_id, name) "+
		"values (1, 'demo')"); err != nil {
		t.Fatal(err)
	}
	for name, types := range map[string][]string{"all": nil, "paid": {"order.paid"}} {
		h.must(flow.Webhook(&webhook.CreateCommand{Caller: caller, Name: name, URL: "https://example.com",
			Types: types}))
	}
	h.must(flow.Machine(machine.NewDefine(caller, "order", &machine.Definition{
		States: []machine.State{{Name: "pending", Initial: true,
			Timer: &machine.Timer{AfterMs: 3_600_000, To: "cancelled"}},
			{Name: "paid"}, {Name: "cancelled"}, {Name: "refunding"}},
		Moves: []machine.Allowed{{From: []string{"pending"}, To: "paid", Publish: "order.paid"},
			{From: []string{"pending"}, To: "cancelled", By: []machine.Actor{machine.ByTimer},
				Publish: "order.cancelled"},
			{From: []string{"paid"}, To: "refunding"}}})))
	return h
}

func (h *hooks) do(c flow.Command) error {
	_, err := h.engine.Do(context.Background(), submission(flow.Submission{Command: c}))
	return err
}

func (h *hooks) must(c flow.Command) {
	h.Helper()
	if err := h.do(c); err != nil {
		h.Error(err)
	}
}

func createOrder(key string, timer time.Duration) flow.Command {
	return flow.Machine(&machine.CreateCommand{Caller: caller,
		CreateParams: machine.CreateParams{Machine: "order", Key: key, Timer: timer}})
}

func payOrder(key, cause string) flow.Command {
	return flow.Machine(&machine.MoveCommand{Caller: caller,
		MoveParams: machine.MoveParams{Machine: "order", Key: key, To: "paid", Cause: cause}})
}

// events returns the messages: their endpoint and event, in order.
func (h *hooks) events() string {
	h.Helper()
	rows, _ := h.pool.Query(context.Background(), "select recipient, content from notify_contents order by message_id")
	var recipient string
	var content []byte
	var all []string
	if _, err := pgx.ForEachRow(rows, []any{&recipient, &content}, func() error {
		var c send.Content
		if err := json.Unmarshal(content, &c); err != nil {
			return err
		}
		var e map[string]string
		err := json.Unmarshal(c.Data, &e)
		all = append(all, fmt.Sprintf("%s: %s %s %s %s>%s %s %s", recipient, c.Type, e["machine"], e["key"], e["from"],
			e["to"],
			e["revision"], e["cause"]))
		return err
	}); err != nil {
		h.Fatal(err)
	}
	return strings.Join(all, "; ")
}

func (h *hooks) want(want string) {
	h.Helper()
	if got := h.events(); got != want {
		h.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestMovesPublishTheirEventsOnce(t *testing.T) {
	t.Parallel()
	h := newHooks(t)
	if _, err := notify.PutLimit(t.Context(), h.pool, 1,
		notify.Limit{Channel: send.Webhook, Scope: notify.PerRecipient, Window: time.Hour,
			MaxMessages: 3}); err != nil {
		t.Fatal(err)
	}
	h.must(createOrder("1", 0))
	h.must(payOrder("1", "p1"))
	h.must(payOrder("1", "p1")) // a repeat
	if err := h.do(payOrder("1", "p2")); !fault.Is(err, machine.StateTaken) {
		t.Error(err)
	}
	one := "all: order.paid order 1 pending>paid 2 p1; paid: order.paid order 1 pending>paid 2 p1"
	h.want(one)
	// A move without an event, and one whose event commits together with it or not at all.
	h.must(flow.Machine(&machine.MoveCommand{Caller: caller,
		MoveParams: machine.MoveParams{Machine: "order", Key: "1", To: "refunding", Cause: "r"}}))
	for _, key := range []string{"2", "3"} {
		h.must(createOrder(key, 0))
		h.must(payOrder(key, "p"))
	}
	h.must(createOrder("4", 0))
	if err := h.do(payOrder("4", "p")); !fault.Is(err, notify.Limited) {
		t.Errorf("%v", err)
	}
	h.want(one + "; all: order.paid order 2 pending>paid 2 p; paid: order.paid order 2 pending>paid 2 p" +
		"; all: order.paid order 3 pending>paid 2 p; paid: order.paid order 3 pending>paid 2 p")
	var state string
	if err := h.pool.QueryRow(t.Context(), "select state from machine_instances where key = '4'").
		Scan(&state); err != nil || state != "pending" {
		t.Errorf("%s, %v: the move was recorded without its event", state, err)
	}
}

func TestTimersPublishTheirEvents(t *testing.T) {
	t.Parallel()
	h := newHooks(t)
	h.must(createOrder("1", time.Millisecond))
	for fired := false; !fired; {
		out, err := h.engine.Do(t.Context(), submission(flow.Submission{Command: flow.Machine(&machine.FireCommand{
			Caller: commit.Caller{Tenant: 1, Principal: "scheduler", RequestID: "scheduler"},
			Key:    machine.Key{Tenant: 1, Machine: "order", Key: "1"}})}))
		if err != nil {
			t.Fatal(err)
		}
		fired = out.Answer.(bool)
	}
	h.want("all: order.cancelled order 1 pending>cancelled 2 timer")
}

// appearing creates an endpoint at another server before each of its first attempts.
type appearing struct {
	flow.Command
	create func(n int)
	tries  int
}

func (a *appearing) Need(tx *flow.Tx) {
	if a.tries < 8 {
		a.create(a.tries)
	}
	a.tries++
	a.Command.Need(tx)
}

func TestMovesSendTheirEventsToEndpointsThatAppearMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHooks(t)
	h.must(createOrder("1", 0))
	other := newSendingEngine(t, h.db)
	h.must(&appearing{Command: payOrder("1", "p"), create: func(n int) {
		create := webhook.CreateCommand{Caller: caller, Name: fmt.Sprint("new-", n), URL: "https://example.com"}
		if _, err := other.Do(t.Context(), submission(flow.Submission{Command: flow.Webhook(&create)})); err != nil {
			t.Error(err)
		}
	}})
	if n := strings.Count(h.events(), "order.paid"); n != 2+8 {
		t.Errorf("%d events", n)
	}
}

// Many publishing moves at once, in common batches: each event is sent once.
func TestConcurrentMovesPublishEachEventOnce(t *testing.T) {
	t.Parallel()
	h := newHooks(t)
	const orders = 20
	var wg sync.WaitGroup
	for n := range orders {
		h.must(createOrder(fmt.Sprint(n), 0))
		for range 5 {
			wg.Go(func() { h.must(payOrder(fmt.Sprint(n), "p")) })
		}
	}
	wg.Wait()
	if n := strings.Count(h.events(), "order.paid"); n != 2*orders {
		t.Errorf("%d events", n)
	}
}
