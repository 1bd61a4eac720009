package flow_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// transferLoad makes transfers through two servers, from several callers, while the database fails. A caller retries a
// transfer, under its biz_no, until it is done.
type transferLoad struct {
	*testing.T
	db      *pgtest.DB
	engines [2]*flow.Engine
	stop    chan struct{}
	callers sync.WaitGroup

	mu      sync.Mutex
	done    map[string]string // ids by biz_no
	errors  map[string]int    // by reason
	text    map[string]string // an example error by reason
	last    time.Time         // of the last transfer done
	longest time.Duration     // without a transfer done
}

// loadTimeout bounds every wait.
const loadTimeout = 90 * time.Second

func newTransferLoad(t *testing.T, db *pgtest.DB) *transferLoad {
	t.Helper()
	l := &transferLoad{T: t, db: db, stop: make(chan struct{}), done: map[string]string{}, errors: map[string]int{},
		text: map[string]string{}}
	for i := range l.engines {
		pool, err := pg.Open(t.Context(), db.AllDSN, 6)
		if err != nil {
			t.Fatal(err)
		}
		e := flow.NewEngine(pool, fmt.Sprint(t.Name(), i), nil, nil)
		l.engines[i] = e
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), loadTimeout)
			defer cancel()
			if err := e.Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
	}
	world(t, l.engines[0], 8)
	for c := range 8 {
		l.callers.Go(func() { l.call(c) })
	}
	t.Cleanup(l.end)
	l.more("before")
	return l
}

// end stops the callers.
func (l *transferLoad) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.callers.Wait()
}

func (l *transferLoad) call(caller int) {
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		default:
		}
		name := fmt.Sprintf("%d-%d", caller, i)
		begun := time.Now()
		for n := caller + i; !l.try(n, name); n++ {
			if time.Since(begun) > loadTimeout {
				l.Errorf("%s is never done: %v", name, l.text)
				return
			}
		}
	}
}

// try makes one attempt of a transfer at one of the servers.
func (l *transferLoad) try(n int, name string) (done bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	out, err := l.engines[n%2].Do(ctx, submission(flow.Submission{Command: flow.Ledger(transfer(name, "world",
		"user:"+name[:1], "1"))}))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		reason := "no reason"
		if f := fault.Of(err); f != nil {
			reason = f.Reason.Name
		}
		l.errors[reason]++
		l.text[reason] = err.Error()
		return false
	}
	now := time.Now()
	if !l.last.IsZero() {
		l.longest = max(l.longest, now.Sub(l.last))
	}
	l.last = now
	l.done[name] = fmt.Sprint(out.Answer.(*ledger.Transfer).ID)
	return true
}

// more waits until 50 more transfers are done.
func (l *transferLoad) more(what string) {
	l.Helper()
	before := l.count(false)
	l.until(what+": transfers are done again", func() bool { return l.count(false) >= before+50 })
}

// fails waits until calls have failed.
func (l *transferLoad) fails(what string) {
	l.Helper()
	before := l.count(true)
	l.until(what+": calls fail", func() bool { return l.count(true) >= before+8 })
}

func (l *transferLoad) count(errors bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !errors {
		return len(l.done)
	}
	for _, e := range l.errors {
		n += e
	}
	return n
}

func (l *transferLoad) until(what string, so func() bool) {
	l.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(loadTimeout)
	for !so() {
		select {
		case <-tick.C:
		case <-timeout:
			l.mu.Lock()
			defer l.mu.Unlock()
			l.Fatalf("timed out: %s; %v", what, l.text)
		}
	}
}

// ready waits until both servers are ready, or until both are not.
func (l *transferLoad) ready(want bool) {
	l.Helper()
	l.until(fmt.Sprint("ready is ", want), func() bool {
		return (l.engines[0].Ready() == nil) == want && (l.engines[1].Ready() == nil) == want
	})
}

