package notify_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// plans runs commands over one connection, so that each statement keeps the plan that it got while the tables were
// empty.
type plans struct {
	*testing.T
	super, pool *pgxpool.Pool
	engine      *flow.Engine
	reader      *notify.Reader
}

func (p *plans) all(c func(i int) commit.Command[*notify.Tx], n int) {
	p.Helper()
	submissions := make([]flow.Submission, n)
	for i := range submissions {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(c(i)), Rows: 4, Bytes: 100}
	}
	for i, r := range p.engine.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			p.Fatalf("command %d: %v", i, r.Err)
		}
	}
}

func (p *plans) exec(sql string, args ...any) {
	p.Helper()
	if _, err := p.super.Exec(context.Background(), sql, args...); err != nil {
		p.Fatal(err)
	}
}

// blocks counts the blocks that a call touches.
func (p *plans) blocks(call func()) int64 {
	p.Helper()
	return pgtest.TouchedBy(p, "^notify", p.super, p.pool, call)
}

// load inserts messages (1 << 14) + from … to, one batch per 16,000: half of them queued, a quarter of those dead, the
// rest sent, each with a biz_no, a fingerprint and a counter.
func (p *plans) load(from, to int) {
	p.exec(fmt.Sprintf(`
		insert into commit_epochs default values on conflict do nothing;
		insert into commit_batches (batch_id, recorded_at, commands, instance)
		select -b, now(), 1, 'load' from generate_series(%d / 16000 + 1, %[2]d / 16000 + 1) b on conflict do nothing;
		create temp table fresh as select (-(i / 16000 + 1)::bigint << 14) + i %% 16000 as id, i
		from generate_series(%[1]d, %[2]d) i;
		insert into notify_messages (tenant_id, message_id, month, channel, business_type, biz_no, recipient_hash,
			recipient_hint, content_hash, fingerprint, priority, on_unknown, max_attempts, give_up_at, contents_until,
			accepted_at, principal, request_id)
		select 1, id, date_trunc('month', now() at time zone 'UTC'), 'sms', 'x', 'old' || i,
			substr(sha256(i::text::bytea), 1, 16), '+86****', sha256('x'), substr(sha256(i::text::bytea), 1, 16),
			1, 'park', 10, now() + interval '1 day', (now() at time zone 'UTC')::date + 3, b.recorded_at, 'p', 'r'
		from fresh join commit_batches b on b.batch_id = id >> 14;
		insert into notify_names select 1, 'old' || i, id, sha256('x') from fresh;
		insert into notify_contents select 1, id, (now() at time zone 'UTC')::date + 3, 'r', '{}' from fresh;
		insert into notify_fingerprints
		select 1, 'sms', substr(sha256(i::text::bytea), 1, 16), id, now() + interval '1 h' from fresh;
		insert into notify_counters select 1, '*', 'recipient', 3600, substr(sha256(i::text::bytea), 1, 16), 1,
		array_fill(0, array[61]), now() + interval '1 h' from fresh;
		insert into notify_queue (tenant_id, message_id, channel, priority, state, due_at, fence, attempts,
		max_attempts, on_unknown, give_up_at, month, contents_until, failure_code)
		select 1, id, 'sms', 1, case when i %% 4 = 0 then 'dead' else 'queued' end, case when i %% 4 <> 0 then now()
			end, 0, 0, 10, 'park', now() + interval '1 day', date_trunc('month', now() at time zone 'UTC'), (now() at
			time zone 'UTC')::date + 3, case when i %% 4 = 0 then 'code' || i %% 3 end from fresh where i %% 2 = 0;
		insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id,
		at, instance)
		select 1, id, date_trunc('month', now() at time zone 'UTC'), 1, 'sent', 1, 'file', 'f' || i, now(), 'load'
		from fresh where i %% 2 = 1;
		drop table fresh`, from, to))
}

// id returns the id of a loaded message.
func id(i int) int64 { return -int64(i/16000+1)<<14 + int64(i%16000) }

