package ids_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ids"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// bench is a database with helpers to make generators.
type bench struct {
	t    testing.TB
	db   *pgtest.DB
	pool *pgxpool.Pool // as the server's role
}

func newBench(t testing.TB) *bench {
	t.Helper()
	db := pgtest.New(t)
	return &bench{t, db, pgtest.Pool(t, db.AllDSN)}
}

func (b *bench) generator(o ids.Options) *ids.Generator {
	if o.Pool == nil {
		o.Pool = b.pool
	}
	if o.Holder == "" {
		o.Holder = b.t.Name()
	}
	return ids.New(o)
}

func (b *bench) next(g *ids.Generator, n int) []ids.ID {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	made, err := g.Next(ctx, n)
	if err != nil {
		b.t.Fatal(err)
	}
	return made
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	pool := pgtest.Pool(b.t, b.db.SuperDSN)
	defer pool.Close()
	if _, err := pool.Exec(context.Background(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) read(sql string, into ...any) {
	b.t.Helper()
	if err := b.pool.QueryRow(context.Background(), sql).Scan(into...); err != nil {
		b.t.Fatal(err)
	}
}

// only leaves n worker numbers free.
func (b *bench) only(n int) {
	b.exec(`update ids_workers set fence = 1, holder = 'other', leased_at = now(), lease_expires_at = now() + interval
		'1 year' where worker >= $1`, n)
}

// hands is a clock that the test advances.
type hands struct{ at atomic.Int64 }

func (h *hands) ticks() time.Duration     { return time.Duration(h.at.Load()) }
func (h *hands) turn(by time.Duration)    { h.at.Add(int64(by)) }
func (h *hands) options() (o ids.Options) { o.Ticks = h.ticks; return o }

// unique fails the test if an id occurs twice.
func unique(t testing.TB, lists ...[]ids.ID) {
	t.Helper()
	all := slices.Concat(lists...)
	slices.Sort(all)
	for i := 1; i < len(all); i++ {
		if all[i] == all[i-1] {
			t.Fatalf("%d was given out twice: %v, worker %d, sequence %d; of %d", all[i], all[i].Time(),
				all[i].Worker(), all[i].Sequence(), len(all))
		}
	}
}

func growing(t testing.TB, made []ids.ID) {
	t.Helper()
	for i := 1; i < len(made); i++ {
		if made[i] <= made[i-1] {
			t.Fatalf("%d comes after %d (number %d)", made[i], made[i-1], i)
		}
	}
}

func TestTwoProcessesAndManyCallersMakeEachIDOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const callers, calls = 16, 200
	lists := make([][]ids.ID, 2*callers)
	var wg sync.WaitGroup
	for p := range 2 {
		g := b.generator(ids.Options{})
		for c := range callers {
			wg.Go(func() {
				list := &lists[p*callers+c]
				for i := range calls {
					made, err := g.Next(t.Context(), []int{1, 3, 5000}[i%3])
					if err != nil {
						t.Error(err)
						return
					}
					*list = append(*list, made...)
				}
			})
		}
	}
	wg.Wait()
	workers := map[int]bool{}
	for _, list := range lists {
		growing(t, list)
		for _, id := range list {
			workers[id.Worker()] = true
		}
	}
	unique(t, lists...)
	if len(workers) != 2 {
		t.Errorf("%d workers", len(workers))
	}
}

func TestIDsCarryTheDatabasesTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	h.turn(1000 * time.Hour) // the origin of ticks does not matter
	g := b.generator(h.options())
	var before, after time.Time
	b.read("select clock_timestamp()", &before)
	id := b.next(g, 1)[0]
	b.read("select clock_timestamp()", &after)
	if id.Time().Before(before.Truncate(time.Millisecond)) || id.Time().After(after) {
		t.Errorf("%v is not between %v and %v", id.Time(), before, after)
	}
	h.turn(7 * time.Second)
	if later := b.next(g, 1)[0]; later.Time().Sub(id.Time()).Round(time.Millisecond) != 7*time.Second {
		t.Errorf("7 s later the id's time is %v after %v", later.Time(), id.Time())
	}
}

