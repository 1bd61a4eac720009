package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// running is a pool that runs until stop or the end of the test.
type running struct {
	*deliver.Pool
	stop func()
}

// fast is a policy with short waits.
var fast = deliver.Policy{Attempts: 64, Timeout: 8 * time.Second, Base: 20 * time.Millisecond,
	Max: 100 * time.Millisecond}

func run(t testing.TB, db *pgtest.DB, url string, change func(*deliver.Config)) *running {
	t.Helper()
	s := newSender(url)
	c := deliver.Config{DB: pgtest.Pool(t, db.AllDSN), Instance: "test", Drain: 3 * time.Second,
		Senders:  map[send.Channel]send.Sender{send.Webhook: s, send.SMS: s},
		Policies: map[send.Channel]deliver.Policy{send.Webhook: fast, send.SMS: fast}}
	if change != nil {
		change(&c)
	}
	p := deliver.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.Run(ctx)
	}()
	var once sync.Once
	r := &running{p, func() { once.Do(func() { cancel(); <-ended }) }}
	t.Cleanup(r.stop)
	return r
}

// Due messages are sent once, inserted before or after the start, and leave one event each.
func TestDueMessagesAreSentOnce(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	ids := o.put(1500, message{})
	ids = append(ids, o.put(300, message{park: true})...)
	run(t, db, s.URL, nil)
	ids = append(ids, o.put(200, message{priority: 2})...)
	o.waitFor(0, "notify_queue")
	s.once(t, ids)
	if n := o.count("notify_events where kind = 'sent' and attempt = 1 and provider = 'sink' and provider_message_id " +
		"like 'p-%' and instance = 'test'"); n != len(ids) {
		t.Errorf("%d of %d messages have a sent event\n%s", n, len(ids), o.states())
	}
	if n := o.count("notify_events"); n != len(ids) {
		t.Errorf("%d events for %d messages\n%s", n, len(ids), o.states())
	}
}

func TestManyPoolsShareTheWork(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	for i := range 4 {
		run(t, db, s.URL, func(c *deliver.Config) { c.Instance = fmt.Sprint("pool-", i) })
	}
	var ids []int64
	pools := 0
	// a fast pool may do all the work of a round
	for end := time.Now().Add(30 * time.Second); pools < 3 && time.Now().Before(end); {
		for range 20 {
			ids = append(ids, o.put(100, message{})...)
			ids = append(ids, o.put(20, message{park: true})...)
		}
		o.waitFor(0, "notify_queue")
		pools = o.count("(select distinct instance from notify_events) x")
	}
	s.once(t, ids)
	if pools < 3 {
		t.Errorf("only %d pools sent messages", pools)
	}
}

// Handed-over messages are sent without a poll.
func TestHandedOverMessagesAreSentAtOnce(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	p := run(t, db, s.URL, nil)
	var jobs []*send.Job
	var ids []int64
	for range 50 {
		for !p.Reserve(1, send.Webhook) {
		}
		j := o.handOver(message{park: len(jobs)%2 == 0}, "test", send.Lease)
		jobs, ids = append(jobs, j), append(ids, j.ID)
	}
	o.waitFor(50, "notify_queue")
	p.Take(jobs)
	o.waitFor(0, "notify_queue")
	s.once(t, ids)
	if p.Reserve(1, send.Email) {
		t.Error("room reserved for a channel without Sender")
	}
}

// A process without a Sender for a channel leaves its messages to other processes.
func TestChannelWithoutSenderIsLeftAlone(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	o.put(5, message{channel: send.Email})
	p := run(t, db, s.URL, nil)
	o.put(5, message{})
	p.Due(1)
	o.waitFor(5, "notify_queue")
	if n := o.count("notify_queue where channel = 'email' and fence = 0 and attempts = 0 and " +
		"state = 'queued'"); n != 5 {
		t.Errorf("%d of 5 messages are untouched\n%s", n, o.states())
	}
}

// A temporary failure is retried after the provider's RetryAfter. The message is dead after its last attempt.
func TestFailuresAreRetriedThenDead(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	var mu sync.Mutex
	var at []time.Time
	s.answer = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		mu.Lock()
		defer mu.Unlock()
		if at = append(at, time.Now()); n == 1 {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return false
	}
	o.put(1, message{attempts: 3})
	run(t, db, s.URL, nil)
	o.waitFor(1, "notify_queue where state = 'dead' and due_at is null and holder is null and failure_code "+
		"= 'http_503' and provider = 'sink' and attempts = 3")
	if n := o.count("notify_events where kind = 'failed' and failure_code = 'http_503'"); n != 2 {
		t.Errorf("%d attempts failed\n%s", n, o.states())
	}
	if o.count("notify_events where kind = 'dead' and attempt = 3") != 1 || o.count("notify_events") != 3 {
		t.Error(o.states())
	}
	mu.Lock()
	defer mu.Unlock()
	if len(at) != 3 || at[1].Sub(at[0]) < time.Second {
		t.Errorf("attempts were at %v", at)
	}
}