// judge stops the callers and compares the ledger with their answers. Calls may fail only because the database cannot
// commit or because of their deadline.
func (l *transferLoad) judge() {
	l.Helper()
	l.end()
	l.Logf("%d done; errors %v; %v at most without one", len(l.done), l.errors, l.longest.Round(time.Millisecond))
	for reason, n := range l.errors {
		if !slices.Contains([]string{"DATABASE_UNAVAILABLE", "OUTCOME_UNKNOWN", "NOT_RUN"}, reason) {
			l.Errorf("%d times %s: %s", n, reason, l.text[reason])
		}
	}
	super := pgtest.Pool(l.T, l.db.SuperDSN)
	rows, err := super.Query(context.Background(), "select biz_no, transfer_id::text from ledger_transfers")
	if err != nil {
		l.Fatal(err)
	}
	there, name, id := 0, "", ""
	if _, err := pgx.ForEachRow(rows, []any{&name, &id}, func() error {
		if there++; l.done[name] != id {
			l.Errorf("%s was answered as %q and is there as %s", name, l.done[name], id)
		}
		return nil
	}); err != nil {
		l.Fatal(err)
	}
	if there != len(l.done) {
		l.Errorf("%d transfers are there, %d were answered", there, len(l.done))
	}
	if sum := text(l.T, super, "select sum(balance)::bigint::text from ledger_accounts "+
		"where code like 'user:%'"); sum != fmt.Sprint(100*there) {
		l.Errorf("%d transfers of 1.00 make %s cents", there, sum)
	}
}

// set changes settings of the login role in this database ("" resets one), and terminates its sessions, so that new
// ones have the settings.
func (l *transferLoad) set(super *pgxpool.Pool, settings map[string]string) {
	l.Helper()
	c, err := pgx.ParseConfig(l.db.AppDSN)
	if err != nil {
		l.Fatal(err)
	}
	ctx := context.Background()
	alter := "alter role " + pgx.Identifier{c.User}.Sanitize() + " in database " + pgx.Identifier{c.Database}.Sanitize()
	for name, value := range settings {
		sql := alter + " set " + name + " = '" + value + "'"
		if value == "" {
			sql = alter + " reset " + name
		}
		if _, err := super.Exec(ctx, sql); err != nil {
			l.Fatal(err)
		}
	}
	if _, err := super.Exec(ctx, "select pg_terminate_backend(pid) from pg_stat_activity "+
		"where datname = current_database() and usename = $1", c.User); err != nil {
		l.Fatal(err)
	}
}

// Batches override settings of the role that matter. With other harmful settings the server is not ready, and calls
// fail with DATABASE_UNAVAILABLE.
func TestSettingsOfTheRoleLoseNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings map[string]string
		fails    bool // calls fail while the settings hold
	}{
		"statement_timeout of 500 ms": {map[string]string{"statement_timeout": "500"}, false},
		"lock_timeout":                {map[string]string{"lock_timeout": "1"}, false},
		"idle sessions": {map[string]string{"idle_session_timeout": "20",
			"idle_in_transaction_session_timeout": "1"}, false},
		"read only": {map[string]string{"default_transaction_read_only": "on"}, true},
		"serializable, deferrable, off": {map[string]string{"default_transaction_isolation": "serializable",
			"default_transaction_deferrable": "on", "synchronous_commit": "off"}, false},
		"repeatable read": {map[string]string{"default_transaction_isolation": "repeatable read",
			"client_min_messages": "error"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newTransferLoad(t, pgtest.New(t))
			super := pgtest.Pool(t, l.db.SuperDSN)
			gone := map[string]string{}
			for s := range c.settings {
				gone[s] = ""
			}
			l.set(super, c.settings)
			if c.fails {
				l.ready(false)
				l.fails(name)
			} else {
				l.more(name)
			}
			l.set(super, gone)
			l.more("after " + name)
			l.ready(true)
			l.judge()
		})
	}
}
