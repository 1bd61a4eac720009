package token_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

// plans runs the statements over one connection, so that each keeps the plan made on an empty table.
type plans struct {
	t      *testing.T
	super  *pgxpool.Pool
	pool   *pgxpool.Pool
	engine *flow.Engine
}

func (p *plans) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.super.Exec(context.Background(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plans) do(commands ...commit.Command[*token.Tx]) {
	p.t.Helper()
	works := make([]flow.Submission, len(commands))
	for i, c := range commands {
		works[i] = flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Token(c), Rows: 1, Bytes: 1}
	}
	for i, r := range p.engine.DoAll(context.Background(), works) {
		if r.Err != nil {
			p.t.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

func spendOf(t string) *token.SpendCommand {
	return &token.SpendCommand{Spend: token.Spend{Caller: caller, Token: t, Subject: "user:1", Operation: "o"},
		Result: "order"}
}

// reopen opens a spent token again, as a declined payment does.
type reopen struct {
	form string
	row  *token.Row
}

func (c *reopen) Need(tx *token.Tx) { c.row = tx.WantHash(1, token.Hash(c.form)) }

func (c *reopen) Apply(tx *token.Tx) (any, error) { return tx.Reopen(c.row), nil }

func (p *plans) issue(n int) *token.IssueCommand {
	c := &token.IssueCommand{Caller: caller, Subject: "user:1", Life: time.Hour}
	for range n {
		c.Tokens = append(c.Tokens, token.New())
	}
	p.do(c)
	return c
}

func (p *plans) clean() {
	p.t.Helper()
	tokens, cleaner := token.Tokens(), clean.Cleaner{Pool: p.pool, Metrics: clean.NewMetrics(nil)}
	if _, err := cleaner.Clean(context.Background(), &tokens); err != nil {
		p.t.Fatal(err)
	}
}

// blocks counts the table and index blocks that a call touches, from the statistics.
func (p *plans) blocks(call func()) int64 {
	p.t.Helper()
	touched := func() int64 { return pgtest.Touched(p.t, "^token_submit_tokens$", p.super, p.pool) }
	before := touched()
	call()
	return touched() - before
}

// prepared fails the test if a statement of the package did not run on the connection.
func (p *plans) prepared() {
	p.t.Helper()
	rows, err := p.pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
		from pg_prepared_statements`)
	if err != nil {
		p.t.Fatal(err)
	}
	var ran []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			p.t.Fatal(err)
		}
		ran = append(ran, name)
	}
	text, err := os.ReadFile("../../db/queries/token/token.sql")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^-- name: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if m[1] != "TokenKnown" && !slices.Contains(ran, m[1]) { // planned on every execution
			p.t.Errorf("%s was not run: the test does not cover it", m[1])
		}
	}
}

// A spend touches one index path and one row, however many tokens are unspent.
func TestSpendingCostIsIndependentOfUnspentTokens(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := &plans{t: t, super: pgtest.Pool(t, db.SuperDSN)}
	var err error
	if p.pool, err = pg.Open(context.Background(), db.AllDSN, 1); err != nil {
		t.Fatal(err)
	}
	defer p.pool.Close()
	pgtest.StopAutovacuum(t, p.super)
	p.engine = flow.NewEngine(p.pool, t.Name(), nil, nil)
	defer p.engine.Drain(context.Background())
	p.exec("analyze")
	for range 12 {
		form := p.issue(2).Tokens[0]
		p.do(spendOf(form))
		p.do(&reopen{form: form})
		p.clean()
	}
	p.prepared()

	const many, old, n = 200_000, 5_000, 50
	fill := `insert into token_submit_tokens (tenant_id, token_hash, subject, life_ms, survives_refusal, principal,
		request_id, issued_at, expires_at, forget_at)
		select 1, sha256(('st_' || $1 || i)::bytea), 'user:1', 3600000, false, 'p', 'r', now() + $2::interval,
			now() + $2::interval + interval '1 h', now() + $2::interval + interval '2 h' from generate_series(1, $3) i`
	p.exec(fill, "", "0", many)
	p.exec(fill, "old", "-3 h", old)
	spend := func(from int) (blocks int64) {
		commands := make([]commit.Command[*token.Tx], n)
		for i := range commands {
			commands[i] = spendOf(fmt.Sprint("st_", from+i))
		}
		return p.blocks(func() { p.do(commands...) }) / n
	}
	first := spend(1000)
	issued := p.blocks(func() { p.issue(n) }) / n
	p.exec("analyze")
	if _, err := p.pool.Exec(context.Background(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	good := spend(2000)
	t.Logf("a spend touches %d blocks, %d with statistics; an issued token %d", first, good, issued)
	if first > good+good/2+5 || first > 40 {
		t.Errorf("a spend touches %d blocks, %d with statistics", first, good)
	}
	if issued > 20 {
		t.Errorf("an issued token touches %d blocks", issued)
	}
	reader := token.NewReader(pgtest.Pool(t, db.AllDSN))
	if touched := p.blocks(func() {
		for i := range n {
			if known, err := reader.Known(context.Background(), 1, fmt.Sprint("st_", 3000+i)); err != nil || !known {
				t.Fatal(known, err)
			}
		}
	}) / n; touched > 20 {
		t.Errorf("a lookup touches %d blocks", touched)
	}
	if touched := p.blocks(p.clean); touched > old*8 {
		t.Errorf("cleaning touched %d blocks", touched)
	}
	if touched := pgtest.TouchedAtRest(t, p.super, 200, func() int64 { return p.blocks(p.clean) }); touched > 200 {
		t.Errorf("cleaning nothing touched %d blocks", touched)
	}
}