// A permanent failure is dead at once, or unknown if an earlier attempt may have sent the message.
func TestPermanentFailureIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	ids := o.put(4, message{})
	says := fakeSender{func(m *send.Message) (send.Receipt, error) {
		f := &send.Failure{Outcome: send.Permanent, Code: "gone", Provider: "p"}
		switch {
		case m.ID == ids[2] && m.Attempt == 1:
			f.Outcome = send.Unknown
		case m.ID == ids[1], m.ID == ids[3]:
			f.Outcome = send.Refused
		}
		return send.Receipt{}, f
	}}
	if _, err := o.pool.Exec(t.Context(),
		"update notify_queue set holder = 'ended', attempts = 1 where message_id = $1", ids[3]); err != nil {
		t.Fatal(err)
	}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: says} })
	o.waitFor(2, "notify_queue where state = 'dead' and failure_code = 'gone' and attempts = 1 and "+
		"message_id = any($1)", ids[:2])
	o.waitFor(2, "notify_queue where state = 'unknown' and failure_code = 'gone' and attempts = 2 and "+
		"message_id = any($1)", ids[2:])
	if o.count("notify_events") != 5 || o.count("notify_events where kind = 'dead'") != 2 {
		t.Error(o.states())
	}
}

// A message that expires while it waits in memory is not sent.
func TestExpiredMessagesAreNotSent(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	s.answer = func(http.ResponseWriter, *http.Request, int) bool {
		pass(1200 * time.Millisecond)
		return true
	}
	o.put(2, message{life: time.Second})
	o.put(2, message{life: time.Second, park: true})
	run(t, db, s.URL, func(c *deliver.Config) {
		m := fast
		m.Attempts = 2 // one per tenant
		c.Policies = map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	o.waitFor(3, "notify_queue where state = 'dead' and failure_code = 'expired'")
	o.waitFor(3, "notify_queue")
	if _, asked := s.count(); asked != 1 {
		t.Errorf("%d requests, want 1", asked)
	}
}

// With on_unknown = never the content is deleted as soon as the message is settled.
func TestContentsOfNeverMessagesAreDeleted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	codes, others := o.put(4, message{never: true}), o.put(2, message{park: true})
	says := fakeSender{func(m *send.Message) (send.Receipt, error) {
		switch m.ID {
		case codes[1], others[1]:
			return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "no", Provider: "p"}
		case codes[2]:
			return send.Receipt{}, &send.Failure{Outcome: send.Unknown, Code: "no", Provider: "p"}
		case codes[3]:
			return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "later", Provider: "p",
				RetryAfter: 10 * time.Minute}
		}
		return send.Receipt{Provider: "p"}, nil
	}}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: says} })
	o.waitFor(6, "notify_events")
	if n := o.count("notify_contents where message_id = any($1)", codes[:3]); n != 0 {
		t.Errorf("%d of 3 contents are left, want 0", n)
	}
	if n := o.count("notify_contents where message_id = any($1)", append(others, codes[3])); n != 3 {
		t.Errorf("%d of 3 contents are left, want 3", n)
	}
}

// Contents are not sent from contents_until on, although their partition is dropped days later.
func TestExpiredContentsAreNotSent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	id := o.put(1, message{after: time.Second})[0]
	if _, err := pgtest.Pool(t, db.SuperDSN).Exec(t.Context(), fmt.Sprintf(`do $$ declare
			today date := (now() at time zone 'UTC')::date; week date := date_trunc('week', today::timestamp);
		begin
			perform notify_add_partition('notify_contents', to_char(week, 'YYYYMMDD'), week, week + 7);
			set local session_replication_role = replica;
			update notify_contents set contents_until = today where message_id = %[1]d;
			update notify_messages set contents_until = today where message_id = %[1]d;
			update notify_queue set contents_until = today where message_id = %[1]d;
		end $$`, id)); err != nil {
		t.Fatal(err)
	}
	run(t, db, "", func(c *deliver.Config) {
		c.Senders = map[send.Channel]send.Sender{send.Webhook: fakeSender{func(m *send.Message) (send.Receipt, error) {
			t.Errorf("%q was sent", m.Content.Text)
			return send.Receipt{Provider: "p"}, nil
		}}}
	})
	o.waitFor(1, "notify_events where kind = 'dead' and failure_code = 'contents_gone'")
}

