package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Plans made on empty tables stay good on full tables without statistics: the cost per message does not grow with the
// table.
func TestPlansOfEmptyTablesStayRightOnFullOnes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	base := pgtest.New(t)
	super := pgtest.Pool(t, base.SuperDSN)
	pgtest.StopAutovacuum(t, super)
	if _, err := super.Exec(ctx, "analyze notify_queue; analyze notify_messages; analyze notify_events"); err != nil {
		t.Fatal(err)
	}
	one, err := pg.Open(ctx, base.AllDSN, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	p := deliver.New(deliver.Config{DB: one})
	var q db.Queries
	o := newOutbox(t, base)
	w := &statements{t: t, p: p, q: &q, blocks: func() int64 { return pgtest.Touched(t, "^notify_", super, one) }}
	for range 12 { // until plans are cached
		o.put(4, message{priority: 1, never: true})
		w.all(4)
	}
	if n := o.count("notify_queue where state <> 'dead'"); n != 0 {
		t.Fatalf("%d messages are left", n)
	}
	for tenant := range int32(5) {
		o.put(30_000, message{tenant: tenant + 1, priority: 1, never: true})
		o.put(10_000, message{tenant: tenant + 1, priority: 2, after: time.Hour})
	}
	const messages = 40 // few, so that one scan of a table is seen
	for what, touched := range w.all(messages) {
		t.Logf("%s: %d blocks each", what, touched/messages)
		if touched/messages > 60 {
			t.Errorf("%s: %d blocks each", what, touched/messages)
		}
	}
	var planned []string // anew for each execution, which may take longer than that
	if err := one.QueryRow(ctx, `select coalesce(array_agg(substring(statement from '-- name: (\w+)')), '{}')
		from pg_prepared_statements where custom_plans > 0 and statement !~ 'PlanSteer'`).Scan(&planned); err != nil {
		t.Fatal(err)
	}
	if len(planned) > 0 {
		t.Errorf("planned for each execution: %q", planned)
	}
}

// statements runs every statement once and returns the blocks that each touched.
type statements struct {
	t      *testing.T
	p      *deliver.Pool
	q      *db.Queries
	blocks func() int64
}

