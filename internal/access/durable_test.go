package access_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Changes of administration are as durable as batches, even if the database's default is less durable. If a standby
// does not confirm a change, its caller gets OUTCOME_UNKNOWN.
func TestChangesAreAsDurableAsBatches(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"pg_cancel_backend", "pg_terminate_backend"} {
		t.Run(end, func(t *testing.T) { t.Parallel(); endTheWait(t, end) })
	}
}

// endTheWait ends the wait of a change for the standby.
func endTheWait(t *testing.T, end string) {
	d := pgtest.NewDurable(t)
	super := pgtest.Pool(t, d.SuperDSN)
	exec := func(sql string) {
		t.Helper()
		if _, err := super.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	tenant, _, err := access.Administer(super).CreateTenant(t.Context(), "shop")
	if err != nil {
		t.Fatal(err)
	}
	exec("alter system set synchronous_commit = local")
	exec("alter system set synchronous_standby_names = 'missing'")
	exec("select pg_reload_conf()")
	pool := pgtest.Pool(t, d.SuperDSN)
	done := make(chan error, 1)
	go func() {
		_, err := access.Administer(pool).CreateKey(context.Background(), tenant, access.NewKey{Principal: "late",
			Rights: access.Rights{Role: access.Read}})
		done <- err
	}()
	waiting := 0
	for begin := time.Now(); waiting == 0 && time.Since(begin) < 20*time.Second; {
		if err := super.QueryRow(t.Context(), `select count(`+end+`(pid)) from pg_stat_activity
			where wait_event = 'SyncRep'`).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; waiting == 0 || !fault.Is(err, fault.OutcomeUnknown) {
		t.Errorf("%d commits waited for the standby; the change ended with %v", waiting, err)
	}
	exec("alter system reset synchronous_standby_names")
	exec("select pg_reload_conf()")
	keys := 0
	if err := super.QueryRow(t.Context(), "select count(*) from access_api_keys").Scan(&keys); err != nil || keys != 1 {
		t.Errorf("%d keys, %v", keys, err)
	}
}

// Standbys are promoted while only administration runs, so no server records the epochs. Events after a promotion do
// not reuse the numbers of events that the promotion may have lost.
func TestEventsAfterAPromotionHaveNewNumbers(t *testing.T) {
	t.Parallel()
	d, last := pgtest.NewDurable(t), int64(0)
	for promotions := range 3 {
		if promotions > 0 {
			d = d.Standby(t)
			d.Promote(t)
		}
		pool, event := pgtest.Pool(t, d.SuperDSN), int64(0)
		if _, _, err := access.Administer(pool).CreateTenant(t.Context(),
			fmt.Sprint("tenant-", promotions)); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(t.Context(), "select max(event_id) from audit_events").Scan(&event); err != nil {
			t.Fatal(err)
		}
		if promotions > 0 && event < last+1<<33 {
			t.Errorf("after %d promotions and event %d: event %d, which may have been lost", promotions, last, event)
		}
		last = event
	}
}

// Two standbys of one primary, promoted one after the other, are on the same timeline, in epochs with the same number.
// The second standby has no data of the first one.
func TestNumbersOfTwoBranchesDiffer(t *testing.T) {
	t.Parallel()
	for name, recorded := range map[string]bool{"an epoch is recorded": true, "none is recorded": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); twoBranches(t, recorded) })
	}
}

func twoBranches(t *testing.T, recorded bool) {
	d, numbers := pgtest.NewDurable(t), [2][2]int64{}
	if recorded {
		if _, _, err := access.Administer(pgtest.Pool(t, d.SuperDSN)).CreateTenant(t.Context(), "shop"); err != nil {
			t.Fatal(err)
		}
	}
	for i, branch := range []*pgtest.Durable{d.Standby(t), d.Standby(t)} {
		branch.System(t, "primary_conninfo", "")
		branch.Promote(t)
		pool := pgtest.Pool(t, branch.SuperDSN)
		if _, _, err := access.Administer(pool).CreateTenant(t.Context(), fmt.Sprint("branch-", i)); err != nil {
			t.Fatal(err)
		}
		if err := pool.QueryRow(t.Context(), "select commit_epoch(), max(event_id) from audit_events").
			Scan(&numbers[i][0], &numbers[i][1]); err != nil {
			t.Fatal(err)
		}
	}
	if numbers[0][0] != numbers[1][0] {
		t.Fatalf("the branches are in epochs %d and %d", numbers[0][0], numbers[1][0])
	}
	if apart := numbers[1][1] - numbers[0][1]; -1000 < apart && apart < 1000 {
		t.Errorf("both branches have event %d", numbers[0][1])
	}
}

// A pooler whose connection to the server is lost at COMMIT answers with a FATAL error. This error does
// not prove that the transaction was rolled back.
func TestAFatalAnswerToCommitIsAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	dsn := poolerThatLosesCommits(t, o.adminDSN)
	_, err := access.Administer(pgtest.Pool(t, dsn)).CreateKey(t.Context(), o.tenant, access.NewKey{Principal: "lost",
		Rights: access.Rights{Role: access.Read}})
	if f := fault.Of(err); !fault.Is(err, fault.OutcomeUnknown) || f.Step != fault.ReadAgain {
		t.Errorf("the change ended with %v", err)
	}
	keys := 0
	if err := o.admin.QueryRow(t.Context(), "select count(*) from access_api_keys where principal = 'lost'").
		Scan(&keys); err != nil || keys != 1 {
		t.Errorf("%d keys, %v", keys, err)
	}
}

// poolerThatLosesCommits passes everything on, but for the answers to COMMIT: instead it sends a FATAL error, as
// PgBouncer does.
func poolerThatLosesCommits(t *testing.T, dsn string) string {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial(pgconn.NetworkAddress(c.Host, c.Port))
			if err != nil {
				t.Error(err)
				return
			}
			loseCommits(client, server)
		}
	}()
	return "postgres://" + c.User + "@" + listener.Addr().String() + "/" + c.Database + "?sslmode=disable"
}

func loseCommits(client, server net.Conn) {
	var committing atomic.Bool
	go func() {
		defer server.Close()
		for buffer := make([]byte, 1<<16); ; {
			n, err := client.Read(buffer)
			if err != nil {
				return
			}
			if bytes.Contains(buffer[:n], []byte("Q\x00\x00\x00\x0bcommit\x00")) {
				committing.Store(true)
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	go func() {
		defer client.Close()
		for buffer := make([]byte, 1<<16); ; {
			n, err := server.Read(buffer)
			if committing.Load() {
				fatal := &pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01",
					Message: "server conn crashed?"}
				if b, err := fatal.Encode(nil); err == nil {
					_, _ = client.Write(b)
				}
				return
			}
			if err != nil {
				return
			}
			if _, err := client.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
}
