package notify_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// add creates a partition, as the owner of the schema.
const add = `with owner as materialized (select set_config('role', 'ledgerd_owner', true) as role)
	select notify_add_partition($1, $2, $3::text::date, $4::text::date) from owner where role <> ''`

// keep runs KeepPartitions until nothing is left over: on a busy machine the short lock timeout may pass.
func keep(t *testing.T, pool *pgxpool.Pool) (made, dropped int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	for {
		m, d, left, err := notify.KeepPartitions(ctx, pool)
		if err != nil {
			t.Fatal(err)
		}
		made, dropped = made+m, dropped+d
		if left == 0 {
			return made, dropped
		}
	}
}

func TestContentPartitionsExpireAndProofsStay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	keep(t, pool) // the template database may be from before midnight
	change(t, db, add, "notify_contents", "20260302", "2026-03-02", "2026-03-09")
	change(t, db, add, "notify_contents", "20260309", "2026-03-09", "2026-03-16")
	change(t, db, add, "notify_messages", "202603", "2026-03-01", "2026-04-01")
	change(t, db, "insert into notify_contents values (1, 1, '2026-03-05', 'r', 'c')")
	if made, dropped := keep(t, pool); made != 0 || dropped != 2 {
		t.Errorf("made %d, dropped %d", made, dropped)
	}
	if n := count(t, db, "select count(*) from pg_class where relname = 'notify_messages_202603'"); n != 1 {
		t.Error("the proof is gone")
	}
	week := monday(time.Now().UTC().AddDate(0, 0, 15))
	change(t, db, `drop table notify_contents_`+week.Format("20060102"))
	if made, _ := keep(t, pool); made != 1 {
		t.Errorf("made %d", made)
	}
	for _, statement := range []string{"drop table notify_contents",
		"select notify_drop_partition('notify_contents', 'notify_contents_20260309')",
		"select notify_keep_partitions(1)", "drop table notify_messages_202603"} {
		if _, err := pool.Exec(t.Context(), statement); err == nil {
			t.Errorf("the service was allowed to %s", statement)
		}
	}
}

// monday is the first day of a week.
func monday(day time.Time) time.Time {
	return day.Truncate(24*time.Hour).AddDate(0, 0, -(int(day.Weekday())+6)%7)
}

// A partition is dropped at the end of its week, when all its contents have expired, and not before. The partitions for
// every message that can be accepted now exist, and few others.
func TestPartitionsOfContentsCoverWeeks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	keep(t, pool)
	now := time.Now().UTC()
	today := now.Truncate(24 * time.Hour)
	if tomorrow := today.AddDate(0, 0, 1); tomorrow.Sub(now) < time.Minute {
		t.Skip("shortly before midnight")
	}
	if n := count(t, db, "select count(*) from pg_inherits where inhparent in "+
		"('notify_messages'::regclass, 'notify_events'::regclass, 'notify_contents'::regclass)"); n < 14 || n > 16 {
		t.Errorf("%d partitions", n)
	}
	longest := int((notify.MaxAhead+notify.MaxGiveUpAfter)/(24*time.Hour)) + 1
	for day := 1; day <= longest+30; day++ { // a month without a background task
		change(t, db, "insert into notify_contents values (1, $1, $2::text::date, 'r', 'c')", day,
			today.AddDate(0, 0, day).Format("2006-01-02"))
	}
	change(t, db, "truncate notify_contents")

	week := monday(today)
	exists := func(first time.Time) bool {
		return count(t, db, "select count(*) from pg_class where relname = 'notify_contents_"+first.Format("20060102")+
			"'") == 1
	}
	for _, first := range []time.Time{week.AddDate(0, 0, -7), week} {
		change(t, db, add, "notify_contents", first.Format("20060102"), first.Format("2006-01-02"),
			first.AddDate(0, 0, 7).Format("2006-01-02"))
	}
	keep(t, pool)
	if exists(week.AddDate(0, 0, -7)) {
		t.Error("the contents of last week are there")
	}
	if ended := today.Weekday() == time.Sunday; exists(week) == ended {
		t.Errorf("the contents of this week are there: %v", !ended)
	}
}

// Contents are not read from contents_until on, although their partition is dropped days later.
func TestExpiredContentsAreNotRead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	m := p.mustSend(says("hello"))
	reader := notify.NewReader(p.pool, nil)
	get := func() *notify.Detail {
		t.Helper()
		told, err := reader.Get(t.Context(), m.Key, "", true)
		if err != nil {
			t.Fatal(err)
		}
		return told
	}
	if told := get(); told.Content == nil || told.Recipient == "" {
		t.Fatalf("before: %+v", told)
	}
	change(t, db, "update notify_queue set state = 'dead', due_at = null, failure_code = 'a'")
	today := time.Now().UTC().Truncate(24 * time.Hour)
	week := monday(today)
	change(t, db, add, "notify_contents", week.Format("20060102"), week.Format("2006-01-02"),
		week.AddDate(0, 0, 7).Format("2006-01-02"))
	expire := func(day string) {
		t.Helper()
		change(t, db, "begin; set local session_replication_role = replica; update "+
			"notify_contents set contents_until = '"+day+
			"'; update notify_messages set contents_until = '"+day+"'; update notify_queue set contents_until = '"+day+
			"'; commit")
	}
	expire(today.Format("2006-01-02"))
	if n := count(t, db, "select count(*) from notify_contents"); n != 1 {
		t.Fatalf("%d contents", n)
	}
	if told := get(); told.Content != nil || told.Recipient != "" {
		t.Errorf("read: %+v", told)
	}
	if _, err := p.do(&notify.RequeueCommand{Caller: caller, ID: m.ID}); !fault.Is(err, notify.ContentGone) {
		t.Errorf("requeued: %v", err)
	}
	if _, err := p.do(&notify.RequeueAllCommand{Caller: caller}); err != nil {
		t.Error(err)
	}
	if n := count(t, db, "select count(*) from notify_queue where due_at is null"); n != 1 {
		t.Error("requeued with all others")
	}
	if n := count(t, db, `select count(*) from information_schema.columns where table_schema = 'audit'
		and table_name like 'notif%' and column_name in ('content', 'recipient')`); n != 0 {
		t.Error("a view shows contents")
	}
	expire(today.AddDate(0, 0, 2).Format("2006-01-02"))
}

