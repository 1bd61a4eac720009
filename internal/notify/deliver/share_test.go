package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// A hanging receiver of a tenant, or a hanging provider of a channel, delays only its own messages.
func TestHangingReceiverDelaysOnlyItself(t *testing.T) {
	t.Parallel()
	db, s, hanging := pgtest.New(t), newSink(t), newSink(t)
	o := newOutbox(t, db)
	open := make(chan struct{})
	hang := func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		select {
		case <-open:
		case <-r.Context().Done():
		}
		return true
	}
	hanging.answer = hang
	s.answer = func(w http.ResponseWriter, r *http.Request, n int) bool {
		return r.Header.Get("X-Tenant") == "1" || hang(w, r, n)
	}
	o.put(3000, message{tenant: 2})
	o.put(3000, message{tenant: 3, channel: send.SMS})
	o.put(3000, message{tenant: 1, channel: send.SMS})
	slow := fast
	slow.Timeout = 10 * time.Second
	run(t, db, s.URL, func(c *deliver.Config) {
		c.Senders[send.SMS], c.Room = newSender(hanging.URL), 1000
		c.Policies = map[send.Channel]deliver.Policy{send.SMS: slow, send.Webhook: slow}
	})
	for n := 0; n < 60; n, _ = hanging.count() { // until attempts hang
		_, n = hanging.count()
		pass(5 * time.Millisecond)
		if n >= 40 {
			break
		}
	}
	begun := time.Now()
	ids := o.put(300, message{tenant: 1})
	o.within(300, 9*time.Second, "notify_events where kind = 'sent' and tenant_id = 1")
	t.Logf("300 messages sent in %v beside 9,000 that hang", time.Since(begun))
	s.once(t, ids)
	close(open)
}

func TestSlowEndpointDelaysOnlyItself(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	slow := o.put(2000, message{to: "slow"})
	says := fakeSender{func(m *send.Message) (send.Receipt, error) {
		if m.Recipient == "slow" {
			pass(time.Second)
		}
		return send.Receipt{Provider: "p"}, nil
	}}
	run(t, db, "", func(c *deliver.Config) {
		c.Senders, c.Room, c.Lease = map[send.Channel]send.Sender{send.Webhook: says}, 300, 6*time.Second
		c.Policies = map[send.Channel]deliver.Policy{send.Webhook: {Attempts: 30, Timeout: 2 * time.Second,
			Base: time.Second}}
	})
	o.waitFor(1, "(select 1 from notify_events limit 1) x")
	begun := time.Now()
	quick := o.put(100, message{to: "quick"})
	o.waitFor(100, "notify_events where kind = 'sent' and message_id = any($1)", quick)
	n := o.count("notify_events where kind = 'sent' and message_id = any($1)", slow)
	t.Logf("100 messages sent in %v beside %d of 2,000 slow ones", time.Since(begun), n)
	if n > 500 {
		t.Error("too many slow messages were sent: the test proves nothing")
	}
}

// Large messages after many small ones stay within the memory limit.
func TestLargeMessagesStayWithinMemory(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	open := make(chan struct{})
	s.answer = func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		if r.Header.Get("X-Tenant") == "2" {
			<-open
		}
		return true
	}
	const most = 4 << 20 // half of it per channel
	o.put(800, message{})
	p := run(t, db, s.URL, func(c *deliver.Config) {
		c.Bytes = most
		m := fast
		m.Timeout = 10 * time.Second
		c.Policies = map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	o.waitFor(0, "notify_queue")
	o.put(300, message{tenant: 2, size: 64 << 10})
	p.Due(2)
	var greatest int64
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); pass(time.Millisecond) {
		greatest = max(greatest, p.Bytes(send.Webhook))
	}
	if greatest < 1<<20 || greatest > most {
		t.Errorf("%d bytes held", greatest)
	}
	close(open)
	o.waitFor(0, "notify_queue")
}

