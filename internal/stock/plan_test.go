package stock_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// plans runs every statement of stock over one connection, so that each keeps the plan made on empty tables.
type plans struct {
	*shop
	pool   *pgxpool.Pool
	engine *flow.Engine
	clock  pgtest.ShiftedClock
}

// kinds are the commands on stock. Each item has 90 units, an open reservation "open", and a sale "sold".
func (p *plans) kinds(item func(i int) string) map[string]func(i int) command {
	return map[string]func(i int) command{
		"put":      func(i int) command { return put("new "+item(i), 2) },
		"describe": func(i int) command { c := put(item(i), 0); c.Label = "tea"; return c },
		"restock":  func(i int) command { return restock(item(i), "more", 1) },
		"repeat":   func(i int) command { return restock(item(i), "first", 100) },
		"unsell":   func(i int) command { return unsell(item(i), "back", "sold", 1) },
		"reserve":  func(i int) command { return reserve(item(i), "fresh", 1) },
		"deduct":   func(i int) command { return deduct(item(i), "direct", 1) },
		"atomic":   func(i int) command { return direct(stock.Atomic, deduct(item(i), "atomic", 1)) },
		"advisory": func(i int) command { return direct(stock.Advisory, deduct(item(i), "advisory", 1)) },
		"confirm":  func(i int) command { return confirm(item(i), "open") },
		"refuse":   func(i int) command { return deduct(item(i), "much", 1000) },
		"expire": func(i int) command {
			return &stock.ExpireCommand{Item: stock.ItemKey{Tenant: 1, Item: "due " + item(i)}}
		},
	}
}

