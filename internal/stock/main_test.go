package stock_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

type command = commit.Command[*stock.Tx]

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

// shop is two engines on one database, like two servers.
type shop struct {
	testing.TB
	super   *pgxpool.Pool
	app     *pgxpool.Pool
	engines [2]*flow.Engine
	counts  [2]*prometheus.Registry
}

func newShop(t testing.TB) *shop {
	t.Helper()
	return shopOn(t, pgtest.New(t))
}

func shopOn(t testing.TB, db *pgtest.DB) *shop {
	t.Helper()
	return shopOver(t, db, db.AppDSN, db.AppDSN)
}

// shopOver returns a shop whose two engines connect by one DSN each.
func shopOver(t testing.TB, db *pgtest.DB, dsns ...string) *shop {
	t.Helper()
	s := &shop{TB: t, super: pgtest.Pool(t, db.SuperDSN), app: pgtest.Pool(t, db.AllDSN)}
	for i := range s.engines {
		pool, err := pg.Open(context.Background(), dsns[i], 6+commit.MaxDirect)
		if err != nil {
			t.Fatal(err)
		}
		s.counts[i] = prometheus.NewRegistry()
		s.engines[i] = flow.NewEngine(pool, fmt.Sprint(t.Name(), i), commit.NewMetrics(s.counts[i]), nil)
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := s.engines[i].Drain(ctx); err != nil {
				t.Error(err)
			}
			pool.Close()
		})
	}
	return s
}

// count is the sum of a counter over both engines.
func (s *shop) count(counter string) (n float64) {
	s.Helper()
	for _, reg := range s.counts {
		n += pgtest.Counter(s, reg, counter)
	}
	return n
}

func (s *shop) until(what string, so func() bool) {
	s.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-timeout:
			s.Fatal("never happened: ", what)
		}
	}
}

func submission(c command) flow.Submission {
	return flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Stock(c), Rows: 2, Bytes: 400}
}

// all runs commands in one batch of the first engine, if no other commands are running, and returns their outcomes.
func (s *shop) all(commands ...command) []string {
	s.Helper()
	works := make([]flow.Submission, len(commands))
	for i, c := range commands {
		works[i] = submission(c)
	}
	ends := make([]string, len(works))
	for i, r := range s.engines[0].DoAll(context.Background(), works) {
		ends[i] = ended(r)
	}
	return ends
}

// wants runs one command and compares its outcome.
func (s *shop) wants(c command, want string) {
	s.Helper()
	if got := s.all(c)[0]; got != want {
		s.Errorf("%T\n got %s\nwant %s", c, got, want)
	}
}

// ended describes an outcome: the answer, with "existed" for a repeat, or a reason with the values of its metadata.
func ended(r commit.Result) string {
	if f := fault.Of(r.Err); f != nil {
		end := f.Reason.Name
		for _, name := range []string{"available", "state", "remaining", "differs", "segments"} {
			if f.Metadata[name] != "" {
				end += " " + name + "=" + f.Metadata[name]
			}
		}
		return end
	}
	if r.Err != nil {
		return r.Err.Error()
	}
	end := ""
	switch a := r.Outcome.Answer.(type) {
	case stock.Reservation:
		end = fmt.Sprintf("%s: %d %s", a.ReservationNo, a.Quantity, a.State)
		if a.Unsold > 0 {
			end += fmt.Sprintf(", %d unsold", a.Unsold)
		}
	case stock.Change:
		end = strings.TrimSpace(fmt.Sprintf("%s: %s %d of %d %s", a.ChangeNo, a.Kind, a.Quantity, a.StockedAfter,
			a.Reason))
	case stock.Item:
		end = fmt.Sprintf("%s (%s): %s in %d", a.Item, a.Label, line(a.Counts), a.Segments)
	default:
		end = fmt.Sprint(a)
	}
	if r.Outcome.Existed {
		end += ", existed"
	}
	return end
}

// line is counts as text: available, reserved, sold, stocked.
func line(c stock.Counts) string {
	return fmt.Sprintf("%d/%d/%d/%d", c.Available, c.Reserved, c.Sold, c.Stocked)
}

// countsOf returns the counts of an item in the database.
func (s *shop) countsOf(item string) string {
	s.Helper()
	return s.text(`select concat_ws('/', sum(available), sum(reserved), sum(sold), sum(stocked)) from stock_items
		where tenant_id = 1 and item = $1`, item)
}

func (s *shop) wantCounts(item, want string) {
	s.Helper()
	if got := s.countsOf(item); got != want {
		s.Errorf("%s has %s, want %s", item, got, want)
	}
}

func (s *shop) text(query string, args ...any) (text string) {
	s.Helper()
	if err := s.super.QueryRow(context.Background(), query, args...).Scan(&text); err != nil {
		s.Fatal(err)
	}
	return text
}

func (s *shop) exec(sql string, args ...any) {
	s.Helper()
	if _, err := s.super.Exec(context.Background(), sql, args...); err != nil {
		s.Fatalf("%s: %v", sql, err)
	}
}

// together runs n concurrent commands, alternating between engines, and counts equal outcomes.
func (s *shop) together(n int, next func(i int) command) map[string]int {
	s.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	start := make(chan struct{})
	for i := range n {
		c := next(i)
		wg.Go(func() {
			<-start
			out, err := s.engines[i%2].Do(context.Background(), submission(c))
			mu.Lock()
			defer mu.Unlock()
			ends[ended(commit.Result{Outcome: out, Err: err})]++
		})
	}
	close(start)
	wg.Wait()
	s.noDefects()
	return ends
}

// noDefects fails the test if an engine has counted a deadlock, a panic, or a command that the database rejected.
func (s *shop) noDefects() {
	s.Helper()
	for _, counter := range []string{"ledgerd_commit_deadlocks_total", "ledgerd_commit_panics_total",
		"ledgerd_commit_culprits_total"} {
		if n := s.count(counter); n != 0 {
			s.Errorf("%s is %v", counter, n)
		}
	}
}

// put creates an item, or describes it anew.
func put(item string, segments int) *stock.PutItemCommand {
	return &stock.PutItemCommand{Caller: caller, Item: item, Segments: segments}
}

func restock(item, no string, n int64) *stock.ChangeCommand {
	return &stock.ChangeCommand{Caller: caller, Item: item, ChangeNo: no, Kind: stock.Restock, Quantity: n}
}

func adjust(item, no string, n int64, reason string) *stock.ChangeCommand {
	return &stock.ChangeCommand{Caller: caller, Item: item, ChangeNo: no, Kind: stock.Adjust, Quantity: n,
		Reason: reason}
}

func unsell(item, no, reservation string, n int64) *stock.ChangeCommand {
	return &stock.ChangeCommand{Caller: caller, Item: item, ChangeNo: no, Kind: stock.Unsell, Quantity: n,
		ReservationNo: reservation}
}

func reserve(item, no string, n int64) *stock.ReserveCommand {
	return &stock.ReserveCommand{Caller: caller, Item: item, ReservationNo: no, Quantity: n, Life: 15 * time.Minute}
}

func deduct(item, no string, n int64) *stock.ReserveCommand {
	return &stock.ReserveCommand{Caller: caller, Item: item, ReservationNo: no, Quantity: n}
}

func confirm(item, no string) *stock.ConfirmCommand {
	return &stock.ConfirmCommand{Caller: caller, Item: item, ReservationNo: no}
}

func cancel(item, no string) *stock.CancelCommand {
	return &stock.CancelCommand{Caller: caller, Item: item, ReservationNo: no}
}