func TestBizNoStaysTakenAfterItsProofIsDropped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	m := p.mustSend(bizNo("old"), says("old"))
	sent(t, db, m.ID)
	then := m.Month.AddDate(0, -5, 0)
	month, next := then.Format("2006-01-02"), then.AddDate(0, 1, 0).Format("2006-01-02")
	change(t, db, add, "notify_messages", then.Format("200601"), month, next)
	change(t, db, add, "notify_events", then.Format("200601"), month, next)
	change(t, db, fmt.Sprintf(`set session_replication_role = replica;
		update notify_messages set month = '%[1]s', accepted_at = timestamptz '%[1]sZ';
		update notify_events set month = '%[1]s';
		update commit_batches set recorded_at = timestamptz '%[1]sZ' where batch_id = %[2]d;
		reset session_replication_role`, month, m.ID>>14))
	if again, existed, err := p.send(bizNo("old"), says("old")); err != nil || !existed || again.State != notify.Sent {
		t.Fatalf("before: %+v, %v, %v", again, existed, err)
	}
	// Copies of a database have equal relation oids: a reader in another database must not block the drop.
	reader, err := pgtest.Pool(t, pgtest.New(t).SuperDSN).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), "select from notify_messages, notify_events"); err != nil {
		t.Fatal(err)
	}
	super := pgtest.Pool(t, db.SuperDSN)
	if _, err := notify.DropProofs(t.Context(), pgtest.Pool(t, db.AllDSN), 4); err == nil {
		t.Error("the service was allowed to drop proofs")
	}
	if _, err := notify.DropProofs(t.Context(), super, 3); err == nil {
		t.Error("DropProofs accepted 3 months, in which messages may be open")
	}
	if dropped, err := notify.DropProofs(t.Context(), super, 4); err != nil || dropped != 2 {
		t.Errorf("dropped %d, %v", dropped, err)
	}
	if again, existed, err := p.send(bizNo("old"), says("old")); err != nil || !existed || again.ID != m.ID ||
		again.State != "" {
		t.Errorf("repeat: %+v, %v, %v", again, existed, err)
	}
	if _, _, err := p.send(bizNo("old"), says("new")); !fault.Is(err, notify.BizNoExistsDifferent) {
		t.Errorf("another content: %v", err)
	}
}

// A long-running reader keeps its partition from being dropped. It blocks neither sends nor the lock queue.
func TestLongReaderDoesNotBlockSends(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	keep(t, pool) // the template database may be from before midnight
	change(t, db, add, "notify_contents", "20260302", "2026-03-02", "2026-03-09")
	super := pgtest.Pool(t, db.SuperDSN)
	reader, err := super.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(t.Context()) }()
	if _, err := reader.Exec(t.Context(), "select count(*) from notify_contents"); err != nil {
		t.Fatal(err)
	}
	p := start(t, db, 0)
	p.mustSend(says("before"))
	kept := make(chan error, 1)
	left := 0
	go func() {
		for range 5 {
			_, _, n, err := notify.KeepPartitions(t.Context(), pool)
			if left += n; err != nil {
				kept <- err
				return
			}
		}
		kept <- nil
	}()
	slowest, n := time.Duration(0), 0
	for done := false; !done; n++ {
		begin := time.Now()
		p.mustSend(says(begin.String()))
		slowest = max(slowest, time.Since(begin))
		select {
		case err := <-kept:
			if err != nil {
				t.Error(err)
			}
			done = true
		default:
		}
	}
	if left != 5 || count(t, db, "select count(*) from pg_class where relname = 'notify_contents_20260302'") != 1 {
		t.Errorf("left over %d times, want 5", left)
	}
	if n < 5 {
		t.Errorf("only %d messages were sent meanwhile, the slowest in %v", n, slowest)
	}
	t.Logf("%d messages meanwhile, the slowest in %v", n, slowest)
	if waits := count(t, db, "select count(*) from pg_locks where relation = 'notify_contents'::regclass "+
		"and mode = 'AccessExclusiveLock'"); waits != 0 {
		t.Error("an AccessExclusiveLock is still requested")
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, dropped := keep(t, pool); dropped != 1 {
		t.Errorf("afterwards: dropped %d", dropped)
	}
}
