package commit_test

import (
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestServersAgreeOnTheEpoch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t) // a copy of the template begins an epoch
	// Under this default a loser of the race would fail.
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
	if _, err := super.Exec(t.Context(), "insert into commit_epochs (epoch) select max(epoch) + 1 from commit_epochs"); err != nil {
		t.Fatal(err)
	}
	if next := agree(); next == first {
		t.Errorf("the term is still %s", next)
	}
}

func TestCommitBeginsAnUnrecordedEpoch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	super := pgtest.Pool(t, db.SuperDSN)
	for _, history := range []string{"1/1", "2/2"} { // the history of another cluster
		var epoch, next int
		err := super.QueryRow(t.Context(), `insert into commit_epochs (epoch, history, base)
			select coalesce(max(epoch), 0) + 1, $1, 0 from commit_epochs returning epoch`, history).Scan(&epoch)
		if err != nil {
			t.Fatal(err)
		}
		err = super.QueryRow(t.Context(), `insert into commit_batches (batch_id, committed_at, commands, instance)
			values ($1, now(), 0, 'test') returning epoch`, epoch).Scan(&next)
		if err != nil || next != epoch+1 {
			t.Errorf("a commit after epoch %d carries epoch %d, %v", epoch, next, err)
		}
	}
}
