package deliver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// A tenant whose receiver hangs, and a channel whose provider does, hold up themselves alone.
func TestWhoHangsHoldsUpHimselfAlone(t *testing.T) {
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
	for n := 0; n < 60; n, _ = hanging.count() { // asked for, and hanging
		_, n = hanging.count()
		pass(5 * time.Millisecond)
		if n >= 40 {
			break
		}
	}
	begun := time.Now()
	ids := o.put(300, message{tenant: 1})
	o.waitFor(300, 9*time.Second, "notify_events where kind = 'sent' and tenant_id = 1")
	t.Logf("300 were sent in %v beside 9,000 that hang", time.Since(begun))
	s.once(t, ids)
	close(open)
}

// An endpoint that is slow holds up itself alone, not the others of its tenant.
func TestASlowEndpointHoldsUpItselfAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	slow := o.put(2000, message{to: "slow"})
	says := talker{func(m *send.Message) (send.Receipt, error) {
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
	o.waitFor(1, 10*time.Second, "(select 1 from notify_events limit 1) x")
	begun := time.Now()
	quick := o.put(100, message{to: "quick"})
	o.waitFor(100, 20*time.Second, "notify_events where kind = 'sent' and message_id = any($1)", quick)
	n := o.count("notify_events where kind = 'sent' and message_id = any($1)", slow)
	t.Logf("100 were sent in %v beside %d of 2,000 that are slow", time.Since(begun), n)
	if n > 500 {
		t.Error("the slow ones were not slow")
	}
}

// Great messages behind many small ones take no more memory than there is.
func TestGreatMessagesTakeTheirRoom(t *testing.T) {
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
	const most = 4 << 20 // half of it for each channel
	o.put(800, message{})
	p := run(t, db, s.URL, func(c *deliver.Config) {
		c.Bytes = most
		m := fast
		m.Timeout = 10 * time.Second
		c.Policies = map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	o.waitFor(0, 20*time.Second, "notify_queue")
	o.put(300, message{tenant: 2, size: 64 << 10})
	p.Due(2)
	var greatest int64
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); pass(time.Millisecond) {
		greatest = max(greatest, p.Bytes(send.Webhook))
	}
	if greatest < 1<<20 || greatest > most {
		t.Errorf("%d bytes were held", greatest)
	}
	close(open)
	o.waitFor(0, 30*time.Second, "notify_queue")
}

// The priority that is more urgent goes out before a backlog of others.
func TestUrgentMessagesPassABacklog(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = slowly
	o := newOutbox(t, db)
	late := o.put(6000, message{priority: 2})
	p := run(t, db, s.URL, func(c *deliver.Config) { c.Room = 500 })
	o.waitFor(5000, 20*time.Second, "(select 1 from notify_queue limit 5000) x")
	urgent := o.put(20, message{priority: 0})
	p.Due(1)
	o.waitFor(0, 30*time.Second, "notify_queue")
	s.once(t, append(late, urgent...))
	place := map[string]int{}
	for i, key := range s.order {
		place[key] = i
	}
	for _, id := range urgent {
		if at := place[send.Keys("").Of(1, id)]; at > 5000 {
			t.Errorf("an urgent message was number %d", at)
		}
	}
}

// A pool that ends gives back at once what it has not sent, and ends what it has begun.
func TestAnEndingPoolGivesBack(t *testing.T) {
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
	if took := time.Since(begun); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	left := o.count("notify_queue")
	if n := o.count("notify_queue where state = 'queued' and holder is null and due_at <= now() and attempts = 0"); n != left || left == 0 || left == len(ids) {
		t.Errorf("%d of %d were given back as they were\n%s", n, left, o.states())
	}
	if first.Reserve(1, send.Webhook) {
		t.Error("it takes messages after its end")
	}
	run(t, db, s.URL, nil)
	o.waitFor(0, 20*time.Second, "notify_queue")
	s.once(t, ids)
}

// Attempts that do not end in time are cut off when the pool ends: nobody knows whether they sent.
func TestAnEndingPoolCutsOffWhatHangs(t *testing.T) {
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

// What waits in a pool for too long is given back, uncounted.
func TestWhatWaitsForTooLongIsGivenBack(t *testing.T) {
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
		m.Attempts = 2 // one, for one tenant
		c.Lease, c.Policies = 3*time.Second, map[send.Channel]deliver.Policy{send.Webhook: m}
	})
	o.waitFor(0, 20*time.Second, "notify_queue")
	s.once(t, ids)
	if n := o.count("notify_events where kind = 'sent' and attempt = 1"); n != len(ids) {
		t.Errorf("%d of %d are told to be first attempts\n%s", n, len(ids), o.states())
	}
}

// unwilling is a sender that answers when it is told to, whatever its context says.
type unwilling struct {
	began, answer chan struct{}
	asked         atomic.Int32
}

func (u *unwilling) Send(_ context.Context, m *send.Message) (send.Receipt, error) {
	u.asked.Add(1)
	close(u.began)
	<-u.answer
	return send.Receipt{Provider: "late", ProviderMessageID: fmt.Sprint(m.ID)}, nil
}

// Others find that nobody knows whether a message was sent. Who comes too late and knows it, says so.
func TestWhoKnowsThatItWasSentSettlesIt(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	o.put(1, message{park: true})
	late := &unwilling{began: make(chan struct{}), answer: make(chan struct{})}
	run(t, db, s.URL, func(c *deliver.Config) {
		c.Lease, c.Senders = 2*time.Second, map[send.Channel]send.Sender{send.Webhook: late}
	})
	<-late.began
	run(t, db, s.URL, nil)
	o.waitFor(1, 10*time.Second, "notify_queue where state = 'unknown' and code = 'lapsed'")
	close(late.answer)
	o.waitFor(0, 10*time.Second, "notify_queue")
	if o.count("notify_events where kind = 'unknown'") != 1 ||
		o.count("notify_events where kind = 'sent' and provider = 'late' and attempt = 1") != 1 {
		t.Error(o.states())
	}
	if _, asked := s.count(); asked != 0 || late.asked.Load() != 1 {
		t.Error("it was sent again")
	}
}

// It says so too while others are about to find that nobody knows.
func TestWhoKnowsThatItWasSentComesFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	o.put(1, message{park: true})
	late := &unwilling{began: make(chan struct{}), answer: make(chan struct{})}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: late} })
	<-late.began
	if _, err := o.pool.Exec(t.Context(),
		"update notify_queue set fence = fence + 1, holder = 'other', due_at = now() + interval '1 minute'"); err != nil {
		t.Fatal(err)
	}
	close(late.answer)
	o.waitFor(0, 10*time.Second, "notify_queue")
	if o.count("notify_events where kind = 'sent' and provider = 'late'") != 1 {
		t.Error(o.states())
	}
}

