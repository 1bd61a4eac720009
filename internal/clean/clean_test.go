package clean_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// expired inserts request keys that expired an hour ago or have not expired yet.
func expired(t *testing.T, super *pgxpool.Pool, n int, life string) {
	t.Helper()
	if _, err := super.Exec(t.Context(), `insert into commit_keys
		select 1, 'p', 'o', $1::text || i, false, $2, '', 'r', now(), now() + $1::interval
		from generate_series(1, $3) i`, life, make([]byte, commit.FingerprintSize), n); err != nil {
		t.Fatal(err)
	}
}

func count(t *testing.T, super *pgxpool.Pool) (n int) {
	t.Helper()
	if err := super.QueryRow(t.Context(), "select count(*) from commit_keys").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// metric is the value of a gauge or counter for commit_keys.
func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return -1
}

func TestOneProcessCleansATableAtATime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	expired(t, super, 3000, "-1 h")
	inside, leave := make(chan struct{}), make(chan struct{})
	keys := commit.Keys()
	slow := keys
	slow.Delete = func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
		close(inside)
		<-leave
		_, err := keys.Delete(ctx, tx, 10)
		return 10, err
	}
	first := clean.Cleaner{Pool: pgtest.Pool(t, db.AllDSN), Metrics: clean.NewMetrics(nil)}
	done := make(chan error, 1)
	go func() { _, err := first.Clean(t.Context(), &slow); done <- err }()
	<-inside
	second := clean.Cleaner{Pool: pgtest.Pool(t, db.AllDSN), Metrics: clean.NewMetrics(nil)}
	if n, err := second.Clean(t.Context(), &keys); n != 0 || err != nil {
		t.Errorf("while another process cleans it deleted %d, %v", n, err)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n, err := second.Clean(t.Context(), &keys); n != 2990 || err != nil {
		t.Errorf("after the other process it deleted %d, %v", n, err)
	}
}

func TestCleanerRunsUntilNothingIsLeftAndReportsItsLag(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super, reg := pgtest.Pool(t, db.SuperDSN), prometheus.NewRegistry()
	expired(t, super, 7000, "-1 h")
	expired(t, super, 5, "1 h")
	keys := commit.Keys()
	overdue := 0.0
	seen := keys
	seen.Overdue = func(ctx context.Context, tx pgx.Tx) (float64, error) {
		seconds, err := keys.Overdue(ctx, tx)
		overdue = max(overdue, seconds)
		return seconds, err
	}
	c := clean.Cleaner{Pool: pgtest.Pool(t, db.AllDSN), Metrics: clean.NewMetrics(reg),
		Log: slog.New(slog.DiscardHandler), Tables: []clean.Table{seen}}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	for metric(t, reg, "ledgerd_clean_deleted_total") < 7000 && ctx.Err() == nil {
		<-time.After(5 * time.Millisecond)
	}
	stop()
	<-ended
	if n := count(t, super); n != 5 || overdue < 3600 {
		t.Errorf("%d keys are left; the oldest was %f s overdue", n, overdue)
	}
	if seconds := metric(t, reg, "ledgerd_clean_overdue_seconds"); seconds != 0 {
		t.Errorf("with nothing left to do the oldest is %f s overdue", seconds)
	}
}

// A cleaner under load takes longer over the same rows.
func TestCleaningSlowsDownUnderLoad(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		took time.Duration
		busy float64
		want time.Duration
	}{{20 * time.Millisecond, 0, 40 * time.Millisecond}, {20 * time.Millisecond, 2,
		360 * time.Millisecond}, {time.Second, 100, 2 * time.Second}} {
		c := clean.Cleaner{Load: func() float64 { return x.busy }}
		if got := c.Pause(x.took); got != x.want {
			t.Errorf("after %v with %f batches waiting it pauses %v", x.took, x.busy, got)
		}
	}
	for _, x := range []struct {
		limit int32
		took  time.Duration
		want  int32
	}{{500, time.Millisecond, 1000}, {500, 20 * time.Millisecond, 500}, {500, time.Second, 250}, {60, time.Second,
		50}, {5000, 0, 5000}} {
		if got := clean.Size(x.limit, x.took); got != x.want {
			t.Errorf("after %d in %v the next is of %d", x.limit, x.took, got)
		}
	}
}

// Uncommitted deletions are not counted.
func TestAFailedBatchIsNotCounted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super, reg := pgtest.Pool(t, db.SuperDSN), prometheus.NewRegistry()
	expired(t, super, 7, "-1 h")
	keys := commit.Keys()
	keys.Overdue = func(ctx context.Context, tx pgx.Tx) (float64, error) {
		_, err := super.Exec(ctx, "select pg_terminate_backend($1, 5000)", tx.Conn().PgConn().PID())
		return 0, err
	}
	c := clean.Cleaner{Pool: pgtest.Pool(t, db.AllDSN), Metrics: clean.NewMetrics(reg)}
	n, err := c.Clean(t.Context(), &keys)
	if counted := metric(t, reg, "ledgerd_clean_deleted_total"); err == nil || n != 0 || counted != 0 ||
		count(t, super) != 7 {
		t.Errorf("returned %d and counted %f, %v", n, counted, err)
	}
}

// A batch whose connection is silent ends, so that the next one can use another connection.
func TestABatchOnASilentConnectionEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := pgtest.NewProxy(t, db.AllDSN)
	keys := commit.Keys()
	c := clean.Cleaner{Pool: pgtest.Pool(t, p.DSN), Metrics: clean.NewMetrics(nil), Timeout: 2 * time.Second}
	if _, err := c.Clean(t.Context(), &keys); err != nil {
		t.Fatal(err)
	}
	p.Silence(pgtest.Requests, pgtest.Answers)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.Clean(ctx, &keys); err == nil || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}
