package sale_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

// plans is an engine over one connection, whose statements are prepared on nearly empty tables.
type plans struct {
	testing.TB
	super, pool *pgxpool.Pool
	engine      *flow.Engine
}

func newPlans(t testing.TB) *plans {
	t.Helper()
	db := pgtest.New(t)
	db.SkipChecks() // the rows that load inserts have no batches
	pool, err := pg.Open(context.Background(), db.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	p := &plans{TB: t, super: pgtest.Pool(t, db.SuperDSN), pool: pool}
	p.engine = flow.NewEngine(pool, t.Name(), nil, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	p.exec("insert into access_tenants (tenant_id, name) values (1, 'demo')")
	pgtest.StopAutovacuum(p, p.super)
	p.do(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}))
	p.do(flow.Stock(&stock.PutItemCommand{Caller: caller, Item: "tea"}))
	p.do(flow.Stock(&stock.ChangeCommand{Caller: caller, Item: "tea", ChangeNo: "first", Kind: stock.Restock,
		Quantity: 1_000_000}))
	return p
}

// do runs commands in one batch.
func (p *plans) do(commands ...flow.Command) {
	p.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Rows: 8, Bytes: 400, Command: c}
	}
	for i, r := range p.engine.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			p.Fatalf("command %d, %T: %v", i, commands[i], r.Err)
		}
	}
}

func (p *plans) exec(sql string) {
	p.Helper()
	if _, err := p.super.Exec(context.Background(), sql); err != nil {
		p.Fatalf("%s: %v", sql, err)
	}
}

func put(name, amount string) flow.Command {
	return &flow.PutSale{Caller: caller, Named: sale.Named{Key: sale.Key{Tenant: 1, Sale: name},
		Sale: sale.Sale{Item: "tea", PerBuyer: 1,
			Order: &sale.Order{Asset: "CNY", Amount: amount, Machine: machine.OrderMachine}}}}
}

func grab(name, buyer, no string) flow.Command {
	return &flow.Grab{Caller: caller, Sale: name, Buyer: buyer, Unit: 1, OrderNo: "g" + no, Code: "g" + no}
}

func issue(code string) flow.Command {
	return &flow.IssueCoupons{Caller: caller, Campaign: "big", Codes: []string{code}}
}

func claim(code, owner string) flow.Command {
	return &flow.ClaimCoupon{Caller: caller, Code: code, Owner: owner}
}

// kinds are the commands on sales and coupons, each on rows of its own.
var kinds = map[string]func(no string) flow.Command{
	"new sale":    func(no string) flow.Command { return put("new"+no, "1") },
	"sale":        func(no string) flow.Command { return put("s"+no, "2") },
	"grab":        func(no string) flow.Command { return grab("s"+no, "ann", "s"+no) },
	"grab again":  func(no string) flow.Command { return grab("hot", "w"+no, "h"+no) },
	"grab coupon": func(no string) flow.Command { return grab("gift", "x"+no, "c"+no) },
	"issue":       func(no string) flow.Command { return issue("new" + no) },
	"claim":       func(no string) flow.Command { return claim("u"+no, "y"+no) },
	"redeem": func(no string) flow.Command {
		return &flow.RedeemCoupon{Caller: caller, Code: "h" + no, Owner: "h" + no, Cause: "till"}
	},
	"order": func(no string) flow.Command {
		return &flow.CreateOrder{Caller: caller, OrderNo: "o" + no,
			Facts: order.Facts{Machine: machine.OrderMachine, Subject: "o" + no,
				Asset: "CNY", Amount: amount.Decimal{}, Coupon: "o" + no}}
	},
}

// warm runs all commands on nearly empty tables.
func (p *plans) warm() {
	p.Helper()
	gift := sale.Sale{Item: "tea", PerBuyer: 1, Coupon: &sale.Coupon{Campaign: "gift"}}
	p.do(put("hot", "1"), &flow.PutSale{Caller: caller,
		Named: sale.Named{Key: sale.Key{Tenant: 1, Sale: "gift"}, Sale: gift}})
	for round := range 12 {
		no := fmt.Sprint("warm", round)
		p.do(put("s"+no, "1"), issue("u"+no), issue("h"+no), issue("o"+no), grab("hot", "w"+no, "w"+no))
		p.do(&flow.IssueCoupons{Caller: caller, Campaign: "other", Codes: []string{"other" + no}})
		p.do(claim("h"+no, "h"+no), claim("o"+no, "o"+no))
		for _, command := range kinds {
			p.do(command(no))
		}
	}
}