// A result that is written twice, because the first response was lost, counts once. After that the message cannot be
// marked any more.
func TestRewrittenResultCountsOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	p := deliver.New(deliver.Config{DB: pgtest.Pool(t, db.AllDSN), Instance: "test"})
	failed, unasked := o.handOver(message{}, "test", send.Lease), o.handOver(message{}, "test", send.Lease)
	if _, err := o.pool.Exec(t.Context(), "update notify_queue set attempts = 3"); err != nil {
		t.Fatal(err)
	}
	for _, provider := range []string{"", "b"} {
		if done, err := p.Mark(unasked, provider); err != nil || !done {
			t.Error(done, err)
		}
	}
	if o.count("notify_queue where message_id = $1 and state = 'sending' and provider = 'b' and unsure",
		unasked.ID) != 1 {
		t.Error(o.states())
	}
	if err := p.FailTwice(failed, unasked); err != nil {
		t.Fatal(err)
	}
	if o.count("notify_events") != 1 ||
		o.count("notify_queue where message_id = $1 and attempts = 3 and state = 'failed'", failed.ID) != 1 ||
		o.count("notify_queue where message_id = $1 and attempts = 2 and state = 'queued'", unasked.ID) != 1 {
		t.Error(o.states())
	}
	for _, provider := range []string{"", "b"} {
		for _, j := range []*send.Job{failed, unasked} {
			if done, err := p.Mark(j, provider); err != nil || done {
				t.Error(done, err)
			}
		}
	}
}

// After an unknown outcome the message is parked, or sent again with the same key.
func TestUnknownIsParkedOrResentWithTheSameKey(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	s.answer = func(w http.ResponseWriter, r *http.Request, n int) bool {
		if n > 1 {
			return true
		}
		s.take(r.Header.Get("Idempotency-Key")) // it accepts the message and does not answer
		reset(w)
		return false
	}
	again, park := o.put(20, message{}), append(o.put(10, message{park: true}), o.put(10, message{never: true})...)
	run(t, db, s.URL, nil)
	o.waitFor(20, "notify_queue")
	o.waitFor(20, "notify_queue where state = 'unknown' and due_at is null and failure_code = 'reset'")
	if o.count("notify_queue where on_unknown = 'never'") != 10 {
		t.Error(o.states())
	}
	s.once(t, park)
	for _, id := range again {
		if key := send.Keys("").Of(1, id); s.asked[key] != 2 || s.arrived[key] != 1 {
			t.Errorf("message %d: %d requests, %d arrivals", id, s.asked[key], s.arrived[key])
		}
	}
	if o.count("notify_events where kind = 'unknown'") != 40 ||
		o.count("notify_events where kind = 'sent' and attempt = 2") != 20 {
		t.Error(o.states())
	}
}

