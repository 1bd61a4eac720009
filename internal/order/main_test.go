package order_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

// desk is an engine over one connection, with an asset, an account ann of 1,000,000, and 1,000,000 units of tea.
type desk struct {
	testing.TB
	super  *pgxpool.Pool
	pool   *pgxpool.Pool
	engine *flow.Engine
	reader *order.Reader
}

func newDesk(t testing.TB, db *pgtest.DB) *desk {
	t.Helper()
	pool, err := pg.Open(context.Background(), db.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{TB: t, super: pgtest.Pool(t, db.SuperDSN), pool: pool, reader: order.NewReader(pool)}
	d.engine = flow.NewSendingEngine(pool, t.Name(), nil, nil, &notify.Outbox{Master: secret.New(), Instance: "test"})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := d.engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	d.do(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}))
	d.do(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "world", Asset: "CNY", Kind: "equity"}, {Code: "ann", Asset: "CNY", Kind: "liability"}}}))
	d.do(flow.Ledger(&ledger.TransferCommand{Caller: caller,
		TransferParams: ledger.TransferParams{BizNo: "fund", Type: "fund",
			Postings: []ledger.Posting{{From: "world", To: "ann", Asset: "CNY", Amount: decimal("1000000")}}}}))
	d.do(flow.Stock(&stock.PutItemCommand{Caller: caller, Item: "tea"}))
	d.do(flow.Stock(&stock.ChangeCommand{Caller: caller, Item: "tea", ChangeNo: "first", Kind: stock.Restock,
		Quantity: 1_000_000}))
	return d
}

func decimal(s string) amount.Decimal {
	d, err := amount.ParseDecimal(s)
	if err != nil {
		panic(err)
	}
	return d
}

// do runs commands in one batch, if no others are running.
func (d *desk) do(commands ...flow.Command) {
	d.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Rows: 8, Bytes: 400, Command: c}
	}
	for i, r := range d.engine.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			d.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

func (d *desk) exec(sql string, args ...any) {
	d.Helper()
	if _, err := d.super.Exec(context.Background(), sql, args...); err != nil {
		d.Fatal(err)
	}
}

func create(no string, change ...func(*flow.CreateOrder)) *flow.CreateOrder {
	c := &flow.CreateOrder{Caller: caller, OrderNo: no,
		Facts: order.Facts{Machine: machine.OrderMachine, Subject: "ann",
			Asset: "CNY", Amount: decimal("2"), Lines: []order.Line{{Item: "tea", Quantity: 1}}, Reserve: true,
			Payee:   "world",
			Balance: &order.Balance{Account: "ann", Amount: decimal("1")}}}
	for _, f := range change {
		f(c)
	}
	return c
}

func plain(c *flow.CreateOrder) { c.Reserve, c.Balance = false, nil }

func bare(key string) flow.Command {
	return flow.Machine(&machine.CreateCommand{Caller: caller,
		CreateParams: machine.CreateParams{Machine: "order", Key: key}})
}

func pay(no string) flow.Command {
	return &flow.MoveOrder{Caller: caller, OrderNo: no, Params: machine.MoveParams{To: "paid", Cause: "p"}}
}

func cancel(no string) flow.Command {
	return &flow.MoveOrder{Caller: caller, OrderNo: no, Cancel: true, Params: machine.MoveParams{Cause: "c"}}
}

// list returns the numbers of all pages.
func (d *desk) list(f order.Filter, size int) (numbers string) {
	d.Helper()
	for token := ""; ; {
		page, next, err := d.reader.Orders(context.Background(), 1, f, order.Page{Size: size, Token: token})
		if err != nil {
			d.Fatal(err)
		}
		for i := range page {
			numbers += page[i].OrderNo + " "
		}
		if token = next; token == "" {
			return numbers
		}
	}
}

// Instances of the order machine without an order are not on pages, and do not end them.
func TestPagesHaveAllOrders(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	clock := pgtest.ShiftClock(t, db)
	d := newDesk(t, db)
	for round := range 2 {
		for i := range 3 {
			no := fmt.Sprintf("%d%d", round, i)
			d.do(create(no, plain))
			d.do(bare(no+"x"), bare(no+"y"), bare(no+"z"))
		}
		clock.Set(t, time.Duration(round+1)*20*time.Minute)
	}
	d.do(create("paid"))
	d.do(pay("paid"))
	hour := time.Now().Add(time.Hour)
	for _, size := range []int{1, 2, 100} {
		for state, want := range map[string]string{"awaiting_payment": "12 11 10 ", "cancelled": "02 01 00 ",
			"paid": "paid ", "shipped": "",
			"": "paid 12 11 10 02 01 00 "} {
			machines := "order"
			if state == "" {
				machines = ""
			}
			for name, f := range map[string]order.Filter{"all": {Machine: machines, State: state},
				"ann":  {Subject: "ann", Machine: machines, State: state},
				"hour": {Machine: machines, State: state, From: hour.Add(-2 * time.Hour), Before: hour}} {
				if got := d.list(f, size); got != want {
					t.Errorf("%s in %s, pages of %d: %s", name, state, size, got)
				}
			}
			if got := d.list(order.Filter{Subject: "bob", Machine: machines, State: state}, size); got != "" {
				t.Errorf("bob in %s: %s", state, got)
			}
		}
	}
}
