package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// brief is the life of a hold that expires before the next batch; the test waits for it. All other holds expire
// long after the test.
const brief = time.Millisecond

// play is one run of the model against an engine. Commands are collected and committed in one batch.
type play struct {
	*rapid.T
	engine  *flow.Engine
	pool    *pgxpool.Pool
	wish    wish
	model   *model
	waiting []op
}

func (p *play) ok(err error) {
	if err != nil {
		p.Helper()
		p.Fatal(err)
	}
}

// commit runs the collected commands and compares answers and rows.
func (p *play) commit() {
	works := make([]flow.Submission, len(p.waiting))
	for i, o := range p.waiting {
		works[i] = flow.Submission{Tenant: p.wish.Tenant, RequestID: "r", Command: flow.Ledger(p.wish.command(o)),
			Rows: 4, Bytes: 400}
	}
	p.model.expire()
	for i, r := range p.engine.DoAll(context.Background(), works) {
		want := p.model.run(p.waiting[i])
		if got := told(r.Outcome.Answer, r.Outcome.Existed, r.Err); got != want {
			p.Fatalf("%+v\n got %s\nwant %s", p.waiting[i], got, want)
		}
	}
	p.waiting = nil
	p.waitOut()
	p.compare()
}

// waitOut waits until brief holds have expired.
func (p *play) waitOut() {
	for over := false; !over; {
		p.ok(p.pool.QueryRow(context.Background(), `select coalesce(max(expires_at) < clock_timestamp(), true)
			from ledger_holds
			where tenant_id = $1 and life_ms < 1000`, p.wish.Tenant).Scan(&over))
	}
	p.model.now = p.model.now.Add(2 * brief)
}

// compare compares the database's rows with the model. A hold past its expiry counts as expired, even if no
// batch has processed it yet.
func (p *play) compare() {
	p.model.expire()
	p.same("accounts", p.model.rows(), p.lines(`
		select format('account %s/%s: %s %s, %s of which %s held, %s to %s, version %s', a.code, a.asset, a.kind,
			a.state, a.balance, a.held - coalesce((select sum(h.amount - h.captured) from ledger_holds h
			where h.tenant_id = a.tenant_id
				and h.account_id = a.account_id and h.state = 'held' and h.expires_at <= clock_timestamp()), 0),
			coalesce(a.min_balance::text, 'none'), coalesce(a.max_balance::text, 'none'), a.version)
		from ledger_accounts a where a.tenant_id = $1`))
	p.same("holds", p.model.holdRows(), p.lines(`
		select format('hold %s of %s/%s for "%s": %s of %s captured, %s', h.biz_no, a.code, a.asset, h.to_code,
			h.captured, h.amount, case when h.state = 'held'
			and h.expires_at <= clock_timestamp() then 'expired' else h.state end)
		from ledger_holds h join ledger_accounts a using (tenant_id, account_id) where h.tenant_id = $1`))
}

// compareEntries compares the whole journal.
func (p *play) compareEntries() {
	var want []string
	for _, e := range p.model.entries {
		want = append(want, e...)
	}
	p.same("entries", want, p.lines(`
		select format('%s/%s %s: %s %s>%s #%s', a.code, a.asset, e.version, e.amount, e.balance_before, e.balance_after,
		e.posting)
		from ledger_entries e join ledger_accounts a using (tenant_id, account_id) where e.tenant_id = $1`))
}

// expireAll does the scheduler's work: it must terminate and leave no due holds.
func (p *play) expireAll() {
	for {
		due, err := ledger.DueHolds(context.Background(), p.pool, 0, ledger.DueHold{}, 1000)
		p.ok(err)
		due = slices.DeleteFunc(due, func(h ledger.DueHold) bool { return h.Account.Tenant != p.wish.Tenant })
		if len(due) == 0 {
			break
		}
		for _, k := range ledger.AccountsOf(due) {
			_, err := p.engine.Do(context.Background(),
				flow.Submission{Tenant: k.Tenant, RequestID: "r", Rows: 1, Bytes: 100,
					Command: flow.Ledger(&ledger.ExpireCommand{Account: k})})
			p.ok(err)
		}
	}
	if left := p.lines(`select biz_no from ledger_holds where tenant_id = $1 and state = 'held'
		and life_ms < 1000`); len(left) > 0 {
		p.Fatalf("due and still held: %v", left)
	}
	p.compare()
}

func (p *play) lines(query string) (lines []string) {
	rows, err := p.pool.Query(context.Background(), query, p.wish.Tenant)
	p.ok(err)
	defer rows.Close()
	for rows.Next() {
		var line string
		p.ok(rows.Scan(&line))
		lines = append(lines, line)
	}
	p.ok(rows.Err())
	return lines
}

func (p *play) same(what string, want, got []string) {
	p.Helper()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		p.Fatalf("%s:\n got %s\nwant %s", what, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// TestEngineAnswersAsTheModel runs random batches on Postgres and on the model, and compares answers, balances,
// holds and entries after each. At the end pgtest checks all invariants.
func TestEngineAnswersAsTheModel(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	engine := flow.NewEngine(pool, "model", nil, nil)
	t.Cleanup(func() {
		if err := engine.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
	var tenants atomic.Int32
	rapid.Check(t, func(t *rapid.T) {
		p := &play{T: t, engine: engine, pool: pool, model: newModel(time.Unix(0, 0)),
			wish: wish{commit.Caller{Tenant: tenants.Add(1), Principal: "p", RequestID: "r"}}}
		_, err := engine.Do(context.Background(),
			flow.Submission{Tenant: p.wish.Tenant, RequestID: "r", Rows: 2, Bytes: 100,
				Command: flow.Ledger(&ledger.CreateAssetsCommand{Caller: p.wish.Caller,
					Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}, {Code: "ETH", Scale: 18}}})})
		p.ok(err)
		p.waiting = opening()
		d := &dealer{lives: []time.Duration{brief, time.Hour, 1000 * time.Hour}}
		for range rapid.IntRange(2, 6).Draw(t, "batches") {
			for range rapid.IntRange(1, 12).Draw(t, "commands") {
				p.waiting = append(p.waiting, d.deal(t))
			}
			p.commit()
			if rapid.Bool().Draw(t, "scheduler") {
				p.expireAll()
			}
		}
		p.compareEntries()
		p.expireAll()
	})
	if tenants.Load() < 2 {
		t.Error(fmt.Sprint("ran only ", tenants.Load()))
	}
}