// load inserts 100,000 sales; 100,000 coupons, of which a quarter is unclaimed, a quarter is used, and the others are
// claimed; and 25,000 orders that were won in one sale. One owner in 250 is bob.
func (p *plans) load() {
	p.Helper()
	const made, id = "timestamptz '2026-01-01Z' + interval '1 s' * (i * 5 + n)",
		"(1000000000::bigint << 14) + i * 5 + n"
	for _, sql := range []string{
		"insert into commit_batches (batch_id, recorded_at, commands, instance) " +
			"values (1000000000, '2026-01-01Z', 1, 'load')",
		`insert into sale_sales (tenant_id, sale, item, asset, amount, machine, per_buyer, once, principal, request_id,
			created_at, changed_at)
			select 1, 's' || i, 'tea', 'CNY', '1', 'order', 1, false, 'test', 'r', '2026-01-01Z', '2026-01-01Z'
			from generate_series(0, 99999) i`,
		`insert into coupon_coupons (tenant_id, code, coupon_id, campaign, expires_at, principal, request_id,
			created_at)
			select 1, k || i, ` + id + `, case when i % 250 = 7 then 'rare' else 'big' end, '2126-01-01Z', ` +
			`'test', 'r', ` + made + `
			from generate_series(0, 24999) i, unnest(array['u', 'h', 'o', 'e']) with ordinality as u (k, n)`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
				cause, owner, timer_at, timer_to, created_at, changed_at)
			select 1, 'coupon', k || i,
			` + id + `, 1, case k when 'u' then 'unclaimed' when 'e' then 'used' else 'claimed' end,
				case k when 'u' then '' else 'unclaimed' end, case k when 'u' then 1 else 2 end, 'claim',
				case when k = 'e' and i % 250 = 7 then 'bob' when k <> 'u' then k || i end,
				case when k <> 'e' then timestamptz '2126-01-01Z' end,
				case when k <> 'e' then 'expired' end, ` + made + `, ` + made + `
			from generate_series(0, 24999) i, unnest(array['u', 'h', 'o', 'e']) with ordinality as u (k, n)`,
		`insert into order_orders (tenant_id, order_no, order_id, machine, subject, asset, scale, amount, lines,
				life_ms, reserve, sale, sale_unit, principal, request_id, created_at)
			select 1, 'w' || i, ` + id +
			`, 'order', 'w' || i, 'CNY', 2, 100, '[{"item": "tea", "quantity": 1}]', 1800000, true, 'hot', 1,
				'test', 'r', ` + made + ` from generate_series(0, 24999) i, (values (5)) u (n)`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
				cause, owner, timer_at, timer_to, created_at, changed_at)
			select 1, 'order', order_no, order_id, 1, 'awaiting_payment', '', 1, 'creation', subject, '2126-01-01Z',
			'cancelled', created_at, created_at
			from order_orders where order_no ~ '^w[0-9]'`,
		`insert into claim_keys (tenant_id, scope, key, claim_id, uses, owner, result, principal, request_id,
			claimed_at)
			select 1, 'sale.unit', format('3:hot,%s:%s,1:1,', length(subject), subject), order_id, 1, order_no,
			order_no, 'test', 'r', created_at
			from order_orders where order_no ~ '^w[0-9]'`,
		`insert into claim_keys (tenant_id, scope, key, claim_id, uses, owner, result, principal, request_id,
			claimed_at)
			select 1, 'coupon.campaign', format('3:big,%s:%s,', length(owner), owner), instance_id, 1, owner, key,
			'test', 'r', created_at
			from machine_instances where machine = 'coupon' and key ~ '^[ho][0-9]'`,
	} {
		p.exec("begin; set local session_replication_role = replica; " + sql + "; commit")
	}
}

// statements are the names of the statements in a file.
func (p *plans) statements(file string) (names []string) {
	p.Helper()
	text, err := os.ReadFile("../../db/queries/" + file)
	if err != nil {
		p.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^-- name: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		names = append(names, m[1])
	}
	return names
}

// ran checks that statements were prepared.
func (p *plans) ran(names []string) {
	p.Helper()
	var prepared []string
	if err := p.pool.QueryRow(context.Background(),
		`select array_agg(coalesce(substring(statement from '-- name: (\w+)'), ''))
		from pg_prepared_statements`).Scan(&prepared); err != nil {
		p.Fatal(err)
	}
	for _, name := range names {
		if !slices.Contains(prepared, name) {
			p.Errorf("%s was not run: the test does not cover it", name)
		}
	}
}

// blocks counts the table and index blocks that a call touches, from the statistics.
func (p *plans) blocks(call func()) int64 {
	p.Helper()
	touched := func() int64 { return pgtest.Touched(p, ".", p.super, p.pool) }
	before := touched()
	call()
	return touched() - before
}