// A message that may have been sent becomes unknown, not dead, after its last attempt or the end of its process.
func TestPossiblySentMessagesBecomeUnknownNotDead(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	s.answer = func(w http.ResponseWriter, _ *http.Request, n int) bool {
		if n == 1 {
			reset(w)
		} else {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return false
	}
	o.put(1, message{attempts: 2})
	// Another process marked these messages and died: only an operator may send them again.
	ids := o.put(2, message{park: true})
	if _, err := o.pool.Exec(context.Background(),
		"update notify_queue set state = 'sending', holder = 'gone', fence = 1, attempts = 1 "+
			"where message_id = any($1)", ids); err != nil {
		t.Fatal(err)
	}
	expired := o.put(1, message{life: -time.Second})
	run(t, db, s.URL, nil)
	o.waitFor(2, "notify_queue where state = 'unknown' and failure_code = 'lapsed' and attempts = 1 and fence = 2 "+
		"and message_id = any($1)", ids)
	o.waitFor(1, "notify_queue where state = 'unknown' and failure_code = 'http_503' and unsure")
	o.waitFor(1, "notify_queue where state = 'dead' and failure_code = 'expired' and message_id = any($1)",
		expired)
	if _, asked := s.count(); asked != 2 {
		t.Errorf("%d requests", asked)
	}
	if n := o.count("notify_events where kind = 'unknown'"); n != 4 {
		t.Errorf("%d unknown events\n%s", n, o.states())
	}
}

// counted sums the series of a counter whose first label has the given value; empty: all series.
func counted(t *testing.T, registry *prometheus.Registry, name, first string) (n float64) {
	t.Helper()
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (first == "" || m.GetLabel()[0].GetValue() == first) {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// A message that another process has taken over is not sent if it must not be sent twice. The row stays as the other
// process left it.
func TestLostFenceLeavesTheRowAlone(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	registry := prometheus.NewRegistry()
	p := run(t, db, s.URL, func(c *deliver.Config) { c.Metrics = deliver.NewMetrics(registry) })
	for reserved := 0; reserved < 2; {
		if p.Reserve(1, send.Webhook) {
			reserved++
		}
	}
	park, again := o.handOver(message{park: true}, "test", send.Lease), o.handOver(message{}, "test", send.Lease)
	if _, err := o.pool.Exec(context.Background(), "update notify_queue set fence = 2, holder = 'other'"); err != nil {
		t.Fatal(err)
	}
	p.Take([]*send.Job{park, again})
	lost := func(at string) float64 { return counted(t, registry, "ledgerd_notify_fences_lost_total", at) }
	for end := time.Now().Add(20 * time.Second); lost("mark") != 1 || lost("finish") != 1; {
		if time.Now().After(end) {
			t.Fatalf("lost fences: %v to mark, %v to finish", lost("mark"), lost("finish"))
		}
		pass(time.Millisecond)
	}
	if n := o.count("notify_queue where state = 'queued' and fence = 2 and holder = 'other' " +
		"and attempts = 1"); n != 2 || o.count("notify_events") != 0 {
		t.Errorf("%d of 2 rows are unchanged\n%s", n, o.states())
	}
	if s.asked[send.Keys("").Of(1, park.ID)] != 0 || s.asked[send.Keys("").Of(1, again.ID)] != 1 {
		t.Errorf("requests: %v", s.asked)
	}
}

// A Sender that asked no provider costs no attempt and is not counted.
func TestUnaskedProviderCostsNoAttempt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	o.put(1, message{attempts: 2})
	o.put(1, message{attempts: 2, park: true})
	var asked atomic.Int32
	busy := fakeSender{func(m *send.Message) (send.Receipt, error) {
		if m.Attempt != 1 || m.LastProvider != "" {
			t.Errorf("attempt %d after %q", m.Attempt, m.LastProvider)
		}
		if asked.Add(1) <= 8 {
			return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "busy",
				RetryAfter: 50 * time.Millisecond}
		}
		return send.Receipt{Provider: "p"}, nil
	}}
	registry := prometheus.NewRegistry()
	run(t, db, "", func(c *deliver.Config) {
		c.Senders, c.Metrics = map[send.Channel]send.Sender{send.Webhook: busy}, deliver.NewMetrics(registry)
	})
	o.waitFor(0, "notify_queue")
	if n := counted(t, registry, "ledgerd_notify_attempts_total", ""); n != 2 {
		t.Errorf("%v attempts were counted", n)
	}
	if o.count("notify_events where kind = 'sent' and attempt = 1") != 2 || o.count("notify_events") != 2 {
		t.Error(o.states())
	}
}

// Sealed content is sent in clear by a pool with the key.
func TestSealedContentsAreOpenedToBeSent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o, master := newOutbox(t, db), secret.New()
	id := o.put(1, message{after: time.Second})[0]
	if _, err := pgtest.Pool(t, db.SuperDSN).Exec(t.Context(),
		"update notify_contents set content = $2 where message_id = $1", id,
		send.SealContent(master, 1, id, []byte(`{"text":"123456"}`))); err != nil {
		t.Fatal(err)
	}
	said := make(chan string, 1)
	run(t, db, "", func(c *deliver.Config) {
		c.Secret = master
		c.Senders = map[send.Channel]send.Sender{send.Webhook: fakeSender{func(m *send.Message) (send.Receipt, error) {
			said <- m.Content.Text
			return send.Receipt{Provider: "p"}, nil
		}}}
	})
	o.waitFor(0, "notify_queue")
	if text := <-said; text != "123456" {
		t.Errorf("sent %q", text)
	}
}

// The mark of an attempt is flushed to disk before the provider is asked, whatever the defaults of the database: losing
// the mark in a crash would lead to a second attempt.
func TestMarksAreOnTheDiskBeforeTheProviderIsCalled(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDurable(t)
	d.RestartWith(t, map[string]string{"wal_writer_delay": "10000", "autovacuum": "off", "synchronous_commit": "off"})
	o := newOutbox(t, d.DB)
	super := pgtest.Pool(t, d.SuperDSN)
	const messages = 10
	var unflushed atomic.Int32
	says := fakeSender{func(*send.Message) (send.Receipt, error) {
		var behind bool
		if err := super.QueryRow(t.Context(), `select pg_current_wal_flush_lsn() < m.lsn from (
			select pg_current_wal_insert_lsn() as lsn) m`).Scan(&behind); err != nil {
			t.Error(err)
		}
		if behind {
			unflushed.Add(1)
		}
		return send.Receipt{Provider: "p"}, nil
	}}
	run(t, d.DB, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: says} })
	for range messages {
		ids := o.put(1, message{park: true})
		o.waitFor(1, "notify_events where kind = 'sent' and message_id = $1", ids[0])
	}
	if n := unflushed.Load(); n > 2 {
		t.Errorf("%d of %d providers were asked before the mark was on the disk", n, messages)
	}
}
