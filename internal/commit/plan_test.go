package commit_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// plans runs every kind of command over one connection, so that every statement keeps the plan that was made while the
// tables were empty.
type plans struct {
	t      *testing.T
	super  *pgxpool.Pool
	pool   *pgxpool.Pool
	engine *flow.Engine
}

// stage has the rows that one round of commands works on.
type stage struct {
	tag      string
	commands int // of each kind
	account  func(i int) string
	transfer func(i int) string // biz_no of an existing one, from account 2i to 2i+1
	hold     func(i int) string // biz_no of an existing open one
	due      func(i int) string // account of an expired hold
	key      func(i int) string // expired request key
}

var planCaller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

func one() amount.Decimal {
	d, err := amount.ParseDecimal("1")
	if err != nil {
		panic(err)
	}
	return d
}

func planTransfer(bizNo, from, to string) *ledger.TransferCommand {
	return &ledger.TransferCommand{Caller: planCaller,
		TransferParams: ledger.TransferParams{BizNo: bizNo, Type: "transfer",
			Postings: []ledger.Posting{{From: from, To: to, Asset: "CNY", Amount: one()}}}}
}

func planHold(bizNo, from string, life time.Duration) *ledger.HoldCommand {
	return &ledger.HoldCommand{Caller: planCaller, HoldParams: ledger.HoldParams{BizNo: bizNo, From: from,
		Asset: "CNY", Amount: one(), Life: life}}
}

func planWork(c commit.Command[*ledger.Tx], key string) flow.Submission {
	w := flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Ledger(c), Rows: 1, Bytes: 1}
	if key != "" {
		w.Key = &commit.Key{Principal: "p", Operation: "o", Key: key, Fingerprint: make([]byte, commit.FingerprintSize),
			Life: time.Hour}
		w.Encode = func(any) ([]byte, error) { return []byte("answer"), nil }
	}
	return w
}

func (p *plans) id(sql, bizNo string) (id int64) {
	p.t.Helper()
	if err := p.super.QueryRow(context.Background(), sql, bizNo).Scan(&id); err != nil {
		p.t.Fatal(bizNo, err)
	}
	return id
}

// planPayee looks up whether an account exists.
type planPayee struct{ code string }

func (c *planPayee) Need(tx *ledger.Tx) { tx.SeeAccount(1, c.code, "CNY") }

func (c *planPayee) Apply(tx *ledger.Tx) (any, error) {
	return nil, tx.MustExist(1, c.code, "CNY", "payee")
}

// kinds has all kinds of commands. Each uses rows of its own in the stage.
func (p *plans) kinds(s stage) map[string]func(i int) flow.Submission {
	none := (*amount.Decimal)(nil)
	return map[string]func(i int) flow.Submission{
		"asset": func(i int) flow.Submission {
			return planWork(&ledger.CreateAssetsCommand{Caller: planCaller,
				Assets: []ledger.NewAsset{{Code: fmt.Sprint(s.tag, i), Scale: 2}}}, "")
		},
		"account": func(i int) flow.Submission {
			return planWork(&ledger.CreateAccountsCommand{Caller: planCaller, Accounts: []ledger.NewAccount{
				{Code: fmt.Sprint(s.tag, "new", i), Asset: "CNY", Kind: "liability", Min: none}}}, "")
		},
		"update": func(i int) flow.Submission {
			return planWork(&ledger.UpdateAccountCommand{Caller: planCaller, Code: s.account(i), Asset: "CNY",
				Change: ledger.AccountChange{Metadata: map[string]string{"a": s.tag}}}, "")
		},
		"payee": func(i int) flow.Submission { return planWork(&planPayee{s.account(i)}, "") },
		"transfer": func(i int) flow.Submission {
			return planWork(planTransfer(fmt.Sprint(s.tag, "t", i), s.account(2*i), s.account(2*i+1)),
				fmt.Sprint(s.tag, "k", i))
		},
		"repeat": func(i int) flow.Submission {
			return planWork(planTransfer(s.transfer(i), s.account(2*i), s.account(2*i+1)),
				fmt.Sprint(s.tag, "again", i))
		},
		"renew": func(i int) flow.Submission {
			return planWork(planTransfer(fmt.Sprint(s.tag, "n", i), s.account(2*i), s.account(2*i+1)), s.key(i))
		},
		"hold": func(i int) flow.Submission {
			return planWork(planHold(fmt.Sprint(s.tag, "h", i), s.account(i), time.Hour), "")
		},
		"capture": func(i int) flow.Submission {
			c := &ledger.CaptureCommand{Caller: planCaller, CaptureParams: ledger.CaptureOf(0, s.hold(i))}
			c.BizNo, c.To, c.Type = fmt.Sprint(s.tag, "c", i), s.account(2*i), "capture"
			return planWork(c, "")
		},
		"release": func(i int) flow.Submission {
			id := p.id("select hold_id from ledger_holds where biz_no = $1", s.hold(s.commands+i))
			return planWork(ledger.ReleaseOf(planCaller, id, ""), "")
		},
		"reverse": func(i int) flow.Submission {
			return planWork(&ledger.ReverseCommand{Caller: planCaller, ReverseParams: ledger.ReverseParams{
				TransferBizNo: s.transfer(i), BizNo: fmt.Sprint(s.tag, "r", i)}}, "")
		},
		"reverse by id": func(i int) flow.Submission {
			id := p.id("select transfer_id from ledger_transfers where biz_no = $1", s.transfer(s.commands+i))
			return planWork(&ledger.ReverseCommand{Caller: planCaller, ReverseParams: ledger.ReverseParams{
				TransferID: id, BizNo: fmt.Sprint(s.tag, "ri", i)}}, "")
		},
		"expire": func(i int) flow.Submission {
			return planWork(&ledger.ExpireCommand{Account: ledger.AccountKey{Tenant: 1, Code: s.due(i), Asset: "CNY"}},
				"")
		},
	}
}

