package commit

import (
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The toy domain has counters that never fall below zero, unique names, and a log with one row for every effect.
const toySchema = `
create table toy_counters (
	tenant_id integer not null, id text collate "C" not null, n bigint not null, last_at timestamptz,
	constraint toy_counters_pkey primary key (tenant_id, id)
) with (fillfactor = 50);
create table toy_names (
	tenant_id integer not null, name text collate "C" not null, counter text not null, n bigint not null,
	constraint toy_names_pkey primary key (tenant_id, name)
);
create table toy_log (
	row_id bigint not null, tenant_id integer not null, counter text not null, label text not null,
	at timestamptz not null, constraint toy_log_pkey primary key (row_id),
	constraint toy_log_label_check check (label <> 'poison')
);
grant select, insert, update on toy_counters, toy_names, toy_log to ledgerd_app;`

var (
	toyEmpty = fault.Register(fault.Reason{Name: "TOY_EMPTY", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey})
	toyStale = fault.Register(fault.Reason{Name: "TOY_STALE", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain})
	toyWrong = fault.Register(fault.Reason{Name: "TOY_WRONG", Class: fault.BadRequest, Code: fault.InvalidArgument,
		Step: fault.Fix})
)

type toyKey struct {
	tenant int32
	id     string
}

type toyCounter struct {
	toyKey
	n      int64
	lastAt time.Time
	found  bool
	dirty  bool

	xmin   uint32
	writer *RowWriter
}

func (c *toyCounter) written() string {
	if c.writer != nil {
		return fmt.Sprint(c.writer.XID())
	}
	return fmt.Sprint(c.xmin)
}

type toyName struct {
	toyKey
	counter string
	n       int64
	taken   bool
	fresh   bool
}

type toyLogged struct {
	id      int64
	tenant  int32
	counter string
	label   string
}

type toyTx struct {
	at       Times
	newID    func() int64
	counters map[toyKey]*toyCounter
	names    map[toyKey]*toyName
	log      []toyLogged
	undo     []func()
	latest   func() time.Time   // instead of the newest lastAt
	onFlush  func(p *Pipe)      // queues before the toy's own statements
	discover map[toyKey]*string // names whose counter must be locked

	locksOnly bool      // Discover may set it, too
	outcomes  *outcomes // nil: not recorded
}

func newToyTx() *toyTx {
	return &toyTx{counters: map[toyKey]*toyCounter{}, names: map[toyKey]*toyName{}, discover: map[toyKey]*string{}}
}

// newLockingToyTx returns a Tx that never overlaps.
func newLockingToyTx() *toyTx {
	b := newToyTx()
	b.locksOnly = true
	return b
}

func (tx *toyTx) Participants() []Participant { return []Participant{tx} }

func (tx *toyTx) counter(tenant int32, id string) *toyCounter {
	k := toyKey{tenant, id}
	if tx.counters[k] == nil {
		tx.counters[k] = &toyCounter{toyKey: k}
	}
	return tx.counters[k]
}

func (tx *toyTx) name(tenant int32, name string) *toyName {
	k := toyKey{tenant, name}
	if tx.names[k] == nil {
		tx.names[k] = &toyName{toyKey: k}
	}
	return tx.names[k]
}

func sortedKeys[V any](m map[toyKey]V) (keys []toyKey, tenants []int32, ids []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b toyKey) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant),
			cmp.Compare(a.id, b.id))
	})
	for _, k := range keys {
		tenants = append(tenants, k.tenant)
		ids = append(ids, k.id)
	}
	return keys, tenants, ids
}

