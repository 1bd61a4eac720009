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

// add makes a partition as of that many days ago.
const add = `select public.notify_add_partition($1, $2, $3::text::date, $4::text::date)`

// keep keeps partitions until nothing is left over: on a busy machine a lock may not be had in the short time that it
// is waited for.
func keep(t *testing.T, pool *pgxpool.Pool) (made, dropped int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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

func TestContentsGoOnTheirDayAndProofsStay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AppDSN)
	keep(t, pool) // the database may have been made before midnight
	change(t, db, add, "notify_contents", "20260301", "2026-03-01", "2026-03-02")
	change(t, db, add, "notify_contents", "20260302", "2026-03-02", "2026-03-03")
	change(t, db, add, "notify_messages", "202603", "2026-03-01", "2026-04-01")
	change(t, db, "insert into notify_contents values (1, 1, '2026-03-01', 'r', 'c')")
	if made, dropped := keep(t, pool); made != 0 || dropped != 2 {
		t.Errorf("made %d, dropped %d", made, dropped)
	}
	if n := count(t, db, "select count(*) from pg_class where relname = 'notify_messages_202603'"); n != 1 {
		t.Error("the proof is gone")
	}
	change(t, db, `drop table notify_parts.notify_contents_`+time.Now().UTC().AddDate(0, 0, 5).Format("20060102"))
	if made, _ := keep(t, pool); made != 1 {
		t.Errorf("made %d", made)
	}
	for _, statement := range []string{"drop table notify_contents",
		"select notify_drop_partition('notify_contents', 'notify_contents_20260301')",
		"select notify_keep_partitions(1)", "drop table notify_parts.notify_messages_202603"} {
		if _, err := pool.Exec(t.Context(), statement); err == nil {
			t.Errorf("the service may %s", statement)
		}
	}
}

// A number stays taken when the proof is gone.
func TestANumberStaysTakenWhenItsProofIsGone(t *testing.T) {
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
		update commit_batches set committed_at = timestamptz '%[1]sZ' where batch_id = %[2]d;
		reset session_replication_role`, month, m.ID>>14))
	if again, existed, err := p.send(bizNo("old"), says("old")); err != nil || !existed || again.State != notify.Sent {
		t.Fatalf("before: %+v, %v, %v", again, existed, err)
	}
	// Copies of a database have the same numbers of relations: what is read in another one is no reason to leave ours.
	reader, err := pgtest.Pool(t, pgtest.New(t).SuperDSN).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.Background()) }()
	if _, err := reader.Exec(t.Context(), "select from notify_messages, notify_events"); err != nil {
		t.Fatal(err)
	}
	super := pgtest.Pool(t, db.SuperDSN)
	if _, err := notify.DropProofs(t.Context(), pgtest.Pool(t, db.AppDSN), 4); err == nil {
		t.Error("the service may drop proofs")
	}
	if _, err := notify.DropProofs(t.Context(), super, 3); err == nil {
		t.Error("proofs of messages that may be open are dropped")
	}
	if dropped, err := notify.DropProofs(t.Context(), super, 4); err != nil || dropped != 2 {
		t.Errorf("dropped %d, %v", dropped, err)
	}
	if again, existed, err := p.send(bizNo("old"), says("old")); err != nil || !existed || again.ID != m.ID ||
		again.State != "" {
		t.Errorf("the same again: %+v, %v, %v", again, existed, err)
	}
	if _, _, err := p.send(bizNo("old"), says("new")); !fault.Is(err, notify.BizNoExistsDifferent) {
		t.Errorf("another one: %v", err)
	}
}

// Somebody reads for long: what he reads stays, and nobody who sends waits for him, or behind the one who would drop
// it.
func TestALongReaderKeepsNobodyFromSending(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AppDSN)
	keep(t, pool) // the database may have been made before midnight
	change(t, db, add, "notify_contents", "20260301", "2026-03-01", "2026-03-02")
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
	if left != 5 || count(t, db, "select count(*) from pg_class where relname = 'notify_contents_20260301'") != 1 {
		t.Errorf("left over %d times", left)
	}
	if n < 20 {
		t.Errorf("only %d messages were sent meanwhile, the slowest in %v", n, slowest)
	}
	t.Logf("%d messages meanwhile, the slowest in %v", n, slowest)
	if waits := count(t, db, "select count(*) from pg_locks where relation = 'notify_contents'::regclass and mode = 'AccessExclusiveLock'"); waits != 0 {
		t.Error("somebody still wants the table for himself")
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, dropped := keep(t, pool); dropped != 1 {
		t.Errorf("afterwards: dropped %d", dropped)
	}
}
