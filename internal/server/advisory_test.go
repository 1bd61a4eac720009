package server_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/lock"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// Advisory locks of an auditor block no call: every login of the database can take them, even a read-only one.
func TestAdvisoryLocksOfAnAuditorStopNothing(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	fund(c, "a")
	auditor, err := s.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer auditor.Release()
	for _, sql := range []string{"set role ledgerd_audit",
		// The locks of the whole service, of this and of earlier versions, and those of the cleaners.
		"select pg_advisory_lock(class, 0) from unnest(array[77001, 77002, 77004, 77015]) class",
		`select pg_advisory_lock(77003, hashtext(tablename)) from pg_tables where schemaname = 'public'`} {
		if _, err := auditor.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _, _ = auditor.Exec(context.Background(), "reset role; select pg_advisory_unlock_all()") }()
	// An auditor cannot take table locks that block writes.
	for _, table := range []string{"commit_batches", "lock_locks", "notify_events"} {
		if _,
			err := auditor.Exec(t.Context(),
			"do $$ begin lock table "+table+" in row exclusive mode; end $$"); !isRefused(err) {
			t.Errorf("%s: %v", table, err)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if answer := c.Call(servertest.ConnectJSON, "Transfer", payment("a", "5")); answer.Code != "" {
		t.Errorf("transfer: %v", answer)
	}
	app := pgtest.Pool(t, s.DB.AppDSN)
	if _, err := access.EnsureTenant(ctx, pgtest.Pool(t, s.DB.AdminDSN), "new"); err != nil {
		t.Error(err)
	}
	if _, err := lock.Clean(ctx, app, 0); err != nil {
		t.Error(err)
	}
	if _, _, _, err := notify.KeepPartitions(ctx, app); err != nil {
		t.Error(err)
	}
	if _, err := s.Pool.Exec(ctx, `insert into commit_keys
		select 1, 'p', 'o', 'k' || i, false, $1, '', 'r', now(), now() - interval '1 h'
		from generate_series(1, 10) i`, make([]byte, commit.FingerprintSize)); err != nil {
		t.Fatal(err)
	}
	cleaner := clean.Cleaner{Pool: app, Metrics: clean.NewMetrics(nil), Log: slog.New(slog.DiscardHandler),
		Patience: time.Nanosecond}
	keys := commit.Keys()
	for deleted := int64(0); deleted == 0; {
		if deleted, err = cleaner.Clean(ctx, &keys); err != nil {
			t.Fatal(err)
		}
	}
}

func isRefused(err error) bool {
	var refused *pgconn.PgError
	return errors.As(err, &refused) && refused.Code == "42501"
}