func scanEach(rows pgx.Rows, err error, scan func() error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (tx *toyTx) Discover(p *Pipe) {
	keys, tenants, ids := sortedKeys(tx.discover)
	if len(keys) == 0 {
		return
	}
	p.Queue(func(d DB) error {
		rows, err := d.Query(p.Context(), `select u.tenant_id, u.name, y.counter
			from (select unnest($1::integer[]) as tenant_id, unnest($2::text[]) as name) u,
			lateral (select n.counter from toy_names n where n.tenant_id = u.tenant_id
			and n.name = u.name offset 0) y`, tenants, ids)
		return scanEach(rows, err, func() error {
			var k toyKey
			var counter string
			if err := rows.Scan(&k.tenant, &k.id, &counter); err != nil {
				return err
			}
			*tx.discover[k], tx.locksOnly = counter, true
			tx.counter(k.tenant, counter)
			return nil
		})
	})
}

var toySeed = maphash.MakeSeed()

func (tx *toyTx) Latch(l *LatchKeys) {
	for k := range tx.counters {
		l.Share(maphash.Comparable(toySeed, k))
	}
	for k := range tx.names {
		l.Own(maphash.Comparable(toySeed, toyKey{-k.tenant, k.id}))
	}
}

func (tx *toyTx) CanOverlap() bool { return !tx.locksOnly }

func (tx *toyTx) TakeOver(from Participant, writer *RowWriter) {
	other := from.(*toyTx)
	for k, c := range tx.counters {
		if o := other.counters[k]; o != nil && o.found {
			c.n, c.lastAt, c.xmin, c.writer, c.found = o.n, o.lastAt, o.xmin, o.writer, true
			if o.dirty {
				c.writer = writer
			}
		}
	}
}

func (tx *toyTx) Lock(p *Pipe) { tx.load(p, "for no key update") }
func (tx *toyTx) Read(p *Pipe) { tx.load(p, "") }

func (tx *toyTx) load(p *Pipe, lock string) {
	missing := map[toyKey]*toyCounter{}
	for k, c := range tx.counters {
		if !c.found {
			missing[k] = c
		}
	}
	keys, tenants, ids := sortedKeys(missing)
	if len(keys) == 0 {
		return
	}
	p.Queue(func(d DB) error {
		rows, err := d.Query(p.Context(), `select u.i::integer, c.n, c.last_at, c.xmin from
			(select generate_subscripts($1::integer[], 1) as i, unnest($1::integer[]) as tenant_id,
			unnest($2::text[]) as id) u,
			lateral (select l.n, l.last_at, l.xmin from toy_counters l where l.tenant_id = u.tenant_id
			and l.id = u.id offset 0 `+lock+`) c`, tenants, ids)
		return scanEach(rows, err, func() error {
			var i int32
			var n int64
			var xmin uint32
			var at *time.Time
			if err := rows.Scan(&i, &n, &at, &xmin); err != nil {
				return err
			}
			c := tx.counters[keys[i-1]]
			c.n, c.xmin, c.found = n, xmin, true
			if at != nil {
				c.lastAt = *at
			}
			return nil
		})
	})
}

func (tx *toyTx) Lookup(p *Pipe) {
	keys, tenants, ids := sortedKeys(tx.names)
	if len(keys) == 0 {
		return
	}
	p.Queue(func(d DB) error {
		rows, err := d.Query(p.Context(), `select u.i::integer, y.counter, y.n from
			(select generate_subscripts($1::integer[], 1) as i, unnest($1::integer[]) as tenant_id,
			unnest($2::text[]) as name) u,
			lateral (select n.counter, n.n from toy_names n where n.tenant_id = u.tenant_id
			and n.name = u.name offset 0) y`, tenants, ids)
		return scanEach(rows, err, func() error {
			var i int32
			var counter string
			var n int64
			if err := rows.Scan(&i, &counter, &n); err != nil {
				return err
			}
			name := tx.names[keys[i-1]]
			name.taken, name.counter, name.n = true, counter, n
			return nil
		})
	})
}

func (tx *toyTx) Latest() (latest time.Time) {
	if tx.latest != nil {
		return tx.latest()
	}
	for _, c := range tx.counters {
		if c.lastAt.After(latest) {
			latest = c.lastAt
		}
	}
	return latest
}

func (tx *toyTx) Start(at Times, newID func() int64) { tx.at, tx.newID = at, newID }
func (tx *toyTx) Resolve(*Pipe)                      {}
func (tx *toyTx) Mark()                              { tx.undo = tx.undo[:0] }

func (tx *toyTx) Undo() {
	for _, f := range slices.Backward(tx.undo) {
		f()
	}
	tx.undo = tx.undo[:0]
}

// add changes a counter and logs the effect.
func (tx *toyTx) add(c *toyCounter, delta int64, label string) error {
	if !c.found {
		return toyWrong.New("there is no counter %s", c.id)
	}
	if c.n+delta < 0 {
		return toyEmpty.New("counter %s has %d", c.id, c.n).With("n", c.n)
	}
	old := *c
	logged := len(tx.log)
	tx.undo = append(tx.undo, func() { *c = old; tx.log = tx.log[:logged] })
	c.n, c.lastAt, c.dirty = c.n+delta, tx.at.Recorded, true
	tx.log = append(tx.log, toyLogged{tx.newID(), c.tenant, c.id, label})
	return nil
}

func (tx *toyTx) take(n *toyName, counter string, result int64) {
	old := *n
	tx.undo = append(tx.undo, func() { *n = old })
	n.taken, n.fresh, n.counter, n.n = true, true, counter, result
}

// Ended records the outcome, if the test asks for it.
func (tx *toyTx) Ended(committed bool) {
	if tx.outcomes != nil {
		tx.outcomes.end(committed)
	}
}

func (tx *toyTx) Flush(p *Pipe) {
	if tx.outcomes != nil {
		tx.outcomes.flushes.Add(1)
	}
	if tx.onFlush != nil {
		tx.onFlush(p)
	}
	tx.flushNames(p)
	if len(tx.log) == 0 {
		return
	}
	var rowIDs []int64
	var tenants []int32
	var counters, labels []string
	for _, l := range tx.log {
		rowIDs = append(rowIDs, l.id)
		tenants = append(tenants, l.tenant)
		counters = append(counters, l.counter)
		labels = append(labels, l.label)
	}
	p.Queue(func(d DB) error {
		_, err := d.Exec(p.Context(), `insert into toy_log (row_id, tenant_id, counter, label, at)
			select unnest($1::bigint[]), unnest($2::integer[]), unnest($3::text[]), unnest($4::text[]), $5`,
			rowIDs, tenants, counters, labels, tx.at.Recorded)
		return err
	})
}

func (tx *toyTx) Write(p *Pipe) {
	dirty := map[toyKey]*toyCounter{}
	for k, c := range tx.counters {
		if c.dirty {
			dirty[k] = c
		}
	}
	keys, tenants, ids := sortedKeys(dirty)
	if len(keys) == 0 {
		return
	}
	var ns []int64
	var writers []string
	for _, k := range keys {
		ns = append(ns, dirty[k].n)
		writers = append(writers, dirty[k].written())
	}
	p.Queue(func(d DB) error {
		_, err := d.Exec(p.Context(), `with w as (update toy_counters c set n = u.n, last_at = $4 from
			(select unnest($1::integer[]) as tenant_id, unnest($2::text[]) as id, unnest($3::bigint[]) as n,
			unnest($5::text[]) as writer) u
			where c.tenant_id = u.tenant_id and c.id = u.id and c.xmin::text = u.writer returning 1)
			select commit_expect(count(*), cardinality($2::text[])) from w`, tenants, ids, ns, tx.at.Recorded, writers)
		return err
	})
}

func (tx *toyTx) Confirm(p *Pipe) {
	seen, unchanged := map[toyKey]*toyCounter{}, false
	for k, c := range tx.counters {
		if c.found {
			seen[k] = c
			unchanged = unchanged || !c.dirty
		}
	}
	keys, tenants, ids := sortedKeys(seen)
	if !unchanged {
		return
	}
	var writers []string
	for _, k := range keys {
		writers = append(writers, seen[k].written())
	}
	p.Queue(func(d DB) error {
		_, err := d.Exec(p.Context(), `select commit_expect(count(*), cardinality($2::text[])) from
			(select unnest($1::integer[]) as tenant_id, unnest($2::text[]) as id, unnest($3::text[]) as writer) u,
			lateral (select 1 from toy_counters l where l.tenant_id = u.tenant_id and l.id = u.id
			and l.xmin::text = u.writer
				offset 0 for no key update) c`, tenants, ids, writers)
		return err
	})
}

func (tx *toyTx) flushNames(p *Pipe) {
	var tenants []int32
	var names, counters []string
	var ns []int64
	for _, n := range tx.names {
		if n.fresh {
			tenants = append(tenants, n.tenant)
			names = append(names, n.id)
			counters = append(counters, n.counter)
			ns = append(ns, n.n)
		}
	}
	if len(names) == 0 {
		return
	}
	p.Queue(func(d DB) error {
		_, err := d.Exec(p.Context(), `insert into toy_names (tenant_id, name, counter, n)
			select u.t, u.name, u.counter, u.n from (select unnest($1::integer[]) as t, unnest($2::text[]) as name,
				unnest($3::text[]) as counter, unnest($4::bigint[]) as n) u
			order by u.t, u.name collate "C"`, tenants, names, counters, ns)
		return err
	})
}

// toyAdd adds to a counter, optionally under a name. Its answer is the counter's value.
type toyAdd struct {
	tenant        int32
	counter, name string
	delta         int64
	label         string
	onNeed        func(tx *toyTx)
	onApply       func(tx *toyTx) error

	c *toyCounter
	n *toyName
}

func (a *toyAdd) Need(tx *toyTx) {
	if a.onNeed != nil {
		a.onNeed(tx)
	}
	if a.counter != "" {
		a.c = tx.counter(a.tenant, a.counter)
	}
	if a.name != "" {
		a.n = tx.name(a.tenant, a.name)
	}
}

func (a *toyAdd) Apply(tx *toyTx) (any, error) {
	if a.n != nil && a.n.taken {
		return Repeat{First: a.n.n}, nil
	}
	var result int64
	if a.c != nil {
		if err := tx.add(a.c, a.delta, cmp.Or(a.label, "plain")); err != nil {
			return nil, err
		}
		result = a.c.n
	}
	if a.n != nil {
		tx.take(a.n, a.counter, result)
	}
	if a.onApply != nil {
		if err := a.onApply(tx); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// toyGuarded has a Guard that increments another counter.
type toyGuarded struct {
	toyAdd
	tries string
	g     *toyCounter
}

func (a *toyGuarded) Need(tx *toyTx) { a.toyAdd.Need(tx); a.g = tx.counter(a.tenant, a.tries) }

func (a *toyGuarded) Guard(tx *toyTx) error { return tx.add(a.g, 1, "try") }

// toyCounted has a Count that increments another counter.
type toyCounted struct {
	toyAdd
	tries string
	c     *toyCounter
}

func (a *toyCounted) Need(tx *toyTx) { a.toyAdd.Need(tx); a.c = tx.counter(a.tenant, a.tries) }

func (a *toyCounted) Count(tx *toyTx) bool { return tx.add(a.c, 1, "count") == nil }

// toyBoth has a Guard and a Count.
type toyBoth struct {
	toyGuarded
	all toyCounted
}

func (a *toyBoth) Need(tx *toyTx) { a.toyGuarded.Need(tx); a.all.Need(tx) }

func (a *toyBoth) Count(tx *toyTx) bool { return a.all.Count(tx) }

func toyEncode(answer any) ([]byte, error) { return strconv.AppendInt(nil, answer.(int64), 10), nil }

// world is a database with the toy's tables, and starts engines on it.
type world struct {
	t     *testing.T
	dsn   string
	super *pgxpool.Pool
	books func() *toyTx
}

func worldOn(t *testing.T, db *pgtest.DB, counters int) *world {
	t.Helper()
	w := &world{t: t, dsn: db.AppDSN, super: pgtest.Pool(t, db.SuperDSN), books: newToyTx}
	w.exec(toySchema)
	w.exec(`insert into toy_counters (tenant_id, id, n) select 1, 'c' || i, 1000000 from generate_series(0, $1 - 1) i`,
		counters)
	return w
}

func newWorld(t *testing.T, counters int) *world {
	t.Helper()
	return worldOn(t, pgtest.New(t), counters)
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.super.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) int(sql string, args ...any) (n int64) {
	w.t.Helper()
	if err := w.super.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) value(counter string) int64 {
	w.t.Helper()
	return w.int("select n from toy_counters where id = $1", counter)
}

type toyEngine struct {
	*Engine[*toyTx]
	reg *prometheus.Registry
}

// engine starts an engine like that of a separate process.
func (w *world) engine(change ...func(*Config[*toyTx])) *toyEngine {
	w.t.Helper()
	reg := prometheus.NewRegistry()
	c := Config[*toyTx]{NewTx: func(bool) *toyTx { return w.books() }, Instance: w.t.Name(),
		NameConstraints: []string{"toy_names_pkey"},
		Metrics:         NewMetrics(reg),
		Log:             slog.New(slog.NewTextHandler(w.t.Output(), nil))}
	for _, f := range change {
		f(&c)
	}
	if c.Pool == nil {
		pool, err := pg.Open(context.Background(), w.dsn, 5)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(pool.Close)
		c.Pool = pool
	}
	e := &toyEngine{New(c), reg}
	w.t.Cleanup(func() { e.mustBeEmpty(w.t) })
	return e
}

// mustBeEmpty drains an engine and requires that no job is left in it.
func (e *toyEngine) mustBeEmpty(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := e.Drain(ctx); err != nil {
		t.Error(err)
	}
	e.inflight.mu.Lock()
	defer e.inflight.mu.Unlock()
	e.queue.mu.Lock()
	defer e.queue.mu.Unlock()
	if n := len(e.inflight.jobs); n > 0 {
		t.Errorf("%d keys are still in flight", n)
	}
	if q := e.queue; q.jobs != 0 || q.rows != 0 || q.bytes != 0 {
		t.Errorf("the queue still counts %d jobs, %d rows, %d bytes", q.jobs, q.rows, q.bytes)
	}
}

// metric returns the sum of a counter; see pgtest.Counter.
func (e *toyEngine) metric(t *testing.T, name string) float64 {
	t.Helper()
	return pgtest.Counter(t, e.reg, "ledgerd_commit_"+name)
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func add(counter string, delta int64) *toyAdd {
	return &toyAdd{tenant: 1, counter: counter, delta: delta}
}

func (a *toyAdd) named(name string) *toyAdd     { a.name = name; return a }
func (a *toyAdd) labelled(label string) *toyAdd { a.label = label; return a }

func submission(c Command[*toyTx]) Submission[*toyTx] {
	return Submission[*toyTx]{Tenant: 1, RequestID: "r", Command: c, Encode: toyEncode, Rows: 3, Bytes: 100}
}

func keyed(key string, c Command[*toyTx]) Submission[*toyTx] {
	w := submission(c)
	w.Key = &Key{Principal: "p", Operation: "toy.add", Key: key, Fingerprint: make([]byte, FingerprintSize),
		Life: time.Hour}
	return w
}

// each runs n calls concurrently and counts the reasons of their errors.
func each(n int, call func(i int) error) map[string]int {
	var mu sync.Mutex
	var wg sync.WaitGroup
	reasons := map[string]int{}
	for i := range n {
		wg.Go(func() {
			r := reason(call(i))
			mu.Lock()
			defer mu.Unlock()
			reasons[r]++
		})
	}
	wg.Wait()
	return reasons
}

func reason(err error) string {
	if f := fault.Of(err); f != nil {
		return f.Reason.Name
	}
	if err != nil {
		return err.Error()
	}
	return "ok"
}

func wantReasons(t *testing.T, got map[string]int, want string) {
	t.Helper()
	if fmt.Sprint(got) != want {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

// eventually polls until ok, or fails the test.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-timeout:
			t.Fatalf("timed out: %s", what)
		case <-tick.C:
		}
	}
}

// gate returns pass, for onFlush of a Tx, which blocks until open is called.
func (w *world) gate() (pass func(p *Pipe), open func()) { return w.gateOf(7) }

// gateOf returns a gate with another number than that of gate.
func (w *world) gateOf(number int) (pass func(p *Pipe), open func()) {
	w.t.Helper()
	conn, err := w.super.Acquire(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := conn.Exec(context.Background(), "select pg_advisory_lock($1)", number); err != nil {
		w.t.Fatal(err)
	}
	open = sync.OnceFunc(func() {
		_, _ = conn.Exec(context.Background(), "select pg_advisory_unlock($1)", number)
		conn.Release()
	})
	w.t.Cleanup(open)
	return func(p *Pipe) {
		p.Queue(func(d DB) error {
			_, err := d.Exec(p.Context(), "select pg_advisory_xact_lock_shared($1)", number)
			return err
		})
	}, open
}

// waiting polls until n backends of this database wait for a lock.
func (w *world) waiting(n int64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprint(n, " backends wait for a lock"), func() bool {
		return w.int(`select count(*) from pg_stat_activity where datname = current_database()
			and wait_event_type = 'Lock'`) == n
	})
}

// holder opens a transaction outside of all engines, and runs sql in it.
func (w *world) holder(sql string, args ...any) (end func()) {
	w.t.Helper()
	tx, err := w.super.Begin(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
	end = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	w.t.Cleanup(end)
	return end
}

// answer is the result of a call that runs concurrently with the test.
type answer struct {
	out Outcome
	err error
}

func (e *toyEngine) start(ctx context.Context, w Submission[*toyTx]) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		out, err := e.Do(ctx, w)
		done <- answer{out, err}
	}()
	return done
}

func unanswered(t *testing.T, done <-chan answer) {
	t.Helper()
	select {
	case a := <-done:
		t.Fatalf("answered too early: %+v", a)
	default:
	}
}
