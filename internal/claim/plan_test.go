package claim_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// plans runs every statement of claims over one connection, so that each keeps the plan made on empty tables.
type plans struct {
	*desk
	pool   *pgxpool.Pool
	engine *flow.Engine
}

// stage names the keys of one round of commands: new and existing ones.
type stage struct {
	fresh, live, over, dropped func(i int) string
}

// kinds are the operations on claims, each on keys of its own.
func (p *plans) kinds(s stage) map[string]func(i int) flow.Command {
	return map[string]func(i int) flow.Command{
		"fresh": func(i int) flow.Command { return flow.Claim(use(caller, s.fresh(i), time.Hour, parts(s.fresh(i)))) },
		"count": func(i int) flow.Command { return flow.Claim(use(caller, s.live(i), time.Hour)) },
		"renew": func(i int) flow.Command { return flow.Claim(use(caller, s.over(i), time.Hour)) },
		"refuse": func(i int) flow.Command {
			each := &claim.EachCommand{Caller: caller,
				Params: []claim.Params{use(caller, s.live(i), time.Hour, firstOnly).Params}}
			return flow.Claim(each)
		},
		"none": func(i int) flow.Command { // nothing to delete
			return flow.Claim(&claim.DropCommand{Caller: caller,
				Params: claim.DropParams{Scope: "s", Key: "no " + s.fresh(i), Fence: 1}})
		},
		"last": func(i int) flow.Command { return looksLast(s.live(i)) },
		"drop": func(i int) flow.Command {
			return flow.Claim(&claim.DropCommand{Caller: caller,
				Params: claim.DropParams{Scope: "s", Key: s.dropped(i), Owner: "a"}})
		},
	}
}

// looksLast is a command of another domain that depends on a key being free.
type looksLast string

func (c looksLast) Need(tx *flow.Tx) {
	tx.Claims().WantRechecked(claim.Key{Tenant: caller.Tenant, Scope: "s", Key: string(c)})
}

func (looksLast) Apply(*flow.Tx) (any, error) { return nil, nil }

func (p *plans) do(commands ...flow.Command) {
	p.Helper()
	works := make([]flow.Submission, len(commands))
	for i, c := range commands {
		works[i] = submission(c)
	}
	for i, r := range p.engine.DoAll(context.Background(), works) {
		if r.Err != nil {
			p.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

func (p *plans) clean() {
	p.Helper()
	cleanAll(p, p.pool)
}

func (p *plans) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.super.Exec(context.Background(), sql, args...); err != nil {
		p.Fatal(err)
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

// empty runs every statement several times on nearly empty tables.
func (p *plans) empty() {
	p.Helper()
	p.exec("analyze")
	for round := range 24 {
		name := func(what string) func(int) string {
			return func(i int) string { return fmt.Sprint("warm", round, what, i) }
		}
		s := stage{name("fresh"), name("live"), name("over"), name("dropped")}
		p.do(flow.Claim(use(caller, s.over(0), time.Hour)))
		p.age(2 * time.Hour)
		p.do(flow.Claim(use(caller, s.live(0), time.Hour)),
			flow.Claim(use(caller, s.dropped(0), time.Hour, owner("a"))))
		for _, command := range p.kinds(s) {
			p.do(command(0))
		}
		p.clean()
	}
}

// load inserts 100,000 rows without ANALYZE.
func (p *plans) load() {
	p.Helper()
	p.exec("insert into commit_batches (batch_id, recorded_at, commands, instance) " +
		"values (1000000000, '2026-01-01Z', 1, 'load')")
	p.exec(`insert into claim_keys (tenant_id, scope, key, claim_id, uses, owner, principal, request_id, claimed_at,
		expires_at)
		select 1, 's', 'k' || i, 1000000000::bigint << 14, 1, 'a', 'p', 'r', '2026-01-01Z',
			case when i < 20000 then timestamptz '2026-01-02Z' else '2126-01-01Z' end
		from generate_series(0, 99999) i`)
}

// statements lists the queries of batches and cleaners; Get is planned on every execution.
func statements(t *testing.T) (names []string) {
	t.Helper()
	header := regexp.MustCompile(`(?m)^-- name: (\w+)`)
	text, err := os.ReadFile("../../db/queries/claim/claim.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range header.FindAllStringSubmatch(string(text), -1) {
		if m[1] != "ClaimGet" {
			names = append(names, m[1])
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
	p := &plans{desk: &desk{TB: t, super: pgtest.Pool(t, db.SuperDSN)}}
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
	at := func(prefix string, from int) func(int) string {
		return func(i int) string { return fmt.Sprint(prefix, from+i) }
	}
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		from := 30_000 + round*1000
		s := stage{fresh: at("new", from), live: at("k", from), over: at("k", round*1000), dropped: at("k", from+500)}
		for kind, command := range p.kinds(s) {
			commands := make([]flow.Command, n)
			for i := range commands {
				commands[i] = command(i)
			}
			got[kind] = p.blocks(func() { p.do(commands...) }) / n
		}
		return got
	}
	first := measure(0)
	p.exec("analyze")
	if _, err := p.pool.Exec(context.Background(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	for kind, n := range measure(1) {
		p.Logf("%-8s %5d blocks a command, %3d with statistics", kind, first[kind], n)
		if first[kind] > n+n/2+20 {
			p.Errorf("%s: %d blocks a command, %d with statistics", kind, first[kind], n)
		}
	}
	if n := p.blocks(p.clean); n > 20_000*12 {
		t.Errorf("cleaning touched %d blocks", n)
	}
	if n := pgtest.TouchedAtRest(t, p.super, 500, func() int64 { return p.blocks(p.clean) }); n > 500 {
		t.Errorf("cleaning nothing touched %d blocks", n)
	}
}
