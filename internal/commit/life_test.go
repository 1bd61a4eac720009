package commit

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestCancelledCallDoesNotCancelTheBatch(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	pass, open := w.gate()
	e := w.engine(patient, func(c *Config[*toyTx]) { c.Writers = 1 })
	gated := add("c0", 1).labelled("running")
	gated.onApply = func(tx *toyTx) error { tx.onFlush = pass; return nil }
	ctx, cancel := context.WithCancel(context.Background())
	running := e.start(ctx, submission(gated))
	w.waiting(1)
	behind := e.start(ctx, keyed("k", add("c0", 1).labelled("behind")))
	unaffected := e.start(within(t, 20*time.Second), submission(add("c1", 1)))
	eventually(t, "both wait", func() bool { return e.queue.depth() == 9 })
	cancel()
	if a := <-running; !fault.Is(a.err, fault.OutcomeUnknown) {
		t.Errorf("running: %+v", a)
	}
	if a := <-behind; !fault.Is(a.err, fault.NotRun) {
		t.Errorf("behind: %+v", a)
	}
	if _, err := e.Do(ctx, submission(add("c0", 1).labelled("behind"))); !fault.Is(err, fault.NotRun) {
		t.Errorf("call with a cancelled context: %v", err)
	}
	open()
	if a := <-unaffected; a.err != nil {
		t.Error(a.err)
	}
	e.mustBeEmpty(t)
	if n := w.int("select count(*) from toy_log where label = 'running'"); n != 1 {
		t.Error("the running command was not committed")
	}
	if n := w.int("select count(*) from toy_log where label = 'behind'"); n != 0 {
		t.Error("a command ran after its caller got NOT_RUN")
	}
}

func TestDrainAnswersAdmittedCallsAndRefusesOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	e := w.engine()
	end := w.holder("select from toy_counters where id = 'c1' for update")
	// One call is blocked until its deadline, with two calls of the same key that follow it.
	held := e.start(within(t, 8*time.Second), keyed("k", add("c1", 1)))
	eventually(t, "the call is blocked", func() bool { return e.blocked.retrying.Load() })
	var behind [2]<-chan answer
	for i := range behind {
		behind[i] = e.start(within(t, time.Minute), keyed("k", add("c1", 1)))
	}
	eventually(t, "two follow", func() bool { return followersOf(e, "k") == 2 })
	var taken []<-chan answer
	for range 100 {
		taken = append(taken, e.start(within(t, time.Minute), submission(add("c0", 1))))
	}
	eventually(t, "a caller is answered", func() bool { return w.value("c0") > 1_000_000 })
	drained := make(chan error, 1)
	go func() { drained <- e.Drain(within(t, 20*time.Second)) }()
	eventually(t, "the engine is closed", func() bool {
		_, err := e.Do(within(t, time.Second), submission(add("c0", 1_000)))
		return fault.Is(err, fault.ShuttingDown)
	})
	outcomes := map[string]int{}
	for _, a := range taken {
		outcomes[reason((<-a).err)]++
	}
	if outcomes["ok"]+outcomes["SHUTTING_DOWN"] != 100 || outcomes["ok"] == 0 {
		t.Errorf("outcomes %v", outcomes)
	}
	// The deadline passes while an attempt waits for the row. On a busy machine it may also pass between two attempts,
	// or before the server has answered one.
	if a := <-held; !fault.Is(a.err, fault.RowsLocked) && !fault.Is(a.err, fault.NotRun) &&
		!fault.Is(a.err, fault.OutcomeUnknown) {
		t.Errorf("held: %v", a.err)
	}
	select {
	case err := <-drained:
		t.Errorf("drained before all calls were answered: %v", err)
	default:
	}
	end()
	for _, b := range behind {
		if a := <-b; a.err != nil {
			t.Errorf("behind: %+v", a)
		}
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if got := w.value("c0") % 1000; int(got) != outcomes["ok"] || w.value("c1") != 1_000_001 {
		t.Errorf("value %d, %v", got, outcomes)
	}
}

func TestCallsWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	p := pgtest.NewProxy(t, w.dsn)
	e := w.engine(w.through(p))
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil || e.Ready() != nil {
		t.Fatal(err, e.Ready())
	}
	p.SetDown(true)
	start := time.Now()
	got := each(40, func(i int) error {
		_, err := e.Do(within(t, 600*time.Millisecond), keyed(fmt.Sprint(i%30), add("c1", 1)))
		return err
	})
	wantReasons(t, got, "map[DATABASE_UNAVAILABLE:40]")
	if took := time.Since(start); took < 600*time.Millisecond {
		t.Errorf("the calls waited only %v", took)
	}
	if e.Ready() == nil {
		t.Error("ready without a database")
	}
	patient := make(chan map[string]int, 1)
	go func() {
		patient <- each(40, func(int) error {
			_, err := e.Do(within(t, 30*time.Second), submission(add("c2", 1)))
			return err
		})
	}()
	eventually(t, "all wait", func() bool { return e.queue.depth() == 120 })
	p.SetDown(false)
	wantReasons(t, <-patient, "map[ok:40]")
	if w.value("c1") != 1_000_000 || w.value("c2") != 1_000_040 {
		t.Errorf("values %d, %d", w.value("c1"), w.value("c2"))
	}
	eventually(t, "the engine is ready", func() bool { return e.Ready() == nil })
}

