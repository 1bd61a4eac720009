package deliver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// outbox inserts messages directly, and inspects their rows.
type outbox struct {
	t    testing.TB
	db   *pgtest.DB
	pool *pgxpool.Pool
	last int64
}

func newOutbox(t testing.TB, db *pgtest.DB) *outbox {
	return &outbox{t: t, db: db, pool: pgtest.Pool(t, db.AllDSN), last: 1 << 20}
}

// message describes messages to insert. Defaults: tenant 1, webhook, due now, resend when unknown, 5 attempts, gives up
// after an hour.
type message struct {
	tenant   int32
	channel  send.Channel
	priority int
	park     bool
	never    bool
	attempts int
	after    time.Duration // until due
	life     time.Duration
	to       string
	size     int
}

// put inserts n messages in one transaction and returns their ids.
func (o *outbox) put(n int, m message) (ids []int64) {
	o.t.Helper()
	if m.tenant == 0 {
		m.tenant = 1
	}
	if m.channel == "" {
		m.channel = send.Webhook
	}
	if m.attempts == 0 {
		m.attempts = 5
	}
	if m.life == 0 {
		m.life = time.Hour
	}
	if m.to == "" {
		m.to = "receiver"
	}
	policy := "resend"
	if m.park {
		policy = "park"
	}
	if m.never {
		policy = "never"
	}
	content, err := json.Marshal(send.Content{Subject: "hello", Text: "to you" + strings.Repeat("x", m.size)})
	if err != nil {
		o.t.Fatal(err)
	}
	first := o.last + 1
	o.last += int64(n)
	for id := first; id <= o.last; id++ {
		ids = append(ids, id)
	}
	ctx := context.Background()
	tx, err := o.pool.Begin(ctx)
	if err != nil {
		o.t.Fatal(err)
	}
	run := func(sql string, args ...any) {
		o.t.Helper()
		if _, err := tx.Exec(ctx, sql, args...); err != nil {
			o.t.Fatal(err)
		}
	}
	run(`insert into notify_messages (tenant_id, message_id, month, channel, business_type, recipient_hash,
			recipient_hint, content_hash, fingerprint, priority, on_unknown, max_attempts, give_up_at, contents_until,
			accepted_at, principal, request_id)
		select $1, id, date_trunc('month', now() at time zone 'UTC'), $4, 'test', decode(md5('x'), 'hex'), '***',
			sha256('x'), null, $5, $6, $7, now() + $8::float8 * interval '1 s', (now() at time zone 'UTC')::date + 2,
			now(), 'test', 'test'
		from generate_series($2::bigint, $3::bigint)
		id`, m.tenant, first, o.last, string(m.channel), m.priority, policy, m.attempts, m.life.Seconds())
	run(`insert into notify_contents (tenant_id, message_id, contents_until, recipient, content)
		select $1, id, (now() at time zone 'UTC')::date + 2, $4, $5
		from generate_series($2::bigint, $3::bigint) id`, m.tenant, first, o.last, m.to, content)
	run(`insert into notify_queue (tenant_id, message_id, channel, priority, state, due_at, holder, fence, attempts,
		max_attempts, on_unknown, give_up_at, month, contents_until)
		select $1, id, $4, $5, 'queued', now() + $9::float8 * interval '1 s', null, 0, 0, $6, $7,
			now() + $8::float8 * interval '1 s', date_trunc('month', now() at time zone 'UTC'), (now() at time zone
			'UTC')::date + 2
		from generate_series($2::bigint, $3::bigint) id`, m.tenant, first, o.last, string(m.channel), m.priority,
		m.attempts, policy, m.life.Seconds(), m.after.Seconds())
	if err := tx.Commit(ctx); err != nil {
		o.t.Fatal(err)
	}
	return ids
}

// handOver inserts one message leased to a process, as a commit with a handoff does, and returns its job.
func (o *outbox) handOver(m message, instance string, lease time.Duration) *send.Job {
	o.t.Helper()
	begun := time.Now()
	m.after = lease // from the first moment, or a running Pool takes it
	id := o.put(1, m)[0]
	j := &send.Job{Until: begun.Add(lease)}
	var channel, policy string
	err := o.pool.QueryRow(context.Background(), `update notify_queue set holder = $2, fence = 1, attempts = 1
		where message_id = $1
		returning tenant_id, message_id, channel, fence, priority, max_attempts, on_unknown, give_up_at, month,
		contents_until`, id, instance).
		Scan(&j.Tenant, &j.ID, &channel, &j.Fence, &j.Priority, &j.MaxAttempts, &policy, &j.GiveUpAt, &j.Month,
			&j.ContentsUntil)
	if err != nil {
		o.t.Fatal(err)
	}
	j.Channel, j.Park, j.Attempt, j.Recipient, j.Content = send.Channel(channel), policy == "park", 1, "receiver",
		send.Content{Text: "to you"}
	return j
}

// count returns the number of rows.
func (o *outbox) count(from string, args ...any) (n int) {
	o.t.Helper()
	if err := o.pool.QueryRow(context.Background(), "select count(*) from "+from, args...).Scan(&n); err != nil {
		o.t.Fatal(err)
	}
	return n
}

// waitFor waits until count returns n.
func (o *outbox) waitFor(n int, from string, args ...any) {
	o.t.Helper()
	o.within(n, 3*time.Minute, from, args...) // only a hang takes as long
}

func (o *outbox) within(n int, within time.Duration, from string, args ...any) {
	o.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(within); ; <-tick.C {
		got := o.count(from, args...)
		if got == n {
			return
		}
		if time.Now().After(end) {
			o.t.Fatalf("after %v: %d rows of %s %v, want %d\n%s", within, got, from, args, n, o.states())
		}
	}
}

// states summarizes queue rows and events for failure messages.
func (o *outbox) states() (text string) {
	rows, err := o.pool.Query(context.Background(), `select 'queue ' || state || ' ' || coalesce(failure_code, ''),
		count(*) from notify_queue group by 1
		union all select 'event ' || kind || ' ' || coalesce(failure_code, ''), count(*) from notify_events group by 1
		order by 1`)
	if err != nil {
		return err.Error()
	}
	defer rows.Close()
	for rows.Next() {
		var what string
		var n int
		if err := rows.Scan(&what, &n); err != nil {
			return err.Error()
		}
		text += fmt.Sprintln(what, n)
	}
	return text
}
