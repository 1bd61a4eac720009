package notify_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/clean"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func (p *process) cancel(id int64) (commit.Outcome, error) {
	return p.do(&notify.CancelCommand{Caller: caller, ID: id})
}

func (p *process) report(id int64, delivered bool) (commit.Outcome, error) {
	return p.do(&notify.ReportCommand{Caller: caller, ID: id, Provider: "file", Delivered: delivered,
		FailureCode: map[bool]string{false: "absent"}[delivered]})
}

func (p *process) state(id int64) *notify.Detail {
	p.Helper()
	t, err := notify.NewReader(p.pool, &notify.Outbox{Master: master}).Get(p.Context(), notify.Key{Tenant: 1, ID: id},
		"", false)
	if err != nil {
		p.Fatal(err)
	}
	return t
}

// sent records a message as sent, like a worker.
func sent(t *testing.T, db *pgtest.DB, id int64) {
	t.Helper()
	change(t, db, `with gone as (delete from notify_queue where message_id = $1 returning *)
		insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, provider, provider_message_id,
		at, instance)
		select tenant_id, message_id, month, 1, 'sent', 1, 'file', 'f' || message_id, clock_timestamp(), 'test'
		from gone`, id)
}

func TestCancelByState(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 1)
	hour := time.Hour
	for i, c := range []struct {
		name string
		as   string // changes to the queue row; empty: none
		want *fault.Reason
	}{
		{"handed over", "", notify.BeingSent}, // the handoff has room for one
		{"waiting", "", nil},
		{"failed, to be tried again", "state = 'failed', due_at = now() + interval '1 min', attempts = 1", nil},
		{"dead", "state = 'dead', due_at = null", nil},
		{"unknown", "state = 'unknown', due_at = null", notify.NotCancellable},
		{"sending", "state = 'sending', holder = 'h', due_at = now() + interval '1 min'", notify.BeingSent},
		{"sending, its lease expired", "state = 'sending', holder = 'h', due_at = now() - interval '1 min'",
			notify.BeingSent},
		{"leased", "holder = 'h', due_at = now() + interval '1 min'", notify.BeingSent},
		{"lease expired, never marked as sending", "holder = 'h', due_at = now() - interval '1 min'", nil},
		{"lease expired, never marked: resend", "holder = 'h', due_at = now() - interval '1 min', " +
			"on_unknown = 'resend'",
			notify.BeingSent},
		{"failed, may have been sent",
			"state = 'failed', due_at = now() + interval '1 min', attempts = 2, unsure = true", notify.NotCancellable},
		{"given back, may have been sent", "due_at = now(), attempts = 2, unsure = true", notify.NotCancellable},
	} {
		m := p.mustSend(says(c.name), func(p *notify.Params) {
			p.RepeatWindow = &hour
			if i >= 9 {
				p.OnUnknown = notify.Resend
			}
		})
		if c.as != "" {
			change(t, db, "update notify_queue set "+c.as+" where message_id = $1", m.ID)
		}
		out, err := p.cancel(m.ID)
		if c.want == nil {
			if err != nil || out.Answer.(*notify.Message).State != notify.Cancelled ||
				p.state(m.ID).State != notify.Cancelled {
				t.Errorf("%s: %+v, %v", c.name, out, err)
			}
			if out, err := p.cancel(m.ID); err != nil || !out.Existed ||
				out.Answer.(*notify.Message).State != notify.Cancelled {
				t.Errorf("%s, repeat: %+v, %v", c.name, out, err)
			}
		} else if !fault.Is(err, c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	m := p.mustSend()
	sent(t, db, m.ID)
	if _, err := p.cancel(m.ID); !fault.Is(err, notify.NotCancellable) ||
		fault.Of(err).Metadata["message_state"] != notify.Sent {
		t.Errorf("sent: %v", err)
	}
	if _, err := p.cancel(12345); !fault.Is(err, notify.NotFound) {
		t.Errorf("missing: %v", err)
	}
}

func TestRequeueTakesMessagesThatCanBeSent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	requeue := func(id int64) (notify.Requeued, error) {
		out, err := p.do(&notify.RequeueCommand{Caller: caller, ID: id, GiveUpAfter: time.Hour})
		if err != nil {
			return notify.Requeued{}, err
		}
		return out.Answer.(notify.Requeued), nil
	}
	dead := p.mustSend(says("dead"))
	change(t, db, "update notify_queue set state = 'dead', due_at = null, attempts = 10, fence = 7, unsure = true, "+
		"failure_code = 'x' where message_id = $1", dead.ID)
	if got, err := requeue(dead.ID); err != nil || got.Count != 1 {
		t.Errorf("dead: %+v, %v", got, err)
	}
	if n := count(t, db, `select count(*) from notify_queue where message_id = $1 and state = 'queued' and attempts = 0
		and fence = 8 and not unsure
		and due_at <= now() and give_up_at > now() + interval '59 min'
		and give_up_at < now() + interval '61 min'`, dead.ID); n != 1 {
		t.Error("the requeued row is not reset")
	}
	if p.hand.due[1] == 0 {
		t.Error("due was not announced")
	}
	if _, err := requeue(dead.ID); !fault.Is(err, notify.NotParked) {
		t.Errorf("again: %v", err)
	}
	change(t, db, "update notify_queue set state = 'unknown', due_at = null where message_id = $1", dead.ID)
	if got, err := requeue(dead.ID); err != nil || got.Count != 1 {
		t.Errorf("unknown: %+v, %v", got, err)
	}
	never := p.mustSend(says("never"), func(p *notify.Params) { p.OnUnknown = notify.Never })
	change(t, db, "update notify_queue set state = 'unknown', due_at = null where message_id = $1", never.ID)
	if _, err := requeue(never.ID); !fault.Is(err, notify.NotParked) {
		t.Errorf("never: %v", err)
	}
	for i := range 5 {
		m := p.mustSend(says(fmt.Sprint("many", i)))
		change(t, db, "update notify_queue set state = 'dead', due_at = null, failure_code = $2 where message_id = $1",
			m.ID,
			[]string{"a", "b"}[i%2])
	}
	all := func(code string, channel send.Channel) notify.Requeued {
		out, err := p.do(&notify.RequeueAllCommand{Caller: caller, FailureCode: code, Channel: channel})
		if err != nil {
			t.Fatal(err)
		}
		return out.Answer.(notify.Requeued)
	}
	if got := all("", send.Email); got != (notify.Requeued{}) {
		t.Errorf("channel email: %+v", got)
	}
	if got := all("a", ""); got != (notify.Requeued{Count: 3}) {
		t.Errorf("code a: %+v", got)
	}
	if got := all("", send.SMS); got != (notify.Requeued{Count: 2}) {
		t.Errorf("the rest: %+v", got)
	}
	if got := all("", ""); got != (notify.Requeued{}) {
		t.Errorf("again: %+v", got)
	}
	// Messages without content, or with on_unknown = never, do not hide others, however many there are.
	for i := range 3 {
		m := p.mustSend(says(fmt.Sprint("gone", i)))
		change(t, db, "update notify_queue set state = 'dead', due_at = null, failure_code = 'a', "+
			"contents_until = current_date - $2::integer where message_id = $1", m.ID, i%2)
	}
	change(t, db, `insert into notify_queue (tenant_id, message_id, channel, priority, state, fence, attempts,
		max_attempts, on_unknown, give_up_at, month, contents_until, unsure, failure_code)
		select 1, -i, 'sms', 1, 'dead', 0, 0, 1, 'never', now(), current_date, current_date + 2, false, 'a'
		from generate_series(1, 1000) i`)
	late := p.mustSend(says("late"))
	change(t, db, "update notify_queue set state = 'dead', due_at = null, failure_code = 'z' where message_id = $1",
		late.ID)
	if got := all("", ""); got != (notify.Requeued{Count: 1}) {
		t.Errorf("behind messages that cannot be sent: %+v", got)
	}
	change(t, db, "delete from notify_queue where message_id < 0")
	change(t, db, "update notify_queue q set contents_until = m.contents_until from notify_messages m "+
		"where m.message_id = q.message_id")
}

func TestCommandsOfABatchSeeEachOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	as := func(state string, m *notify.Message) *notify.Message {
		change(t, db, "update notify_queue set state = $2, due_at = null, failure_code = 'x' where message_id = $1",
			m.ID,
			state)
		return m
	}
	both := func(first, second commit.Command[*notify.Tx]) commit.Result {
		t.Helper()
		var submissions []flow.Submission
		for _, c := range []commit.Command[*notify.Tx]{first, second} {
			submissions = append(submissions,
				flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(c), Rows: 1, Bytes: 100})
		}
		r := p.engine.DoAll(t.Context(), submissions)
		if r[0].Err != nil {
			t.Fatal(r[0].Err)
		}
		return r[1]
	}
	dead := as("dead", p.mustSend(says("dead")))
	if r := both(&notify.RequeueCommand{Caller: caller, ID: dead.ID}, text(says("dead"))); r.Err != nil ||
		!r.Outcome.Existed || r.Outcome.Answer.(*notify.Message).State != notify.Queued {
		t.Errorf("repeat of a message that is requeued: %+v", r)
	}
	waits := p.mustSend(says("waits"), bizNo("waits"))
	if r := both(&notify.CancelCommand{Caller: caller, ID: waits.ID},
		text(says("waits"), bizNo("waits"))); r.Err != nil ||
		!r.Outcome.Existed ||
		r.Outcome.Answer.(*notify.Message).State != notify.Cancelled {
		t.Errorf("repeat of a message that is cancelled, by biz_no: %+v", r)
	}
	other := p.mustSend(says("other"))
	if r := both(&notify.CancelCommand{Caller: caller, ID: other.ID}, text(says("other"))); r.Err != nil ||
		r.Outcome.Existed {
		t.Errorf("equal send after a cancel: %+v", r)
	}
	lost := as("unknown", p.mustSend(says("lost")))
	if r := both(&notify.ReportCommand{Caller: caller, ID: lost.ID},
		&notify.RequeueCommand{Caller: caller, ID: lost.ID}); !fault.Is(r.Err, notify.NotParked) {
		t.Errorf("requeue after a report: %+v", r)
	}
	late := p.mustSend(says("late"))
	sent(t, db, late.ID)
	r := both(&notify.ReportCommand{Caller: caller, ID: late.ID},
		&notify.ReportCommand{Caller: caller, ID: late.ID, Delivered: true})
	if r.Err != nil || r.Outcome.Existed || p.state(late.ID).State != notify.Delivered {
		t.Errorf("two reports: %+v", r)
	}
}