// A refused connection, with an error that is not retried, fails the waiting jobs. A call that was cancelled meanwhile
// has released its job already.
func TestCallCancelledDuringAConnectIsReleasedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	config, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Database = "no_such_database"
	asked, refuse := make(chan struct{}), make(chan struct{})
	ask := sync.OnceFunc(func() { close(asked) })
	config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error {
		ask()
		<-refuse
		return nil
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	e := w.engine(func(c *Config[*toyTx]) { c.Pool = pool })
	ctx, cancel := context.WithCancel(context.Background())
	cancelled := e.start(ctx, submission(add("c0", 1)))
	<-asked
	cancel()
	if a := <-cancelled; !fault.Is(a.err, fault.NotRun) {
		t.Errorf("cancelled: %+v", a)
	}
	close(refuse)
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); !fault.Is(err, fault.DatabaseUnavailable) {
		t.Errorf("unaffected: %v", err)
	}
	e.mustBeEmpty(t)
}

// A load balancer sends no calls to an engine that is not ready, so the engine must recover by itself.
func TestEngineBecomesReadyWithoutWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	w.exec("alter table toy_counters rename to gone")
	_, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1)))
	if !fault.Is(err, fault.DatabaseUnavailable) || e.Ready() == nil {
		t.Errorf("broken schema: %v, %v", err, e.Ready())
	}
	w.exec("alter table gone rename to toy_counters")
	eventually(t, "the engine is ready", func() bool { return e.Ready() == nil })
	if _, err := e.Do(within(t, 10*time.Second), submission(add("c0", 1))); err != nil {
		t.Error(err)
	}
}

func TestTimeNeverGoesBackInARow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.exec("update toy_counters set last_at = now() + interval '1 h' where id = 'c0'")
	e := w.engine()
	for _, r := range e.DoAll(within(t, 10*time.Second),
		[]Submission[*toyTx]{submission(add("c0", 1)), submission(add("c1", 1))}) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if n := w.int("select count(*) from toy_log where at >= now() + interval '59 min'"); n != 2 {
		t.Errorf("%d rows of the batch have the time of the future row", n)
	}
	if n := w.int("select count(*) from commit_batches where recorded_at >= now() + interval '59 min'"); n != 1 {
		t.Error("the batch has another time than its rows")
	}
	// A batch that waited for a row lock has the later time.
	w.books = newLockingToyTx
	pass, open := w.gate()
	slow := w.engine(patient)
	gated := add("c1", 1).labelled("first")
	gated.onApply = func(tx *toyTx) error { tx.onFlush = pass; return nil }
	a := slow.start(within(t, 20*time.Second), submission(gated))
	w.waiting(1)
	b := w.engine(patient).start(within(t, 20*time.Second), submission(add("c1", 1).labelled("second")))
	w.waiting(2)
	open()
	<-a
	<-b
	if n := w.int(`select count(*) from toy_log f, toy_log s where f.label = 'first' and s.label = 'second'
		and s.at >= f.at`); n != 1 {
		t.Error("time went back")
	}
}

func TestDryRunKeepsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	for range 2 {
		dry := keyed("k", add("c0", 1).named("x"))
		dry.DryRun = true
		out, err := e.Do(within(t, 10*time.Second), dry)
		if err != nil || out.Answer != int64(1_000_001) || out.Replayed {
			t.Errorf("%+v, %v", out, err)
		}
	}
	if w.value("c0") != 1_000_000 || w.int("select count(*) from commit_keys") != 0 ||
		w.int("select count(*) from commit_batches") != 0 {
		t.Error("the dry run has an effect")
	}
}

// A hanging connect delays no job while another writer can connect.
func TestHangingConnectBlocksNoJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	config, err := pgxpool.ParseConfig(w.dsn)
	if err != nil {
		t.Fatal(err)
	}
	var hangs atomic.Bool
	answered := make(chan struct{})
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if hangs.CompareAndSwap(true, false) {
			<-answered
			return nil, net.ErrClosed
		}
		return dial(ctx, network, address)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	e := w.engine(func(c *Config[*toyTx]) { c.Pool = pool })
	for range 2 {
		if r := <-e.start(within(t, connTimeout*8/10), submission(add("c0", 1))); r.err != nil {
			t.Error(r.err)
		}
		<-time.After(100 * time.Millisecond) // all writers wait for work by then
		pool.Reset()
		hangs.Store(true)
	}
	close(answered)
}
