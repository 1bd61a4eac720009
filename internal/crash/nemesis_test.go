package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// nemesis is one kind of failure under load.
type nemesis struct {
	name   string
	place  func(*world) // creates the database
	strike func(*world)
	hot    bool // most transfers are between the same two accounts
	loyal  int  // number of callers that stay with the first server
	loses  bool // loses answers given while the database was at risk
}

var nemeses = []nemesis{
	{name: "servers killed on hot rows", place: shared, strike: killServers, hot: true},
	{name: "connections cut at COMMIT", place: shared, strike: cutAtCommit},
	{name: "black holes", place: shared, strike: silence},
	{name: "a clock ahead", place: withClock, strike: clockAhead},
	{name: "a synchronous standby promoted", place: withSynchronousStandby, strike: promoteSynchronous, loyal: 2},
	{name: "an asynchronous standby promoted", place: withStandby, strike: promoteAsynchronous, loyal: 2, loses: true},
	{name: "a dump restored into a new cluster", place: withNewCluster, strike: restore, loyal: 2, loses: true},
}

// Eras of a database that moves. Answers given while it was at risk may not hold afterwards.
const (
	safe int32 = iota
	atRisk
	afterwards
)

// TestAnswersMatchTheDatabaseDespiteFailures moves money through two servers, each behind a proxy, while a nemesis
// strikes. Callers repeat unanswered calls with the same key, and sometimes answered ones. In the end every
// answer must match the database, and the balances must follow from the answers. The database's own checks run
// at the end of each test.
func TestAnswersMatchTheDatabaseDespiteFailures(t *testing.T) {
	binary := build(t)
	for _, n := range nemeses {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, nemesis: n, binary: binary}
			n.place(w)
			for range 2 {
				w.lines = append(w.lines, newLine(t, w.db.AppDSN))
			}
			w.begin()
			stop := make(chan struct{})
			var load sync.WaitGroup
			done := make([][]*attempt, 6)
			for c := range done {
				load.Go(func() { done[c] = w.caller(c, stop) })
			}
			func() {
				defer load.Wait()
				defer close(stop)
				n.strike(w)
				w.until("a refusal", func() bool { return w.refused.Load() > 0 }) // of a slow machine's few calls
			}()
			all := slices.Concat(done...)
			w.settle(all)
			w.judge(all)
			w.inOrder()
			if lost := w.lost.Load(); n.loses && lost == 0 {
				t.Error("nothing was lost: the test exercised too little")
			}
			for _, s := range w.servers {
				s.kill()
			}
		})
	}
}

// until polls until the condition holds or patience runs out.
func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !done(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// progress waits for a number of further definite answers.
func (w *world) progress(n int32) {
	w.t.Helper()
	begun := w.decided.Load()
	w.until(fmt.Sprintf("%d more answers", n), func() bool { return w.decided.Load()-begun >= n })
}

// readiness is the answer of /readyz.
type readiness struct {
	Ready    bool
	Problems map[string]string
	Clock    string
}

func (w *world) readiness(n int) (r readiness) {
	res, err := http.Get(w.url(n) + "/readyz")
	if err != nil {
		return readiness{}
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&r); err != nil || r.Ready != (res.StatusCode == http.StatusOK) {
		w.t.Errorf("status %d, %+v, %v", res.StatusCode, r, err)
	}
	return r
}

// inOrder checks that recorded times follow the order of entries in each account.
func (w *world) inOrder() {
	pool := pgtest.Pool(w.t, w.db.SuperDSN)
	for account, n := range w.numbers(pool, `select account_id::text, count(*)
		from (select account_id, recorded_at < lag(recorded_at)
		over (partition by account_id order by version) as back from ledger_entries) e where back group by 1`) {
		w.t.Errorf("account %s: %d entries have an earlier time than their predecessor", account, n)
	}
}

func shared(w *world) { w.db = &pgtest.Durable{DB: pgtest.New(w.t)} }

// killServers kills one server after the other with SIGKILL while both work on the same two rows. The other
// server continues alone until the killed one is back.
func killServers(w *world) {
	for i := range 6 {
		w.progress(30)
		w.servers[i%2].kill()
		w.progress(30)
		w.servers[i%2].start(w.t)
	}
	w.progress(30)
}

// cutAtCommit cuts connections of both servers before a COMMIT, after it, and before its answer.
func cutAtCommit(w *world) {
	for i := range 12 {
		cut := w.lines[i%2].cutNext(cutAt(i/2%3), "caller-", func() {})
		w.until("cut", func() bool {
			select {
			case <-cut:
				return true
			default:
				return false
			}
		})
		w.progress(5)
	}
}

// silence turns all existing connections into black holes while a batch is in flight: of one server in both directions,
// of the other only for answers. New connections work. The servers are not ready while their batches wait, and then
// continue.
func silence(w *world) {
	w.progress(20)
	begun := time.Now()
	w.lines[0].silenceNext(pgtest.Requests, pgtest.Answers)
	w.lines[1].silenceNext(pgtest.Answers)
	waits := make([]bool, len(w.servers)) // remembered: one may be ready again before the other becomes unready
	w.until("unready", func() bool {
		for n := range w.servers {
			_, found := w.readiness(n).Problems["commits"] // a read that hangs is another problem
			waits[n] = waits[n] || found
		}
		return !slices.Contains(waits, false)
	})
	notice := time.Since(begun)
	w.progress(1)
	answer := time.Since(begun)
	for n := range w.servers {
		w.until("ready", func() bool { return w.readiness(n).Ready })
	}
	w.t.Logf("not ready after %v, the first answer after %v, ready after %v", notice, answer, time.Since(begun))
	if notice > 30*time.Second || time.Since(begun) > 90*time.Second {
		w.t.Error("too late")
	}
	w.progress(20)
}

var ahead = 10 * time.Minute

func withClock(w *world) {
	shared(w)
	w.clock = pgtest.ShiftClock(w.t, w.db.DB)
}

// clockAhead sets the database's clock ahead and back. A lock lasts for its lease, even while accounts with
// entries from the future are written.
func clockAhead(w *world) {
	w.progress(20)
	w.clock.Set(w.t, ahead)
	w.progress(60)
	w.clock.Set(w.t, 0)
	w.progress(10)
	for n := range w.servers {
		w.until("told of the clock", func() bool {
			r := w.readiness(n)
			return r.Ready && strings.Contains(r.Clock, "ahead of the database's clock")
		})
	}
	acquire := &lockv1.AcquireRequest{Name: "a", Lease: durationpb.New(ahead / 2), Wait: durationpb.New(0)}
	if _, err := w.locks(0).Acquire(context.Background(), acquire); err != nil {
		w.t.Fatal(err)
	}
	for i := range 40 {
		_, err := w.locks(i%2).Acquire(context.Background(), acquire)
		if client.ReasonOf(err) != client.ReasonLockHeld {
			w.t.Fatalf("acquired a held lock: %v", err)
		}
		w.progress(2)
	}
}

// cursor is the cursor after the first entries.
func (w *world) cursor() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		message, err := w.watch(ctx, "0")
		if err != nil {
			w.t.Fatalf("watching: %v", err)
		}
		if len(message.GetEntries()) > 0 { // empty while a transaction is open in any database of the cluster
			return message.GetCursor()
		}
	}
}

// watch reads the first message after a cursor.
func (w *world) watch(ctx context.Context, cursor string) (*ledgerv1.WatchEntriesResponse, error) {
	c := w.once()
	defer c.Close()
	stream, err := c.Ledger.WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{Cursor: cursor})
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if !stream.Receive() {
		return nil, stream.Err()
	}
	return stream.Msg(), nil
}