func TestIDsRunAheadOfTheClockALittleAndThenWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	g := b.generator(h.options())
	first := b.next(g, 1)[0]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	made := b.next(g, 49*4096) // certainly available within the 50 ms ahead
	growing(t, append([]ids.ID{first}, made...))
	if last := made[len(made)-1]; last.Time().Sub(first.Time()) > 50*time.Millisecond {
		t.Errorf("ids ran %v ahead", last.Time().Sub(first.Time()))
	}
	done := make(chan error, 1)
	var more []ids.ID
	go func() {
		var err error
		more, err = g.Next(ctx, 2*4096)
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("Next did not wait for the clock: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	h.turn(3 * time.Millisecond)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	growing(t, append(made, more...))
}

func TestClockGoingBackPausesIDsWithoutRepeats(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	g := b.generator(h.options())
	before := b.next(g, 10)
	h.turn(-30 * time.Millisecond) // within the borrowing limit
	short := b.next(g, 10)
	h.turn(-time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if made, err := g.Next(ctx, 1); !fault.Is(err, fault.NotRun) {
		t.Errorf("an hour back: %v, %v", made, err)
	}
	h.turn(time.Hour)
	growing(t, slices.Concat(before, short, b.next(g, 10)))
}

// The free number was used up to two seconds from now, as if the database's clock had been ahead.
func TestTakeoverStartsAtTheMark(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.only(1)
	var mark time.Time
	b.exec(`update ids_workers set fence = 4, holder = 'earlier', lease_expires_at = now(),
		high_water_at = date_trunc('milliseconds', clock_timestamp()) + '2 s' where worker = 0`)
	b.read("select high_water_at from ids_workers where worker = 0", &mark)
	g := b.generator(ids.Options{})
	_, err := g.Next(t.Context(), 1)
	if f := fault.Of(err); !fault.Is(err, ids.WorkersExhausted) || f.RetryAfter <= 0 || f.RetryAfter > 2*time.Second {
		t.Fatalf("before the mark: %v", err)
	}
	var made []ids.ID
	soon(t, "the mark is past", func() bool { made, err = g.Next(t.Context(), 1); return err == nil })
	if made[0].Time().Before(mark) || made[0].Worker() != 0 {
		t.Errorf("%v, and the mark is %v", made[0].Time(), mark)
	}
}

// soon polls until the condition holds.
func soon(t testing.TB, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-ctx.Done():
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

func TestLostLeaseIsNotUsedPastItsMark(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.only(1)
	var h hands
	first := b.generator(h.options())
	a := b.next(first, 10)
	b.exec("update ids_workers set lease_expires_at = now(), high_water_at = high_water_at - '29.9 s'::interval " +
		"where worker = 0")
	second := b.generator(ids.Options{})
	var c []ids.ID
	soon(t, "the number is free", func() bool {
		var err error
		c, err = second.Next(t.Context(), 10)
		return err == nil
	})
	h.turn(time.Minute) // past the mark known to the first process
	if made, err := first.Next(t.Context(), 1); !fault.Is(err, ids.WorkersExhausted) {
		t.Errorf("%v, %v", made, err)
	}
	if err := first.Renew(t.Context()); !fault.Is(err, ids.WorkersExhausted) {
		t.Error(err)
	}
	unique(t, a, c)
	b.exec("update ids_workers set lease_expires_at = now(), high_water_at = now() where worker = 7")
	d := b.next(first, 10)
	growing(t, append(a, d...))
	if d[0].Worker() != 7 {
		t.Errorf("worker %d", d[0].Worker())
	}
}

// A database restored from a backup repeats fences: the same number and fence may denote two leases.
func TestLeaseIdentityIncludesItsTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	g := b.generator(ids.Options{})
	a := b.next(g, 1)[0]
	b.exec("update ids_workers set holder = 'after the restore', leased_at = leased_at + '1 microsecond' "+
		"where worker = $1", a.Worker())
	if err := g.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := b.next(g, 1)[0]; c.Worker() == a.Worker() || c <= a {
		t.Errorf("worker %d is still in use", c.Worker())
	}
}

// The clock goes back right after the lease. Ids that follow only the clock would be below the mark.
func TestNewHolderBeginsAtTheMarkRegardlessOfItsClock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	o := h.options()
	o.Log = slog.New(whenLogged(func() { h.turn(-40 * time.Millisecond) }))
	b.exec("update ids_workers set high_water_at = now()")
	var mark time.Time
	b.read("select max(high_water_at) from ids_workers", &mark)
	g := b.generator(o)
	id := b.next(g, 1)[0]
	if id.Time().Before(mark) || h.at.Load() >= 0 {
		t.Errorf("%v is before %v", id.Time(), mark)
	}
}

// whenLogged is a log handler that calls a function for every record.
type whenLogged func()

func (w whenLogged) Enabled(context.Context, slog.Level) bool  { return true }
func (w whenLogged) Handle(context.Context, slog.Record) error { w(); return nil }
func (w whenLogged) WithAttrs([]slog.Attr) slog.Handler        { return w }
func (w whenLogged) WithGroup(string) slog.Handler             { return w }

// The first worker number is the greater one; its lease is lost in mid-millisecond with ids 40 ms ahead of the
// clock.
func TestIDsGrowAcrossAChangeOfWorkerNumber(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec("update ids_workers set fence = 1, holder = 'other', lease_expires_at = now() + '1 hour' " +
		"where worker <> 900")
	var h hands
	g := b.generator(h.options())
	made := b.next(g, 40*4096+7)
	b.exec("update ids_workers set lease_expires_at = case worker when 3 then now() else now() + '1 hour' end, " +
		"fence = 2, leased_at = now() where worker in (3, 900)")
	if err := g.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	more := b.next(g, 3)
	if made[0].Worker() != 900 || more[0].Worker() != 3 {
		t.Fatalf("workers %d and %d", made[0].Worker(), more[0].Worker())
	}
	growing(t, append(made, more...))
	// The renewal corrected the clock, which may have passed the ids in the meantime.
	if first, last := more[0].Time(), made[len(made)-1].Time(); first.Sub(last) > time.Millisecond &&
		first.After(time.Now()) {
		t.Errorf("%v comes after %v", first, last)
	}
}

func TestWithoutTheDatabaseIDsLastUntilTheMark(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	o := h.options()
	pool, err := pgxpool.New(t.Context(), b.db.AppDSN)
	if err != nil {
		t.Fatal(err)
	}
	o.Pool = pool
	g := b.generator(o)
	b.next(g, 1)
	var mark time.Time
	b.read("select high_water_at from ids_workers where fence > 0", &mark)
	pool.Close()
	h.turn(29 * time.Second)
	if err := g.Renew(t.Context()); !fault.Is(err, ids.WorkerLost) {
		t.Errorf("renew: %v", err)
	}
	last := b.next(g, 1)[0]
	for range 10_000 {
		h.turn(500 * time.Microsecond)
		made, err := g.Next(t.Context(), 1)
		if err != nil {
			if !fault.Is(err, ids.WorkerLost) || fault.Of(err).RetryAfter == 0 {
				t.Errorf("past the mark: %v", err)
			}
			break
		}
		last = made[0]
	}
	if !last.Time().Before(mark) || mark.Sub(last.Time()) > 5*time.Millisecond {
		t.Errorf("the last id is of %v, the mark is %v", last.Time(), mark)
	}
	if len(g.UUIDs(3)) != 3 {
		t.Error("no UUIDs")
	}
}

func TestReadOnlyDatabaseIsAClearError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config, err := pgxpool.ParseConfig(b.db.AppDSN)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	g := b.generator(ids.Options{Pool: pool})
	if made, err := g.Next(t.Context(), 1); !fault.Is(err, fault.DatabaseUnavailable) ||
		!strings.Contains(err.Error(), "read-only") {
		t.Errorf("%v, %v", made, err)
	}
	if err := g.Renew(t.Context()); err != nil {
		t.Errorf("renewal without a lease: %v", err)
	}
}