func (p *plans) do(commands ...command) {
	p.Helper()
	works := make([]flow.Submission, len(commands))
	for i, c := range commands {
		works[i] = submission(c)
		if r, ok := c.(*stock.ReserveCommand); ok && r.Strategy != "" {
			works[i].Direct = &commit.Direct{Attempts: 1}
		}
	}
	for i, r := range p.engine.DoAll(context.Background(), works) {
		if r.Err != nil && !fault.Is(r.Err, stock.OutOfStock) {
			p.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

// blocks counts the table and index blocks that a call touches, from the statistics.
func (p *plans) blocks(call func()) int64 {
	p.Helper()
	touched := func() int64 { return pgtest.Touched(p, "^stock_", p.super, p.pool) }
	before := touched()
	call()
	return touched() - before
}

// empty runs every statement several times on nearly empty tables.
func (p *plans) empty() {
	p.Helper()
	p.exec("analyze")
	for round := range 24 {
		name := func(int) string { return fmt.Sprint("warm", round) }
		brief := reserve("due "+name(0), "brief", 1)
		brief.Life = time.Second
		p.do(put(name(0), 0), restock(name(0), "first", 100), reserve(name(0), "open", 5), deduct(name(0), "sold", 5),
			put("due "+name(0), 0), restock("due "+name(0), "first", 100), brief)
		p.clock.Set(p, time.Duration(round+1)*2*time.Second)
		p.find()
		for _, next := range p.kinds(name) {
			p.do(next(0))
		}
	}
}

// find is the scheduler's query.
func (p *plans) find() {
	p.Helper()
	if _, err := stock.DueItems(context.Background(), p.pool, 0, stock.DueItem{}, 500); err != nil {
		p.Fatal(err)
	}
}

// load inserts 10,000 items with five reservations each, and one with 100,000, without ANALYZE.
func (p *plans) load() {
	p.Helper()
	for _, sql := range []string{
		"insert into commit_batches (batch_id, recorded_at, commands, instance) " +
			"values (1000000000, '2026-01-01Z', 1, 'load')",
		`insert into stock_items select 1, prefix || 'k' || i, 0, 1, 'batched', 90, 5, 5, 100, 1, next
			from generate_series(0, 9999) i,
			(values ('', timestamptz '2126-01-01Z'), ('due ', '2026-01-02Z')) v (prefix, next)`,
		`insert into stock_item_details select tenant_id, item, '', '{}', '2026-01-01Z', '2026-01-01Z', 'p', 'r'
			from stock_items where item like '%k%'`,
		`insert into stock_change_names select 1, item, 'first', (1000000000::bigint << 14) + row_number() over ()
			from stock_items where item like '%k%'`,
		`insert into stock_changes select 1, change_id, item, change_no, 'restock', 100, 100, null, '', '2026-01-01Z',
			'p', 'r'
			from stock_change_names where change_id >= 1000000000::bigint << 14`,
		`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
				state, life_ms, created_at, expires_at, closed_at, principal, request_id)
			select 1, item, no, (1000000000::bigint << 14), units, 0, 0, state, life, '2026-01-01Z',
				case when life > 0 then case when item like 'due %' then timestamptz '2026-01-02Z' else '2126-01-01Z'
				end end, case when state <> 'reserved' then timestamptz '2026-01-01Z' end, 'p', 'r'
			from stock_items, (select 'n' || n, 0, 'cancelled', null::bigint from generate_series(1, 3) n union all
				values ('open', 5, 'reserved', 1), ('sold', 5, 'sold', null)) v (no, units, state, life)
				where item like '%k%'`,
		`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
				state, created_at, closed_at, principal, request_id)
			select 1, 'k7', 'many' || i, (1000000000::bigint << 14), 0, 0, 0, 'cancelled', '2026-01-01Z', '2026-01-01Z',
			'p', 'r'
			from generate_series(1, 100000) i`,
	} {
		p.exec(sql)
	}
}

// statements lists the queries of batches and of the scheduler; reads are planned on every execution.
func statements(t *testing.T) (names []string) {
	t.Helper()
	header := regexp.MustCompile(`(?m)^-- name: (\w+)`)
	for _, file := range []string{"load", "flush"} {
		text, err := os.ReadFile("../../db/queries/stock/" + file + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range header.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "DuePage" {
				names = append(names, m[1])
			}
		}
	}
	return names
}

func (p *plans) prepared() (names []string) {
	p.Helper()
	rows, err := p.pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
		from pg_prepared_statements`)
	if err != nil {
		p.Fatal(err)
	}
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			p.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

// Plans made on empty tables must be as good on full ones as plans with statistics.
func TestPlansMadeOnEmptyTablesUseIndexesOnFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // the loaded rows have no history
	p := &plans{shop: &shop{TB: t, super: pgtest.Pool(t, db.SuperDSN)}, clock: pgtest.ShiftClock(t, db)}
	var err error
	if p.pool, err = pg.Open(context.Background(), db.AllDSN, 1); err != nil {
		t.Fatal(err)
	}
	defer p.pool.Close()
	pgtest.StopAutovacuum(t, p.super)
	p.engine = flow.NewEngine(p.pool, t.Name(), nil, nil)
	defer p.engine.Drain(context.Background())
	p.empty()
	p.load()
	prepared := p.prepared()
	for _, name := range statements(t) {
		if !slices.Contains(prepared, name) {
			t.Errorf("%s was not run: the test does not cover it", name)
		}
	}
	const n = 50
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		from := round * 1000
		for kind, next := range p.kinds(func(i int) string { return fmt.Sprint("k", from+i) }) {
			commands := make([]command, n)
			for i := range commands {
				commands[i] = next(i)
			}
			got[kind] = p.blocks(func() { p.do(commands...) }) / n
			from += 100
		}
		return got
	}
	first := measure(1)
	p.exec("analyze")
	if _, err := p.pool.Exec(context.Background(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	for kind, n := range measure(3) {
		p.Logf("%-8s %5d blocks a command, %3d with statistics", kind, first[kind], n)
		if first[kind] > n+n/2+20 {
			p.Errorf("%s: %d blocks a command, %d with statistics", kind, first[kind], n)
		}
	}
	p.exec("update stock_reservations set state = 'expired', closed_at = expires_at where expires_at < '2027-01-01Z' " +
		"and state = 'reserved'")
	p.exec("update stock_items set next_expiry_at = null where next_expiry_at < '2027-01-01Z'")
	if n := pgtest.TouchedAtRest(t, p.super, 50, func() int64 { return p.blocks(p.find) }); n > 50 {
		t.Errorf("the search for due reservations touched %d blocks when none was due", n)
	}
	p.reads()
}

// reads checks that pages of large tables read few rows.
func (p *plans) reads() {
	p.Helper()
	ctx := context.Background()
	r := stock.NewReader(p.pool)
	k7 := stock.ItemKey{Tenant: 1, Item: "k7"}
	hundred := stock.Page{}
	for _, c := range []struct {
		name   string
		blocks int64
		rows   int
		read   func() (int, error)
	}{
		{"item", 20, 1, func() (int, error) { _, err := r.Item(ctx, k7); return 1, err }},
		{"items", 800, 100, func() (int, error) { i, _, err := r.Items(ctx, 1, "", hundred); return len(i), err }},
		{"items by prefix", 100, 11, func() (int, error) {
			i, _, err := r.Items(ctx, 1, "k777", hundred)
			return len(i),
				err
		}},
		{"reservation", 20, 1, func() (int, error) { _, err := r.Reservation(ctx, k7, "many777"); return 1, err }},
		{"reservations", 400, 100, func() (int, error) {
			x, _,
				err := r.Reservations(ctx, k7, "", hundred)
			return len(x), err
		}},
		{"open reservations", 20, 1, func() (int, error) {
			x, _, err := r.Reservations(ctx, k7, stock.Reserved, hundred)
			return len(x), err
		}},
	} {
		rows := 0
		var err error
		n := p.blocks(func() { rows, err = c.read() })
		p.Logf("%-20s %5d blocks, %d rows", c.name, n, rows)
		if err != nil || rows != c.rows || n > c.blocks {
			p.Errorf("%s: %d rows touched %d blocks, not %d, %v", c.name, rows, n, c.blocks, err)
		}
	}
	sold, next, err := r.Reservations(ctx, k7, stock.Sold, hundred) // after more than one page may read
	if err != nil || len(sold) != 0 || next == "" {
		p.Errorf("sold ones on the first page: %v, next %q, %v", sold, next, err)
	}
	pages := 1
	for ; next != "" && err == nil; pages++ {
		var more []stock.Reservation
		more, next, err = r.Reservations(ctx, k7, stock.Sold, stock.Page{Token: next})
		sold = append(sold, more...)
	}
	if err != nil || len(sold) != 1 || pages != 3 {
		p.Errorf("%d sold on %d pages, %v", len(sold), pages, err)
	}
}