func (w *statements) all(n int32) map[string]int64 {
	w.t.Helper()
	ctx := pg.ForAllTenants(context.Background())
	touched := map[string]int64{}
	run := func(what string, f ...func(db.DBTX) error) {
		w.t.Helper()
		before := w.blocks()
		_, err := w.p.Transact(ctx, f...)
		// nothing was done, on a slow machine
		for try := 1; errors.Is(err, context.DeadlineExceeded) && try < 5; try++ {
			before = w.blocks()
			_, err = w.p.Transact(ctx, f...)
		}
		if err != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
		touched[what] = w.blocks() - before
	}
	run("discover", func(d db.DBTX) error { _, err := w.q.DueGroups(ctx, d); return err })
	var rows []db.QueueTakeRow
	run("take", func(d db.DBTX) (err error) {
		rows, err = w.q.QueueTake(ctx, d,
			db.QueueTakeParams{Holder: "test", LeaseS: 60, Tenants: []int32{1}, Channels: []string{"webhook"},
				Priorities: []int32{1},
				Since:      []time.Time{{}}, Most: []int32{n}})
		return err
	})
	if len(rows) != int(n) {
		w.t.Fatalf("%d of %d messages taken", len(rows), n)
	}
	half := n / 2
	contents := db.ContentsReadParams{ContentsUntil: pgtype.Date{Time: rows[0].ContentsUntil.Time, Valid: true},
		MostBytes: 1 << 20}
	var mark db.AttemptMarkParams
	var over db.ContentsForgetParams
	var sent db.SentEventInsertParams
	var lost db.FailedEventInsertParams
	for i, r := range rows {
		contents.Tenants, contents.MessageIds = append(contents.Tenants, r.TenantID),
			append(contents.MessageIds, r.MessageID)
		mark.Tenants, mark.MessageIds = append(mark.Tenants, r.TenantID), append(mark.MessageIds, r.MessageID)
		mark.Fences, mark.NeedUs = append(mark.Fences, r.Fence), append(mark.NeedUs, 1)
		mark.Providers = append(mark.Providers, []string{"", "p"}[i%2])
		if i < int(half) {
			sent.Tenants, sent.MessageIds, sent.Fences = append(sent.Tenants, r.TenantID),
				append(sent.MessageIds, r.MessageID), append(sent.Fences, r.Fence)
			sent.Providers, sent.ProviderMessageIds = append(sent.Providers, "p"),
				append(sent.ProviderMessageIds, fmt.Sprint(i))
			continue
		}
		lost.Tenants, lost.MessageIds, lost.Fences = append(lost.Tenants, r.TenantID),
			append(lost.MessageIds, r.MessageID), append(lost.Fences, r.Fence)
		lost.States, lost.Kinds, lost.WaitUs = append(lost.States, "dead"), append(lost.Kinds, "dead"),
			append(lost.WaitUs, 0)
		lost.Providers, lost.ProviderMessageIds, lost.Unsure = append(lost.Providers, "p"),
			append(lost.ProviderMessageIds, ""), append(lost.Unsure, false)
		lost.FailureCodes, lost.FailureTexts = append(lost.FailureCodes, "no"), append(lost.FailureTexts, "no")
	}
	counts := map[string]int{}
	run("contents", func(d db.DBTX) error {
		found, err := w.q.ContentsRead(ctx, d, contents)
		counts["contents"] = len(found)
		return err
	})
	run("mark", func(d db.DBTX) error {
		done, err := w.q.AttemptMark(ctx, d, mark)
		counts["mark"] = len(done)
		return err
	})
	gone := db.SentDeleteParams{Tenants: sent.Tenants, MessageIds: sent.MessageIds, Fences: sent.Fences}
	run("sent", func(d db.DBTX) error { return w.q.SentEventInsert(ctx, d, sent) }, func(d db.DBTX) error {
		done, err := w.q.SentDelete(ctx, d, gone)
		counts["sent"] = len(done)
		return err
	})
	lapsed := db.LateDeleteParams{Tenants: sent.Tenants, MessageIds: sent.MessageIds, Fences: sent.Fences}
	run("late", func(d db.DBTX) error { return w.q.LateEventInsert(ctx, d, db.LateEventInsertParams(sent)) },
		func(d db.DBTX) error { return w.q.LateDelete(ctx, d, lapsed) })
	left := db.FailedUpdateParams{Tenants: lost.Tenants, MessageIds: lost.MessageIds, Fences: lost.Fences,
		States: lost.States, Kinds: lost.Kinds, WaitUs: lost.WaitUs, Providers: lost.Providers, Unsure: lost.Unsure,
		FailureCodes: lost.FailureCodes}
	run("failed", func(d db.DBTX) error { return w.q.FailedEventInsert(ctx, d, lost) }, func(d db.DBTX) error {
		done, err := w.q.FailedUpdate(ctx, d, left)
		counts["failed"] = len(done)
		return err
	})
	over.Tenants, over.MessageIds, over.ContentsUntil = contents.Tenants, contents.MessageIds, contents.ContentsUntil
	run("forget", func(d db.DBTX) error { return w.q.ContentsForget(ctx, d, over) })
	run("parked", func(d db.DBTX) error { _, err := w.q.ParkedCount(ctx, d); return err })
	run("hint", func(d db.DBTX) error { return w.q.Hint(ctx, d, "1") })
	for what, want := range map[string]int32{"contents": n, "mark": n, "sent": half, "failed": n - half} {
		if counts[what] != int(want) {
			w.t.Fatalf("%s: %d of %d", what, counts[what], want)
		}
	}
	return touched
}