// Parked messages are cleaned from the queue when their content is gone.
func TestParkedMessagesWithoutContentAreCleaned(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	park := func(state string, days int) int64 {
		m := p.mustSend(says(fmt.Sprint(state, days)))
		change(t, db, `insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, failure_code,
			at, instance)
			select tenant_id, message_id, month, 1, $2, 1, 'refused', now(), 'test' from notify_queue
			where message_id = $1`, m.ID, state)
		change(t, db, "update notify_queue set state = $2, due_at = null, failure_code = 'refused' "+
			"where message_id = $1", m.ID,
			state)
		change(t, db, fmt.Sprintf(`begin; set local session_replication_role = replica;
			delete from notify_contents where message_id = %[1]d;
			update notify_messages set contents_until = (now() at time zone 'UTC')::date - %[2]d
				where message_id = %[1]d;
			update notify_queue set contents_until = (now() at time zone 'UTC')::date - %[2]d where message_id = %[1]d;
			commit`, m.ID, days))
		return m.ID
	}
	dead, unknown := park("dead", 32), park("unknown", 31)
	kept := park("dead", 29)
	cleaner := &clean.Cleaner{Pool: p.pool, Metrics: clean.NewMetrics(nil)}
	for _, table := range notify.Tables() {
		if _, err := cleaner.Clean(t.Context(), &table); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, "select count(*) from notify_queue"); n != 1 || p.state(kept).State != notify.Dead {
		t.Errorf("%d rows are left", n)
	}
	if m := p.state(dead); m.State != notify.Dead || m.FailureCode != "refused" ||
		p.state(unknown).State != notify.Unknown {
		t.Errorf("%+v", m.Message)
	}
	if n := count(t, db, "select count(*) from audit.notifications where state in ('dead', 'unknown')"); n != 3 {
		t.Errorf("the audit view shows %d", n)
	}
	if _, err := p.do(&notify.RequeueCommand{Caller: caller, ID: dead}); !fault.Is(err, notify.ContentGone) {
		t.Errorf("requeue: %v", err)
	}
	if _, err := p.cancel(dead); err != nil || p.state(dead).State != notify.Cancelled {
		t.Errorf("cancel: %v", err)
	}
	if _, err := p.report(unknown, true); err != nil || p.state(unknown).State != notify.Delivered {
		t.Errorf("report: %v", err)
	}
}