// Plans made on empty tables must be as good on full ones as plans with statistics.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []bool{true, false} {
		t.Run(fmt.Sprint(analyzed), func(t *testing.T) {
			t.Parallel()
			p := newPlans(t)
			if analyzed {
				p.exec("analyze")
			}
			p.warm()
			p.load()
			written := p.statements("coupon/coupon.sql")
			for _, name := range p.statements("sale/sale.sql") {
				if name != "SaleGet" && name != "SalePage" { // they are planned with their values
					written = append(written, name)
				}
			}
			p.ran(written)
			p.compare()
		})
	}
}

// compare compares the plans made on empty tables with those made with statistics.
func (p *plans) compare() {
	p.Helper()
	const n = 50
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		for _, kind := range []string{"new sale", "sale", "grab", "grab again", "grab coupon", "issue", "claim",
			"redeem", "order"} {
			commands := make([]flow.Command, n)
			for i := range commands {
				commands[i] = kinds[kind](fmt.Sprint(5000 + round*n + i))
			}
			got[kind] = p.blocks(func() { p.do(commands...) }) / n
		}
		return got
	}
	first := measure(0)
	p.exec("analyze")
	if _, err := p.pool.Exec(context.Background(), "discard plans"); err != nil {
		p.Fatal(err)
	}
	for kind, n := range measure(1) {
		p.Logf("%-11s %5d blocks a command, %3d with statistics", kind, first[kind], n)
		if first[kind] > n+n/2+20 {
			p.Errorf("%s: %d blocks a command, %d with statistics", kind, first[kind], n)
		}
	}
}

// A page reads little more than it shows, with and without statistics, however many rows there are. So do the views.
func TestReadsOfSalesAndCouponsReadTheirOwnRows(t *testing.T) {
	t.Parallel()
	p := newPlans(t)
	p.warm()
	p.load()
	ctx := context.Background()
	sales, coupons := sale.NewReader(p.pool), coupon.NewReader(p.pool)
	names := func(list []sale.Named, err error) int {
		if err != nil {
			t.Error(err)
		}
		return len(list)
	}
	page := func(f coupon.Filter) func() int {
		return func() int {
			list, _, err := coupons.Coupons(ctx, 1, f, 10, "")
			if err != nil {
				t.Error(err)
			}
			return len(list)
		}
	}
	view := func(query string) func() int {
		return func() (n int) {
			if err := p.super.QueryRow(ctx, "select count(*) from ("+query+") x").Scan(&n); err != nil {
				t.Error(err)
			}
			return n
		}
	}
	_, middle, err := sales.Sales(ctx, 1, 1000, "")
	if err != nil {
		t.Fatal(err)
	}
	found := func(err error) int { return map[bool]int{true: 1}[err == nil] }
	for _, statistics := range []string{"without", "with"} {
		if statistics == "with" {
			p.exec("analyze")
		}
		for what, x := range map[string]struct {
			read func() int
			rows int
			most int64
		}{
			"sale": {func() int {
				_, _,
					err := sales.Sale(ctx, sale.Key{Tenant: 1, Sale: "s777"})
				return found(err)
			}, 1, 20},
			"sales": {func() int { list, _, err := sales.Sales(ctx, 1, 10, ""); return names(list, err) },
				10, 60},
			"next sales": {func() int {
				list, _,
					err := sales.Sales(ctx, 1, 10, middle)
				return names(list, err)
			}, 10, 60},
			"coupon": {func() int {
				_, err := coupons.Coupon(ctx, coupon.Key{Tenant: 1, Code: "u777"})
				return found(err)
			}, 1, 20},
			"campaign":         {page(coupon.Filter{Campaign: "big"}), 10, 150},
			"rare campaign":    {page(coupon.Filter{Campaign: "rare"}), 10, 150},
			"used of it":       {page(coupon.Filter{Campaign: "rare", State: "used"}), 10, 400},
			"none of it":       {page(coupon.Filter{Campaign: "rare", State: "locked"}), 0, 3000},
			"owner":            {page(coupon.Filter{Owner: "bob"}), 10, 150},
			"owner's used":     {page(coupon.Filter{Owner: "bob", State: "used", Campaign: "rare"}), 10, 150},
			"owner's none":     {page(coupon.Filter{Owner: "bob", State: "locked"}), 0, 1500},
			"one owner":        {page(coupon.Filter{Owner: "h777"}), 1, 40},
			"view of a coupon": {view("select * from audit.coupons where tenant = 'demo' and code = 'u777'"), 1, 60},
			"view of a sale":   {view("select * from audit.sales where tenant = 'demo' and sale = 's777'"), 1, 60},
		} {
			rows := x.read() // reads the catalog
			if rows != x.rows {
				t.Errorf("%s: %d rows", what, rows)
			}
			n := p.blocks(func() { x.read() })
			t.Logf("%s statistics: %s touches %d blocks", statistics, what, n)
			if n > x.most {
				t.Errorf("%s statistics: %s touches %d blocks", statistics, what, n)
			}
		}
	}
}