func TestRenewalMovesTheMarkOn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	g := b.generator(h.options())
	b.next(g, 1)
	var fence int64
	var early, late, until, now time.Time
	b.read("select fence, high_water_at from ids_workers where fence > 0", &fence, &early)
	h.turn(25 * time.Second)
	if err := g.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.read("select fence, high_water_at, lease_expires_at, clock_timestamp() from ids_workers where fence > 0", &fence,
		&late, &until, &now)
	if fence != 1 || late.Sub(early) < 24*time.Second || until.Sub(now) < 25*time.Second ||
		until.Sub(now) > 30*time.Second {
		t.Errorf("fence %d, mark %v after %v, leased until %v at %v", fence, late, early, until, now)
	}
	h.turn(28 * time.Second)
	if id := b.next(g, 1)[0]; !id.Time().Before(late) || id.Time().Before(early) {
		t.Errorf("%v, the mark is %v", id.Time(), late)
	}
}

func TestReleasedNumberIsReusedPastItsLastID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.only(1)
	var all []ids.ID
	for range 20 {
		g := b.generator(ids.Options{})
		var made []ids.ID
		soon(t, "the number is free", func() bool { // up to a millisecond later
			var err error
			made, err = g.Next(t.Context(), 100)
			return err == nil
		})
		all = append(all, made...)
		if err := g.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if made, err := g.Next(t.Context(), 1); !fault.Is(err, fault.ShuttingDown) {
			t.Errorf("after the end: %v, %v", made, err)
		}
	}
	growing(t, all)
	var leases int
	b.read("select fence from ids_workers where lease_expires_at <= now() and worker = 0", &leases)
	if leases != 20 {
		t.Errorf("%d leases", leases)
	}
}

func TestEveryNumberHasOneHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.only(40)
	var wg sync.WaitGroup
	var mu sync.Mutex
	workers, refused := map[int]int{}, 0
	for range 50 {
		g := b.generator(ids.Options{})
		wg.Go(func() {
			made, err := g.Next(t.Context(), 1)
			looked := func() bool {
				return fault.Is(err, ids.WorkersExhausted) &&
					fault.Of(err).RetryAfter <= 20*time.Second
			}
			// other processes have tried all free numbers
			for end := time.Now().Add(20 * time.Second); looked() && time.Now().Before(end); {
				<-time.After(time.Millisecond)
				made, err = g.Next(t.Context(), 1)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				workers[made[0].Worker()]++
			case fault.Is(err, ids.WorkersExhausted) && fault.Of(err).RetryAfter > 20*time.Second:
				refused++
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(workers) != 40 || refused != 10 {
		t.Errorf("%d workers, %d refused", len(workers), refused)
	}
}

func TestUUIDsGrowAndCarryTheirTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	g := b.generator(h.options())
	var last ids.UUID
	seen := map[ids.UUID]bool{}
	for i := range 200 {
		if i == 100 {
			h.turn(-time.Hour)
		}
		for _, id := range g.UUIDs(100) {
			if string(id[:]) <= string(last[:]) || seen[id] || id[6]>>4 != 7 || id[8]>>6 != 2 {
				t.Fatalf("%s after %s", id, last)
			}
			last, seen[id] = id, true
		}
		if i == 50 {
			h.turn(time.Second)
		}
	}
	p, err := ids.Parse(last.String())
	if err != nil || p.Kind != ids.UUIDv7 || p.Text != last.String() || time.Since(p.Time) > time.Minute ||
		time.Until(p.Time) > time.Minute {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestOffsetsAreMeasured(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var h hands
	o := h.options()
	registry := prometheus.NewRegistry()
	o.Metrics = ids.NewMetrics(registry)
	g := b.generator(o)
	b.next(g, 5)
	h.turn(10 * time.Second) // the database's clock advances more slowly
	if err := g.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ahead := gauge(t, registry, `clock_offset_seconds{ids}`); ahead < 5 || ahead > 10 {
		t.Errorf("10 s ahead: %v", ahead)
	}
	var id ids.ID
	for range 100 { // 10 s each, of which a thousandth is slewed
		h.turn(10 * time.Second)
		id = b.next(g, 1)[0]
		h.turn(-10 * time.Second)
		if err := g.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := gauge(t, registry, "made_total{snowflake}"); got != 105 {
		t.Errorf("made %v", got)
	}
	if got := gauge(t, registry, "worker"); int(got) != id.Worker() {
		t.Errorf("worker %v of %d", got, id.Worker())
	}
	if got := gauge(t, registry, "leases_total{renewed}"); got != 101 {
		t.Errorf("renewed %v", got)
	}
}

// gauge returns a metric by its name after ledgerd_ids_, with its label's value.
func gauge(t testing.TB, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			full := f.GetName()
			for _, l := range m.GetLabel() {
				full += fmt.Sprintf("{%s}", l.GetValue())
			}
			if full == "ledgerd_ids_"+name {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