func TestUrgentMessagesPassABacklog(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = slowly
	o := newOutbox(t, db)
	late := o.put(6000, message{priority: 2})
	p := run(t, db, s.URL, func(c *deliver.Config) { c.Room = 500 })
	o.waitFor(5000, "(select 1 from notify_queue limit 5000) x")
	urgent := o.put(20, message{priority: 0})
	p.Due(1)
	o.waitFor(0, "notify_queue")
	s.once(t, append(late, urgent...))
	place := map[string]int{}
	for i, key := range s.order {
		place[key] = i
	}
	for _, id := range urgent {
		if at := place[send.Keys("").Of(1, id)]; at > 5000 {
			t.Errorf("an urgent message was sent as number %d", at)
		}
	}
}

// A pool that shuts down gives back unsent messages at once, and completes running attempts.
func TestShutdownGivesMessagesBack(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = func(http.ResponseWriter, *http.Request, int) bool {
		pass(50 * time.Millisecond)
		return true
	}
	o := newOutbox(t, db)
	var ids []int64
	for range 40 {
		ids = append(ids, o.put(5, message{})...)
		ids = append(ids, o.put(5, message{park: true})...)
	}
	first := run(t, db, s.URL, func(c *deliver.Config) {
		m := fast
		m.Attempts = 16
		c.Policies = map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	for n := 0; n < 20; n, _ = s.count() {
		pass(time.Millisecond)
	}
	begun := time.Now()
	first.stop()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("shutdown took %v", took)
	}
	left := o.count("notify_queue")
	if n := o.count("notify_queue where state = 'queued' and holder is null and due_at <= now() " +
		"and attempts = 0"); n != left || left == 0 || left == len(ids) {
		t.Errorf("%d of %d messages were given back unchanged\n%s", n, left, o.states())
	}
	if first.Reserve(1, send.Webhook) {
		t.Error("room reserved after shutdown")
	}
	run(t, db, s.URL, nil)
	o.waitFor(0, "notify_queue")
	s.once(t, ids)
}

// At shutdown, attempts that exceed Drain are cancelled, with unknown outcome.
func TestShutdownCancelsHangingAttempts(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = func(_ http.ResponseWriter, r *http.Request, _ int) bool {
		<-r.Context().Done()
		return false
	}
	o := newOutbox(t, db)
	o.put(3, message{})
	o.put(3, message{park: true})
	p := run(t, db, s.URL, func(c *deliver.Config) {
		m := fast
		m.Timeout = 15 * time.Second
		c.Drain, c.Policies = 100*time.Millisecond, map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	for asked := 0; asked < 6; _, asked = s.count() {
		pass(time.Millisecond)
	}
	p.stop()
	if o.count("notify_queue where state = 'unknown'") != 3 ||
		o.count("notify_queue where state = 'failed' and due_at is not null and unsure") != 3 {
		t.Error(o.states())
	}
}

// Messages that wait in memory for too long are given back, without counting an attempt.
func TestMessagesThatWaitTooLongAreGivenBack(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = func(http.ResponseWriter, *http.Request, int) bool {
		pass(400 * time.Millisecond)
		return true
	}
	o := newOutbox(t, db)
	ids := o.put(12, message{})
	run(t, db, s.URL, func(c *deliver.Config) {
		m := fast
		m.Attempts = 2 // one per tenant
		c.Lease, c.Policies = 3*time.Second, map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	o.waitFor(0, "notify_queue")
	s.once(t, ids)
	if n := o.count("notify_events where kind = 'sent' and attempt = 1"); n != len(ids) {
		t.Errorf("%d of %d messages were sent in attempt 1\n%s", n, len(ids), o.states())
	}
}

// blockedSender is a sender that answers only when told, and ignores its context.
type blockedSender struct {
	began, answer chan struct{}
	asked         atomic.Int32
}

func (u *blockedSender) Send(_ context.Context, m *send.Message) (send.Receipt, error) {
	u.asked.Add(1)
	close(u.began)
	<-u.answer
	return send.Receipt{Provider: "late", ProviderMessageID: fmt.Sprint(m.ID)}, nil
}

// Another process has settled the message as unknown. The process that sent the message settles it as sent later.
func TestLateSuccessSettlesAnUnknownMessage(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	o.put(1, message{park: true})
	late := &blockedSender{began: make(chan struct{}), answer: make(chan struct{})}
	run(t, db, s.URL, func(c *deliver.Config) {
		c.Lease, c.Senders = 2*time.Second, map[send.Channel]send.Sender{send.Webhook: late}
	})
	<-late.began
	run(t, db, s.URL, nil)
	o.waitFor(1, "notify_queue where state = 'unknown' and failure_code = 'lapsed'")
	close(late.answer)
	o.waitFor(0, "notify_queue")
	if o.count("notify_events where kind = 'unknown'") != 1 ||
		o.count("notify_events where kind = 'sent' and provider = 'late' and attempt = 1") != 1 {
		t.Error(o.states())
	}
	if _, asked := s.count(); asked != 0 || late.asked.Load() != 1 {
		t.Error("it was sent again")
	}
}

// The process that sent the message settles it, even while another process holds the lease.
func TestLateSuccessSettlesALeasedMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	o.put(1, message{park: true})
	late := &blockedSender{began: make(chan struct{}), answer: make(chan struct{})}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: late} })
	<-late.began
	if _, err := o.pool.Exec(t.Context(),
		"update notify_queue set fence = fence + 1, holder = 'other', "+
			"due_at = now() + interval '1 minute'"); err != nil {
		t.Fatal(err)
	}
	close(late.answer)
	o.waitFor(0, "notify_queue")
	if o.count("notify_events where kind = 'sent' and provider = 'late'") != 1 {
		t.Error(o.states())
	}
}

// Any provider response is stored as far as possible. A response that the database rejects delays no other message.
func TestUnstorableResponsesDelayNoOthers(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	super := pgtest.Pool(t, db.SuperDSN)
	// any constraint that a response may violate
	if _, err := super.Exec(context.Background(), `alter table notify_events add constraint refused_check check
		(provider_message_id not like '%refused%')`); err != nil {
		t.Fatal(err)
	}
	ids := o.put(100, message{})
	talks := fakeSender{func(m *send.Message) (send.Receipt, error) {
		switch m.ID {
		case ids[1]:
			return send.Receipt{Provider: "a\x00\xff" + strings.Repeat("ä", 60),
				ProviderMessageID: strings.Repeat("ü", 200)}, nil
		case ids[2]:
			return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: strings.Repeat("x", 100), Text: "\x00" +
				strings.Repeat("€", 2000)}
		case ids[50]:
			return send.Receipt{Provider: "p", ProviderMessageID: "refused"}, nil
		case ids[51]:
			panic(m.Recipient)
		}
		return send.Receipt{ProviderMessageID: "fine"}, nil
	}}
	run(t, db, s.URL, func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: talks} })
	o.waitFor(96, "notify_events where kind = 'sent' and provider_message_id = 'fine'")
	o.waitFor(1, "notify_events where kind = 'sent' and provider is null and provider_message_id is null and "+
		"message_id = $1", ids[50])
	o.waitFor(1, "notify_events where kind = 'sent' and provider like 'a%ää' and provider_message_id like 'üü%' and "+
		"message_id = $1", ids[1])
	o.waitFor(1, "notify_queue where state = 'dead' and failure_code like 'xxx%' and message_id = $1", ids[2])
	o.waitFor(1, "notify_events where kind = 'unknown' and failure_code = 'panic' and attempt = 1 and message_id = $1",
		ids[51])
}