// kinds returns calls that each run n operations, on loaded messages from a number on, and on new ones named by tag.
func (p *plans) kinds(tag string, from, n int) map[string]func() {
	key := func(i int) notify.Key { return notify.Key{Tenant: 1, ID: id(from + i)} }
	each := func(f func(i int) error) func() {
		return func() {
			for i := range n {
				if err := f(i); err != nil {
					p.Fatal(err)
				}
			}
		}
	}
	commands := func(c func(i int) commit.Command[*notify.Tx]) func() { return func() { p.all(c, n) } }
	return map[string]func(){
		"1 send": commands(func(i int) commit.Command[*notify.Tx] {
			return text(bizNo(fmt.Sprint(tag, i)), says(fmt.Sprint(tag, i)), to(fmt.Sprintf("+8613812%06d", from+i)))
		}),
		"2 send again": commands(func(i int) commit.Command[*notify.Tx] {
			return text(says(fmt.Sprint(tag, i)), to(fmt.Sprintf("+8613812%06d", from+i)))
		}),
		"3 cancel": commands(func(i int) commit.Command[*notify.Tx] {
			return &notify.CancelCommand{Caller: caller, ID: id((from+i)&^3 | 2)}
		}),
		"4 report": commands(func(i int) commit.Command[*notify.Tx] {
			return &notify.ReportCommand{Caller: caller, Provider: "file",
				ProviderMessageID: fmt.Sprint("f", (from+i)|1),
				Delivered:         true}
		}),
		"5 requeue": commands(func(i int) commit.Command[*notify.Tx] {
			if i > 0 { // of four messages only one is dead
				return &notify.ReportCommand{Caller: caller, ID: id((from + i) | 1), Delivered: true}
			}
			return &notify.RequeueCommand{Caller: caller, ID: id((from + i + 3) &^ 3)}
		}),
		"6 get": each(func(i int) error {
			_, err := p.reader.Get(context.Background(), key(i), "", true)
			return err
		}),
		"7 list": each(func(int) error {
			_, _, err := p.reader.List(context.Background(), 1, notify.Filter{}, 1, "")
			return err
		}),
		"9 requeue all of a code": commands(func(i int) commit.Command[*notify.Tx] {
			return &notify.RequeueAllCommand{Caller: caller, FailureCode: fmt.Sprint("none", i)}
		}),
		"8 list to": each(func(i int) error {
			_, _, err := p.reader.List(context.Background(), 1,
				notify.Filter{Channel: "sms", Recipient: fmt.Sprintf("+8613812%06d", from+i)}, 10, "")
			return err
		}),
	}
}

// Cached plans from empty tables must stay good on full tables without statistics.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // loaded rows have no valid hashes
	p := &plans{T: t, super: pgtest.Pool(t, db.SuperDSN)}
	var err error
	if p.pool, err = pg.Open(t.Context(), db.AllDSN, 1); err != nil {
		t.Fatal(err)
	}
	defer p.pool.Close()
	pgtest.StopAutovacuum(t, p.super)
	p.exec("analyze")
	setLimit(t, db, notify.Limit{Channel: notify.AllChannels, Scope: notify.PerRecipient, Window: time.Hour,
		MaxMessages: 100})
	outbox := &notify.Outbox{Master: master, Instance: "test"}
	p.engine, p.reader = flow.NewSendingEngine(p.pool, t.Name(), nil, nil, outbox), notify.NewReader(p.pool, outbox)
	defer p.engine.Drain(context.Background())
	run := func(kinds map[string]func(), each func(name string, call func())) {
		for _, name := range slices.Sorted(maps.Keys(kinds)) {
			each(name, kinds[name])
		}
	}
	for round := range 8 {
		p.load(4*round, 4*round+3)
		run(p.kinds(fmt.Sprint("warm", round, "-"), 4*round, 1), func(_ string, call func()) { call() })
	}
	p.load(100, 120_000)
	const n = 40
	run(p.kinds("full-", 60_000, n), func(name string, call func()) {
		got := p.blocks(call) / n
		if t.Logf("%s: %d blocks each", name, got); got > 120 {
			t.Errorf("%s: %d blocks each", name, got)
		}
	})
	if got := p.blocks(func() {
		if _, err := p.reader.DeadGroups(context.Background(), 1, notify.Dead); err != nil {
			t.Fatal(err)
		}
	}); got > 60_000 {
		t.Errorf("dead letters: %d blocks", got)
	}
	// A filter that matches little gets bounded pages, empty until the scan finds a match or ends.
	for _, f := range []notify.Filter{{Channel: send.Push}, {State: notify.Failed},
		{State: notify.Dead, FailureCode: "none"}} {
		token, pages := "", 0
		for ; pages == 0 || token != ""; pages++ {
			var list []*notify.Message
			if got := p.blocks(func() {
				if list, token, err = p.reader.List(t.Context(), 1, f, 100, token); err != nil {
					t.Fatal(err)
				}
			}); got > 10_000 || len(list) > 0 || pages > 3 {
				t.Fatalf("%+v, page %d: %d messages, %d blocks", f, pages, len(list), got)
			}
		}
		if pages < 2 {
			t.Errorf("%+v: %d pages", f, pages)
		}
	}
	p.exec("update notify_fingerprints set expires_at = now() - interval '1 h' where message_id >= $1 "+
		"and message_id < $2", id(15_999), id(0)+2000)
	cleaner := &clean.Cleaner{Pool: p.pool, Metrics: clean.NewMetrics(nil)}
	cleaning := func() int64 {
		return p.blocks(func() {
			for _, table := range notify.Tables() {
				if _, err := cleaner.Clean(t.Context(), &table); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if got := cleaning(); got > 2000*30 {
		t.Errorf("cleaning touched %d blocks", got)
	}
	if got := pgtest.TouchedAtRest(t, p.super, 100, cleaning); got > 100 {
		t.Errorf("cleaning nothing touched %d blocks", got)
	}
}