func (p *plans) do(submissions ...flow.Submission) {
	p.t.Helper()
	for i, r := range p.engine.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			p.t.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

func (p *plans) run(s stage, kind string) {
	p.t.Helper()
	submissions := make([]flow.Submission, s.commands)
	for i := range submissions {
		submissions[i] = p.kinds(s)[kind](i)
	}
	p.do(submissions...)
}

func (p *plans) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.super.Exec(context.Background(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

// blocks returns the number of table and index blocks that a call touches, from Postgres's statistics.
func (p *plans) blocks(call func()) int64 {
	p.t.Helper()
	return pgtest.TouchedBy(p.t, ".", p.super, p.pool, call)
}

// empty runs every statement several times while the tables are nearly empty, so that each gets a generic plan.
func (p *plans) empty() {
	p.t.Helper()
	p.exec("analyze")
	p.do(planWork(&ledger.CreateAssetsCommand{Caller: planCaller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}},
		""))
	for round := range 12 {
		tag := fmt.Sprint("warm", round, "-")
		name := func(what string) func(int) string {
			return func(i int) string { return fmt.Sprint(tag, what, i) }
		}
		s := stage{tag: tag, commands: 1, account: name("a"), transfer: name("there"), hold: name("held"),
			due: name("a"), key: name("k")}
		create := &ledger.CreateAccountsCommand{Caller: planCaller}
		for i := range 4 {
			create.Accounts = append(create.Accounts,
				ledger.NewAccount{Code: s.account(i), Asset: "CNY", Kind: "liability"})
		}
		p.do(planWork(create, ""))
		p.do(planWork(planTransfer(s.transfer(0), s.account(0), s.account(1)), s.key(0)),
			planWork(planTransfer(s.transfer(1), s.account(2), s.account(3)), s.key(1)))
		p.exec("update commit_keys set expires_at = now() - interval '1 h'")
		p.do(planWork(planHold(s.hold(0), s.account(1), time.Hour), ""),
			planWork(planHold(s.hold(1), s.account(1), time.Hour), ""),
			planWork(planHold(s.hold(2), s.account(0), time.Millisecond), ""))
		for kind := range p.kinds(s) {
			if kind != "renew" {
				p.run(s, kind)
			}
		}
		s.key = func(int) string { return name("k")(1) }
		p.run(s, "renew")
		p.clean()
	}
}

// load inserts 100,000 rows without ANALYZE.
func (p *plans) load() {
	p.t.Helper()
	p.exec(`create function planned_id(kind integer, i bigint) returns bigint language sql as
		'select (1000000000 + kind * 100 + i / 10000) << 14 | (i % 10000 + 1)'`)
	p.exec(`insert into commit_batches (batch_id, recorded_at, commands, instance)
		select 1000000000 + k * 100 + b, '2026-01-01Z', 1, 'load'
		from generate_series(0, 2) k, generate_series(0, 10) b`)
	p.exec(`insert into ledger_accounts (tenant_id, account_id, code, asset, scale, kind, balance, held, version,
		last_entry_at, next_expiry_at)
		select 1, planned_id(0, i), 'u' || i, 'CNY', 2, 'liability', case when i % 2 = 0 then -100 else 100 end,
			i % 2 * 10, 1, '2026-01-01Z', case when i % 2 = 1 then case when i < 20000 then '2026-01-02Z'::timestamptz
			else '2126-01-01Z' end end
		from generate_series(0, 99999) i`)
	p.exec(`insert into ledger_account_details (tenant_id, account_id, created_at, request_id)
		select 1, planned_id(0, i), '2026-01-01Z', 'r' from generate_series(0, 99999) i`)
	p.exec(pgtest.AuditAccounts)
	p.exec(`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id)
		select 1, planned_id(1, i), 'b' || i, 'transfer', '2026-01-01Z', 'p', 'r' from generate_series(0, 49999) i`)
	p.exec(`insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset,
		amount, balance_before, balance_after)
		select 1, planned_id(0, 2 * i + s), 1, planned_id(1, i), '2026-01-01Z', 0, 'CNY', s * 200 - 100, 0,
		s * 200 - 100
		from generate_series(0, 49999) i, generate_series(0, 1) s`)
	p.exec(`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, life_ms, expires_at,
		created_at, principal, request_id)
		select 1, planned_id(2, i), 'h' || i, planned_id(0, 2 * i + 1), '', 10, 1000,
			case when 2 * i + 1 < 20000 then '2026-01-02Z'::timestamptz else '2126-01-01Z' end, '2026-01-01Z', 'p', 'r'
		from generate_series(0, 49999) i`)
	p.exec(`insert into commit_keys (tenant_id, principal, operation, key, refused, fingerprint, answer, request_id,
		created_at, expires_at)
		select 1, 'p', 'o', 'k' || i, false, $1, '', 'r', now(), now() + case when i < 20000 then interval '-1 h' else
		'1 h' end
		from generate_series(0, 99999) i`, make([]byte, commit.FingerprintSize))
}

// statements returns the names of the statements of batches. It leaves out statements that run elsewhere.
func statements(t *testing.T) (names []string) {
	t.Helper()
	header := regexp.MustCompile(`(?m)^-- name: (\w+)`)
	for _, file := range []string{"commit/batch.sql", "ledger/load.sql", "ledger/flush.sql"} {
		text, err := os.ReadFile(filepath.Join("../../db/queries", file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range header.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	// One row by its primary key; a setting; pg_locks; the background task for due holds.
	elsewhere := []string{"BatchVoid", "BatchOutcome", "DurabilityRaise", "BatchesOpen", "HoldDuePage"}
	return slices.DeleteFunc(names, func(n string) bool { return slices.Contains(elsewhere, n) })
}

// Without the countermeasures, a plan made on empty tables would last as long as the connection. On full tables without
// statistics, plans must be as good as with statistics.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
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
	p.empty()
	p.load()

	rows, err := p.pool.Query(context.Background(), `select coalesce(substring(statement from '-- name: (\w+)'), '')
		from pg_prepared_statements`)
	if err != nil {
		t.Fatal(err)
	}
	var prepared []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		prepared = append(prepared, name)
	}
	for _, name := range statements(t) {
		if !slices.Contains(prepared, name) {
			t.Errorf("%s was not run, so it is not tested", name)
		}
	}

	const n = 20
	at := func(prefix string, from, step int) func(int) string {
		return func(i int) string { return fmt.Sprint(prefix, from+step*i) }
	}
	measure := func(round int) map[string]int64 {
		got := map[string]int64{}
		from := 20_000 + round*20_000
		s := stage{tag: fmt.Sprint("full", round, "-"), commands: n, account: at("u", from, 1),
			transfer: at("b", from/2, 1),
			hold:     at("h", from/2, 1), due: at("u", round*2000+1, 2), key: at("k", round*1000, 1)}
		for kind := range p.kinds(s) {
			submissions := make([]flow.Submission, n)
			for i := range submissions {
				submissions[i] = p.kinds(s)[kind](i)
			}
			got[kind] = p.blocks(func() { p.do(submissions...) }) / n
		}
		return got
	}
	first := measure(0)
	deadline := time.Now().Add(20 * time.Second)
	for expire := planWork(&ledger.ExpireCommand{Account: ledger.AccountKey{Tenant: 1, Code: "u19999", Asset: "CNY"}},
		""); ; {
		if p.blocks(func() { p.do(expire) }) < 60 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the plans of the empty tables are still used")
		}
	}
	second := measure(1)
	p.exec("analyze")
	if _, err := p.pool.Exec(context.Background(), "discard plans"); err != nil {
		t.Fatal(err)
	}
	for kind, good := range measure(2) {
		t.Logf("%-14s %5d blocks a command at first, %3d then, %3d with statistics", kind, first[kind], second[kind],
			good)
		if second[kind] > good+good/2+20 || second[kind] > 250 {
			t.Errorf("%s: %d blocks a command, %d with statistics", kind, second[kind], good)
		}
	}
	if n := p.blocks(p.clean); n > 20_000*12 {
		t.Errorf("cleaning touched %d blocks", n)
	}
	if n := pgtest.TouchedAtRest(t, p.super, 500, func() int64 { return p.blocks(p.clean) }); n > 500 {
		t.Errorf("cleaning nothing touched %d blocks", n)
	}
}

func (p *plans) clean() {
	keys, cleaner := commit.Keys(), clean.Cleaner{Pool: p.pool, Metrics: clean.NewMetrics(nil)}
	if _, err := cleaner.Clean(context.Background(), &keys); err != nil {
		p.t.Fatal(err)
	}
}