type fakeSender struct {
	say func(*send.Message) (send.Receipt, error)
}

func (t fakeSender) Send(_ context.Context, m *send.Message) (send.Receipt, error) { return t.say(m) }

// A process without room, or without a Sender, notifies other processes, which poll at once.
func TestHintsReachOtherProcesses(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	maker := run(t, db, s.URL, func(c *deliver.Config) { c.Senders = nil })
	run(t, db, s.URL, nil)
	pass(3 * time.Second) // until polls are rare
	var waits []time.Duration
	for n := range 5 {
		ids := o.put(1, message{tenant: 7})
		begun := time.Now()
		maker.Due(7)
		o.waitFor(n+1, "notify_events where kind = 'sent'")
		waits = append(waits, s.times[send.Keys("").Of(7, ids[0])].Sub(begun))
		pass(600 * time.Millisecond)
	}
	slices.Sort(waits)
	if waits[2] > 500*time.Millisecond { // a slow machine may delay some
		t.Errorf("messages were sent after %v", waits)
	}
}

// A transaction that commits behind the cursor is found. A message with a later due time is sent when due.
func TestLateCommitsAreFound(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	run(t, db, s.URL, nil)
	o.put(10, message{})
	o.waitFor(0, "notify_queue")
	begun := time.Now()
	o.put(10, message{after: -time.Hour})
	late := o.put(1, message{after: 700 * time.Millisecond})
	o.waitFor(0, "notify_queue")
	t.Logf("found within %v", time.Since(begun))
	var before float64
	if err := o.pool.QueryRow(context.Background(), `select extract(epoch from min(e.at) - min(m.accepted_at))
		from notify_events e join notify_messages m using (tenant_id, message_id, month)
		where message_id = $1`, late[0]).Scan(&before); err != nil || before < 0.7 || before > 4 {
		t.Errorf("due after 0.7 s, sent after %v, %v", before, err)
	}
}

