package verify_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/db/checks"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

func TestRunningTransfersGiveNoFalseAlarm(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	b := verifytest.New(t, db)
	const users = 10
	codes := []string{"world"}
	for i := range users {
		codes = append(codes, fmt.Sprintf("user:%d", i))
	}
	b.Accounts(verifytest.Demo, "r", codes...)
	for _, code := range codes[1:] {
		b.Transfer(verifytest.Demo, "fund "+code, "world", code, "1000000")
	}
	var loads sync.WaitGroup
	for worker := range 4 {
		loads.Go(func() {
			for i := range 100 {
				id := fmt.Sprintf("%d-%d", worker, i)
				from, to := codes[1+(worker+i)%users], codes[1+(worker*3+i*7+1)%users]
				b.Transfer(verifytest.Demo, "transfer "+id, from, to, "1.5")
				b.Hold(verifytest.Demo, "hold "+id, from, "world", "2")
				b.Capture(verifytest.Demo, "capture "+id, "hold "+id, "0.7")
			}
		})
	}
	done := make(chan struct{})
	go func() { loads.Wait(); close(done) }()
	pool := pgtest.Pool(t, db.AllDSN)
	overlapping := 0
	for running := true; running; {
		select {
		case <-done:
			running = false // and once more without load
		default:
		}
		before := countEntries(t, pool)
		report, err := verify.Run(t.Context(), pool, verify.Options{SliceAccounts: 3})
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range report.Violations {
			t.Error(v)
		}
		if countEntries(t, pool) > before {
			overlapping++
		}
	}
	if overlapping == 0 {
		t.Error("no transfer ran during the verification: the test shows nothing")
	}
}

func countEntries(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "select count(*) from ledger_entries").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestReportCountsTheCheckedRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	files, err := checks.FS.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{0, 1, 2, 6, 7} {
		last := map[string]int64{}
		got, err := verify.Run(t.Context(), pgtest.Pool(t, db.AllDSN), verify.Options{SliceAccounts: size,
			Progress: func(done, total int64, what string) {
				if done < last[what] || done > total {
					t.Errorf("%d of %d %s after %d", done, total, what, last[what])
				}
				last[what] = done
			}})
		if err != nil {
			t.Fatal(err)
		}
		if !got.OK() || got.Tenants != 2 || got.Accounts != 6 || got.Transfers != 8 || got.Holds != 4 ||
			got.Checks != len(files)+1 {
			t.Errorf("in slices of %d: %+v", size, got)
		}
		if last["accounts"] != 6 || last["transfers"] != 8 || last["holds"] != 4 ||
			last["checks"] != int64(len(files)) {
			t.Errorf("in slices of %d progress ended at %v", size, last)
		}
	}
}

func TestAllViolationsAreCountedAndTheFirstKept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks()
	bulk(t, db)
	conn := connect(t, db.SuperDSN)
	if _, err := conn.Exec(t.Context(), "update ledger_accounts set held = 1, balance = balance + 1 "+
		"where version = 1"); err != nil {
		t.Fatal(err)
	}
	got, err := verify.Run(t.Context(), pgtest.Pool(t, db.AllDSN), verify.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := got.Found["ledger_accounts_match_holds"]; n != 2*bulkTransfers || len(got.Violations) > 300 {
		t.Errorf("%d found, %d kept", n, len(got.Violations))
	}
}

func TestAuditorsMayVerify(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	verifytest.Fill(t, db)
	got, err := verify.Run(t.Context(), pgtest.Pool(t, asRole(db.SuperDSN, "ledgerd_audit")), verify.Options{})
	if err != nil || !got.OK() || got.Accounts != 6 {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestErrorsAreNotViolations(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := verify.Run(ctx, pgtest.Pool(t, db.AllDSN), verify.Options{}); err == nil {
		t.Error("a cancelled run returned no error")
	}
	pool, err := pg.Open(t.Context(), asRole(db.SuperDSN, "pg_monitor"), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err = verify.Run(t.Context(), pool, verify.Options{}); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("without rights: %v", err)
	}
}

// asRole is a DSN whose sessions have the rights of a role that cannot log in.
func asRole(dsn, role string) string {
	if strings.Contains(dsn, "://") {
		separator := "?"
		if strings.Contains(dsn, "?") {
			separator = "&"
		}
		return dsn + separator + "options=-crole%3D" + role
	}
	return dsn + " options=-crole=" + role
}
