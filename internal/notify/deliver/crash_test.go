package deliver_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// Environment of a child process, which delivers until it is terminated or killed.
const (
	childDSN   = "LEDGERD_TEST_DELIVER_DSN"
	childSink  = "LEDGERD_TEST_DELIVER_SINK"
	childLease = "LEDGERD_TEST_DELIVER_LEASE"
)

func TestMain(m *testing.M) {
	if os.Getenv(childDSN) != "" {
		child()
		return
	}
	pgtest.Main(m)
}

func child() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pg.Open(ctx, os.Getenv(childDSN), 4)
	if err != nil {
		slog.Error("open", "error", err)
		os.Exit(1)
	}
	lease, err := time.ParseDuration(os.Getenv(childLease))
	if err != nil {
		slog.Error("lease", "error", err)
		os.Exit(1)
	}
	deliver.New(deliver.Config{DB: pool, Instance: "child", Lease: lease,
		Senders:  map[send.Channel]send.Sender{send.Webhook: newSender(os.Getenv(childSink))},
		Policies: map[send.Channel]deliver.Policy{send.Webhook: fast}}).Run(ctx)
}

// process is a child process that can be restarted.
type process struct {
	cmd *exec.Cmd
	env []string
}

func startProcess(t *testing.T, db *pgtest.DB, url string, lease time.Duration) *process {
	t.Helper()
	p := &process{env: append(os.Environ(), childDSN+"="+db.AppDSN, childSink+"="+url, childLease+"="+lease.String())}
	p.start(t)
	t.Cleanup(p.kill)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env, p.cmd.Stderr = p.env, t.Output()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// notTwice fails the test unless all messages of again arrived, and each message of park was requested at most once. It
// returns how many of park are unknown.
func (s *sink) notTwice(t *testing.T, o *outbox, again, park []int64) (lost int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range again {
		if s.arrived[send.Keys("").Of(1, id)] != 1 {
			t.Errorf("message %d arrived %d times", id, s.arrived[send.Keys("").Of(1, id)])
		}
	}
	for _, id := range park {
		asked := s.asked[send.Keys("").Of(1, id)]
		isUnknown := o.count("notify_queue where message_id = $1 and state = 'unknown'", id)
		proofs := o.count("notify_events where message_id = $1 and kind = 'sent'", id)
		if asked > 1 || proofs+isUnknown != 1 || proofs > s.arrived[send.Keys("").Of(1, id)] {
			t.Errorf("message %d: %d requests, %d arrivals, %d sent events, %d unknown rows", id,
				asked, s.arrived[send.Keys("").Of(1, id)], proofs, isUnknown)
		}
		lost += isUnknown
	}
	if n := o.count("notify_queue where state <> 'unknown'"); n != 0 {
		t.Errorf("%d messages are left\n%s", n, o.states())
	}
	return lost
}

// slowly answers after up to 5 ms.
func slowly(_ http.ResponseWriter, _ *http.Request, _ int) bool {
	pass(rand.N(5 * time.Millisecond))
	return true
}

// Processes are killed repeatedly. No message is lost, and none is sent twice.
func TestKilledProcessesLoseNothing(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = slowly
	o := newOutbox(t, db)
	var processes []*process
	for range 3 {
		processes = append(processes, startProcess(t, db, s.URL, 3*time.Second))
	}
	var again, park []int64
	kills := 0
	for end := time.Now().Add(6 * time.Second); kills < 5 || time.Now().Before(end); {
		again, park = append(again, o.put(60, message{})...), append(park, o.put(20, message{park: true})...)
		pass(rand.N(30 * time.Millisecond))
		if rand.N(5) == 0 {
			p := processes[rand.IntN(len(processes))]
			p.kill()
			p.start(t)
			kills++
		}
	}
	o.waitFor(0, "notify_queue where due_at is not null")
	lost := s.notTwice(t, o, again, park)
	_, asked := s.count()
	t.Logf("%d messages, %d not to be sent twice, %d of these unknown, %d requests, %d kills",
		len(again)+len(park), len(park), lost, asked, kills)
	if lost == len(park) {
		t.Error("every parked message is unknown: the test proves nothing")
	}
}

// Postgres is killed repeatedly. Results stay in memory until they can be written, so no message is even requested
// twice.
func TestKilledDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	db, s := pgtest.NewDurable(t), newSink(t)
	s.answer = slowly
	o := newOutbox(t, db.DB)
	patient := fast
	// a second request after a timeout would be right, and is not what this test looks for
	patient.Timeout = 20 * time.Second
	for range 2 {
		run(t, db.DB, s.URL, func(c *deliver.Config) {
			c.Lease, c.Policies = time.Minute, map[send.Channel]deliver.Policy{send.Webhook: patient}
		})
	}
	var again, park []int64
	for range 3 {
		again, park = append(again, o.put(1500, message{})...), append(park, o.put(200, message{park: true})...)
		pass(100 * time.Millisecond)
		before, _ := s.count()
		db.Server.Kill()
		pass(300 * time.Millisecond)
		db.Restart(t)
		for during, _ := s.count(); during < before+10; during, _ = s.count() { // deliveries continue
			pass(5 * time.Millisecond)
		}
		o.pool.Reset()
	}
	o.waitFor(0, "notify_queue where due_at is not null")
	if lost := s.notTwice(t, o, again, park); lost > 0 {
		t.Errorf("%d messages are unknown although no process died\n%s", lost, o.states())
	}
	s.once(t, append(again, park...))
}

// A process is suspended for longer than its leases. Others take over, and it sends nothing after it resumes.
func TestSuspendedProcessSendsNothingWhenItResumes(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	const lease = 6 * time.Second
	open := make(chan struct{})
	var held atomic.Int32
	s.answer = func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		held.Add(1)
		select {
		case <-open:
			return true
		case <-r.Context().Done():
			held.Add(-1)
			return false
		}
	}
	var again, park []int64
	for n := range 20 {
		to := message{to: fmt.Sprint("endpoint-", n)}
		again = append(again, o.put(10, to)...)
		to.park = true
		park = append(park, o.put(10, to)...)
	}
	p := startProcess(t, db, s.URL, lease)
	const most = 32 // concurrent attempts for one tenant
	for held.Load() < most {
		pass(time.Millisecond)
	}
	p.signal(t, syscall.SIGSTOP)
	pass(100 * time.Millisecond)
	// An attempt that timed out just now has freed its slot for another one, which may be between its last lease check
	// and its socket. No check can stop the new attempt.
	begun := most - int(held.Load())
	close(open) // the answers arrive while the process is suspended
	sending := o.count("notify_queue where state = 'sending'")
	run(t, db, s.URL, func(c *deliver.Config) { c.Lease = 30 * time.Second })
	o.waitFor(0, "notify_queue where due_at is not null")
	_, before := s.count()
	p.signal(t, syscall.SIGCONT)
	pass(time.Second) // time in which it would send
	_, after := s.count()
	t.Logf("%d requests after it resumed, %d attempts had begun", after-before, begun)
	if after-before > begun {
		t.Error("it began attempts after it resumed")
	}
	if lost := s.notTwice(t, o, again, park); sending == 0 ||
		lost > sending+o.count("notify_events where kind = 'unknown' and failure_code = 'timeout'") {
		t.Errorf("%d messages are unknown, %d were sending", lost, sending)
	}
}