func TestReportsSettleUnknownMessages(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	m := p.mustSend(says("sent"))
	sent(t, db, m.ID)
	if got := p.state(m.ID); got.State != notify.Sent || got.Provider != "file" {
		t.Errorf("sent: %+v", got.Message)
	}
	for i, c := range []struct {
		delivered, existed bool
		want               string
	}{{false, false, notify.Undelivered}, {false, true, notify.Undelivered}, {true, false, notify.Delivered}, {true,
		true, notify.Delivered}} {
		out, err := p.report(m.ID, c.delivered)
		if err != nil || out.Existed != c.existed || out.Answer.(*notify.Message).State != c.want ||
			p.state(m.ID).State != c.want {
			t.Errorf("%d: %+v, %v", i, out, err)
		}
	}
	if got := p.state(m.ID); len(got.Events) != 3 {
		t.Errorf("%+v", got.Events)
	}
	by := p.mustSend(says("by the provider's number"))
	sent(t, db, by.ID)
	out, err := p.do(&notify.ReportCommand{Caller: caller, Provider: "file", ProviderMessageID: fmt.Sprint("f", by.ID),
		Delivered: true})
	if err != nil || out.Answer.(*notify.Message).ID != by.ID || p.state(by.ID).State != notify.Delivered {
		t.Errorf("by provider_message_id: %+v, %v", out, err)
	}
	if _, err := p.do(&notify.ReportCommand{Caller: caller, Provider: "other",
		ProviderMessageID: fmt.Sprint("f", by.ID)}); !fault.Is(err, notify.NotFound) {
		t.Errorf("provider_message_id of another provider: %v", err)
	}
	for state, c := range map[string]struct {
		delivered bool
		want      string
	}{"unknown": {false, notify.Undelivered}, "dead": {true, notify.Delivered}, "unknown ": {true,
		notify.Delivered}, "failed": {false, notify.Failed},
		"sending": {true, notify.Delivered}} {
		m := p.mustSend(says("is " + state))
		change(t, db, `update notify_queue set state = trim($2), due_at = case when trim($2) in ('failed', 'sending')
			then now() end where message_id = $1`, m.ID, state)
		out, err := p.report(m.ID, c.delivered)
		if err != nil || out.Answer.(*notify.Message).State != c.want || p.state(m.ID).State != c.want {
			t.Errorf("%s: %+v, %v; now %s", state, out, err, p.state(m.ID).State)
		}
	}
}

func TestEqualReportsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	processes := []*process{start(t, db, 0), start(t, db, 0)}
	const messages = 40
	var first atomic.Int32
	for i := range messages {
		m := processes[0].mustSend(says(fmt.Sprint(i)))
		sent(t, db, m.ID)
		var wg sync.WaitGroup
		for _, p := range processes {
			wg.Go(func() {
				if out, err := p.report(m.ID, true); err != nil {
					t.Error(err)
				} else if !out.Existed {
					first.Add(1)
				}
			})
		}
		wg.Wait()
	}
	if n := count(t, db, "select count(*) from notify_events where kind = 'delivered'"); n != messages ||
		first.Load() != messages {
		t.Errorf("%d events, %d reports did not exist before", n, first.Load())
	}
}

func TestNewMessagesAreHandedOverAfterCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 2)
	later := func(p *notify.Params) { p.NotBefore = time.Now().Add(time.Hour) }
	before := time.Now()
	p.mustSend(says("later"), later)
	one := p.mustSend(says("one"), func(p *notify.Params) { p.OnUnknown, p.Priority = notify.Resend, notify.High })
	p.mustSend(says("two"))
	p.mustSend(says("three")) // no room is left
	if len(p.hand.taken) != 2 || p.hand.due[1] != 1 {
		t.Fatalf("%d handed over, due announced %d times", len(p.hand.taken), p.hand.due[1])
	}
	j := p.hand.taken[0]
	if j.ID != one.ID || j.Recipient != "+8613812345678" || j.Content.Text != "one" || j.Park || j.Fence != 1 ||
		j.Attempt != 1 || j.Priority != 0 ||
		j.Until.Before(before.Add(send.Lease)) || j.Until.After(time.Now().Add(send.Lease)) ||
		!j.GiveUpAt.Equal(one.GiveUpAt) {
		t.Errorf("%+v", j)
	}
	if n := count(t, db, `select count(*) from notify_queue where holder = 'test' and fence = 1 and attempts = 1
		and due_at > now() + interval '50 s'`); n != 2 {
		t.Errorf("%d are leased", n)
	}
	if n := count(t, db, `select count(*) from notify_queue where holder is null and fence = 0 and attempts = 0
		and due_at <= now()`); n != 1 {
		t.Errorf("%d are due", n)
	}
	dry := flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(text(says("dry"))), Rows: 1, Bytes: 100,
		DryRun: true}
	p.hand.room = 5
	if _, err := p.engine.Do(t.Context(), dry); err != nil || len(p.hand.dropped) != 1 || len(p.hand.taken) != 2 ||
		p.hand.reserved != 2 {
		t.Errorf("dry run: %v, %d dropped, %d handed over, %d reserved", err, len(p.hand.dropped), len(p.hand.taken),
			p.hand.reserved)
	}
}

func TestWithoutAMasterKeyMessagesAreRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.New(t).AllDSN)
	e := flow.NewEngine(pool, "test", nil, nil)
	if _, err := e.Do(t.Context(), flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(text()), Rows: 1,
		Bytes: 100}); err == nil ||
		fault.Of(err) == nil || fault.Of(err).Reason.Name != "SECRET_NOT_CONFIGURED" {
		t.Error(err)
	}
}