func TestOpenSnapshotDoesNotSlowPolls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	conn, err := pgx.Connect(ctx, db.SuperDSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "select count(*) from notify_queue"); err != nil {
		t.Fatal(err)
	}
	p := run(t, db, s.URL, nil)
	for range 10 {
		o.put(1200, message{})
	}
	o.waitFor(0, "notify_queue")
	pass(1200 * time.Millisecond) // dead rows are now older than the margin
	read := func() (entries int) {
		pass(1200 * time.Millisecond) // statistics are reported every second
		p.Due(1)
		pass(1200 * time.Millisecond)
		if err := o.pool.QueryRow(ctx, "select idx_tup_read from pg_stat_user_indexes "+
			"where indexrelname = 'notify_queue_due_idx'").Scan(&entries); err != nil {
			t.Fatal(err)
		}
		return entries
	}
	before := read()
	var worst time.Duration
	for range 50 {
		ids := o.put(1, message{})
		begun := time.Now()
		p.Due(1)
		o.waitFor(0, "notify_queue")
		worst = max(worst, s.times[send.Keys("").Of(1, ids[0])].Sub(begun))
	}
	looked := read() - before
	t.Logf("12,000 dead rows: 50 messages read %d index entries; slowest %v", looked, worst)
	if looked > 300_000 { // discoveries scan all entries, 12,000; polls must not
		t.Errorf("50 messages read %d index entries", looked)
	}
}

// Thousands of idle tenants cost little, and a new message of one is found.
func TestManyIdleTenantsCostLittle(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	id := o.put(1, message{after: time.Hour})[0]
	if _, err := o.pool.Exec(ctx, `insert into notify_queue select x.tenant, q.message_id, q.channel, q.priority,
		q.state, q.due_at, q.holder, q.fence, q.attempts, q.max_attempts, q.on_unknown, q.give_up_at, q.month,
		q.contents_until, q.provider, q.unsure, q.failure_code from notify_queue q, generate_series(2, 5000) x (tenant)
		where message_id = $1`, id); err != nil {
		t.Fatal(err)
	}
	db.SkipChecks() // the copied rows have no messages
	p := run(t, db, s.URL, nil)
	pass(3 * time.Second)
	var statements float64
	if err := o.pool.QueryRow(ctx, "select xact_commit from pg_stat_database where datname = current_database()").
		Scan(&statements); err != nil {
		t.Fatal(err)
	}
	pass(3 * time.Second)
	var after float64
	if err := o.pool.QueryRow(ctx, "select xact_commit from pg_stat_database where datname = current_database()").
		Scan(&after); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f transactions per second", (after-statements)/3)
	if after-statements > 3*300 {
		t.Errorf("%.0f transactions per second while idle", (after-statements)/3)
	}
	mine := o.put(1, message{tenant: 4321, channel: send.SMS})
	p.Due(4321)
	o.waitFor(1, "notify_events where kind = 'sent' and message_id = $1", mine[0])
}
