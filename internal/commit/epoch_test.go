package commit_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestServersAgreeOnTheEpoch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t) // a copy of the template begins an epoch
	// Under this default isolation level, the loser of a race would fail.
	if _, err := pgtest.Pool(t, db.SuperDSN).Exec(t.Context(),
		"alter database "+db.Name+" set default_transaction_isolation = serializable"); err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t, db.AllDSN)
	const servers = 8
	terms := make([]string, servers)
	agree := func() string {
		var all sync.WaitGroup
		for i := range servers {
			all.Go(func() {
				e, err := commit.CurrentEpoch(t.Context(), pool)
				if err != nil {
					t.Error(err)
				}
				terms[i] = e.Term
			})
		}
		all.Wait()
		for _, term := range terms {
			if term != terms[0] || term == "" {
				t.Fatalf("the terms are %q", terms)
			}
		}
		return terms[0]
	}
	first := agree()
	if again := agree(); again != first {
		t.Errorf("the term was %s, and is %s", first, again)
	}
	// The operator's statement after restoring a disk snapshot.
	super := pgtest.Pool(t, db.SuperDSN)
	if _, err := super.Exec(t.Context(),
		"insert into commit_epochs (epoch) select greatest(max(epoch) + 1, commit_epoch()) "+
			"from commit_epochs"); err != nil {
		t.Fatal(err)
	}
	if next := agree(); next == first {
		t.Errorf("the term is still %s", next)
	}
}

// A copy may have the same cluster, database and timeline identifiers as its original. It begins an epoch all the same.
func TestACopyBeginsAnEpoch(t *testing.T) {
	t.Parallel()
	for name, copied := range map[string]func(t *testing.T, db *pgtest.DB) *pgtest.DB{
		"from a dump":        func(t *testing.T, db *pgtest.DB) *pgtest.DB { db.Reload(t); return db },
		"file by file":       func(t *testing.T, db *pgtest.DB) *pgtest.DB { return db.Copy(t) },
		"from a second dump": func(t *testing.T, db *pgtest.DB) *pgtest.DB { db.Reload(t); db.Reload(t); return db },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			epoch, base := recorded(t, db)
			if again, _ := recorded(t, db); again != epoch {
				t.Errorf("epoch %d of the same database became %d", epoch, again)
			}
			later, higher := recorded(t, copied(t, db))
			if later <= epoch || higher < base+1<<34 {
				t.Errorf("the original is in epoch %d with base %d, the copy in epoch %d with base %d",
					epoch, base, later, higher)
			}
		})
	}
}

// recorded records the epoch, as a starting server does, and returns its number and base.
func recorded(t *testing.T, db *pgtest.DB) (epoch, base int64) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db.AppDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := commit.RecordEpoch(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	if err := pool.QueryRow(t.Context(), "select epoch, base from commit_epochs order by epoch desc limit 1").
		Scan(&epoch, &base); err != nil {
		t.Fatal(err)
	}
	return epoch, base
}

// A session has inserted the row of the epoch, and does not commit.
func TestAnOpenRecordingOfTheEpochDelaysStartsForALimitedTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	tx, err := super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "insert into commit_epochs default values"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := commit.RecordEpoch(ctx, super); err == nil || ctx.Err() != nil {
		t.Errorf("the epoch was recorded beside another session: %v", err)
	}
}