// Whatever a provider says is kept as far as it can be, and what the database refuses does not hold up others.
func TestWhatProvidersSayHoldsUpNobody(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	super := pgtest.Pool(t, db.SuperDSN)
	// The database may refuse what nobody thought of.
	if _, err := super.Exec(context.Background(), `alter table notify_events add constraint refused_check check (provider_message_id not like '%refused%')`); err != nil {
		t.Fatal(err)
	}
	ids := o.put(100, message{})
	talks := talker{func(m *send.Message) (send.Receipt, error) {
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
	o.waitFor(96, 10*time.Second, "notify_events where kind = 'sent' and provider_message_id = 'fine'")
	o.waitFor(1, 10*time.Second, "notify_events where kind = 'sent' and provider is null and provider_message_id is null and message_id = $1", ids[50])
	o.waitFor(1, 10*time.Second, "notify_events where kind = 'sent' and provider like 'a%ää' and provider_message_id like 'üü%' and message_id = $1", ids[1])
	o.waitFor(1, 10*time.Second, "notify_queue where state = 'dead' and code like 'xxx%' and message_id = $1", ids[2])
	o.waitFor(1, 10*time.Second, "notify_events where kind = 'unknown' and code = 'panic' and attempt = 1 and message_id = $1", ids[51])
}

type talker struct {
	say func(*send.Message) (send.Receipt, error)
}

func (t talker) Send(_ context.Context, m *send.Message) (send.Receipt, error) { return t.say(m) }

// A process that has no room, or no Sender, tells others, who come at once.
func TestOthersAreTold(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	maker := run(t, db, s.URL, func(c *deliver.Config) { c.Senders = nil })
	run(t, db, s.URL, nil)
	pass(3 * time.Second) // until it polls seldom
	var worst time.Duration
	for n := range 5 {
		ids := o.put(1, message{tenant: 7})
		begun := time.Now()
		maker.Due(7)
		o.waitFor(n+1, 5*time.Second, "notify_events where kind = 'sent'")
		worst = max(worst, s.times[send.Keys("").Of(7, ids[0])].Sub(begun))
		pass(600 * time.Millisecond)
	}
	if worst > 500*time.Millisecond {
		t.Errorf("one was sent after %v", worst)
	}
}

// A transaction that commits long after its time is found behind the cursor, and what is due later when it is.
func TestWhatCommitsLateIsFound(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	run(t, db, s.URL, nil)
	o.put(10, message{})
	o.waitFor(0, 5*time.Second, "notify_queue")
	begun := time.Now()
	o.put(10, message{after: -time.Hour})
	late := o.put(1, message{after: 700 * time.Millisecond})
	o.waitFor(0, 10*time.Second, "notify_queue")
	t.Logf("found within %v", time.Since(begun))
	var before float64
	if err := o.pool.QueryRow(context.Background(), `select extract(epoch from min(e.at) - min(m.accepted_at)) from notify_events e join notify_messages m using (tenant_id, message_id, month)
		where message_id = $1`, late[0]).Scan(&before); err != nil || before < 0.7 || before > 4 {
		t.Errorf("what was to be sent after 0.7 s was sent after %v, %v", before, err)
	}
}

// An old snapshot that is held open keeps dead rows in the way of nobody.
func TestAHeldSnapshotDoesNotSlowPolls(t *testing.T) {
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
	o.waitFor(0, 60*time.Second, "notify_queue")
	pass(1200 * time.Millisecond) // the dead are behind the margin
	read := func() (entries int) {
		pass(1200 * time.Millisecond) // statistics are told every second
		p.Due(1)
		pass(1200 * time.Millisecond)
		if err := o.pool.QueryRow(ctx, "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'notify_queue_due_idx'").Scan(&entries); err != nil {
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
		o.waitFor(0, 5*time.Second, "notify_queue")
		worst = max(worst, s.times[send.Keys("").Of(1, ids[0])].Sub(begun))
	}
	looked := read() - before
	t.Logf("12,000 dead rows: 50 messages looked at %d entries; at most %v", looked, worst)
	if looked > 120_000 { // some discoveries look at all, not each poll
		t.Errorf("50 messages looked at %d entries of the index", looked)
	}
}

// Thousands of tenants, each with something for later, cost little, and the one whose time comes is found.
func TestManyTenantsAreLookedAfter(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db, s := pgtest.New(t), newSink(t)
	o := newOutbox(t, db)
	id := o.put(1, message{after: time.Hour})[0]
	if _, err := o.pool.Exec(ctx, `insert into notify_queue select x.tenant, q.message_id, q.channel, q.priority, q.state, q.due_at, q.holder, q.fence, q.attempts, q.max_attempts,
		q.on_unknown, q.give_up_at, q.month, q.contents_until, q.provider, q.unsure, q.code from notify_queue q, generate_series(2, 5000) x (tenant) where message_id = $1`, id); err != nil {
		t.Fatal(err)
	}
	db.SkipChecks() // those rows have no messages
	p := run(t, db, s.URL, nil)
	pass(3 * time.Second)
	var statements float64
	if err := o.pool.QueryRow(ctx, "select xact_commit from pg_stat_database where datname = current_database()").Scan(&statements); err != nil {
		t.Fatal(err)
	}
	pass(3 * time.Second)
	var after float64
	if err := o.pool.QueryRow(ctx, "select xact_commit from pg_stat_database where datname = current_database()").Scan(&after); err != nil {
		t.Fatal(err)
	}
	t.Logf("%.0f transactions a second", (after-statements)/3)
	if after-statements > 3*300 {
		t.Errorf("%.0f transactions a second for nothing", (after-statements)/3)
	}
	mine := o.put(1, message{tenant: 4321, channel: send.SMS})
	p.Due(4321)
	o.waitFor(1, 30*time.Second, "notify_events where kind = 'sent' and message_id = $1", mine[0])
}
