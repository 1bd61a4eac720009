package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "p", RequestID: "r"}

var master, _ = secret.Parse("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")

// process is an engine with an outbox of its own, like a server process.
type process struct {
	*testing.T
	engine *flow.Engine
	hand   *handoff
	pool   *pgxpool.Pool
}

// handoff is a send.Handoff that records its calls.
type handoff struct {
	mu       sync.Mutex
	room     int
	reserved int
	taken    []*send.Job
	dropped  []*send.Job
	due      map[int32]int
}

func (h *handoff) Reserve(int32, send.Channel) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reserved == h.room {
		return false
	}
	h.reserved++
	return true
}

func (h *handoff) Take(jobs []*send.Job) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taken = append(h.taken, jobs...)
}

func (h *handoff) Drop(jobs []*send.Job) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropped = append(h.dropped, jobs...)
	h.reserved -= len(jobs)
}

func (h *handoff) Due(tenant int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.due == nil {
		h.due = map[int32]int{}
	}
	h.due[tenant]++
}

func start(t *testing.T, db *pgtest.DB, room int) *process {
	t.Helper()
	pool, err := pg.Open(t.Context(), db.AllDSN, 6)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{T: t, hand: &handoff{room: room}, pool: pool}
	p.engine = flow.NewSendingEngine(pool, "test", nil, slog.New(slog.DiscardHandler),
		&notify.Outbox{Master: master, Handoff: p.hand, Instance: "test", Region: "CN",
			Metrics: notify.NewMetrics(nil)})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := p.engine.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return p
}

func (p *process) do(c commit.Command[*notify.Tx]) (commit.Outcome, error) {
	return p.engine.Do(context.Background(),
		flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(c), Rows: 1, Bytes: 100})
}

// send sends text(change...) and returns whether the message existed.
func (p *process) send(change ...func(*notify.Params)) (m *notify.Message, existed bool, err error) {
	out, err := p.do(text(change...))
	if err != nil {
		return nil, false, err
	}
	return out.Answer.(*notify.Message), out.Existed, nil
}

func (p *process) mustSend(change ...func(*notify.Params)) *notify.Message {
	p.Helper()
	m, existed, err := p.send(change...)
	if err != nil || existed {
		p.Fatalf("send: existed %v, %v", existed, err)
	}
	return m
}

// text returns an SMS, with the changes applied.
func text(change ...func(*notify.Params)) *notify.SendCommand {
	c := &notify.SendCommand{Caller: caller,
		Params: notify.Params{Channel: send.SMS, Recipient: "138 1234 5678", Priority: notify.Normal,
			Content: send.Content{Text: "hello"}}}
	for _, f := range change {
		f(&c.Params)
	}
	return c
}

func bizNo(s string) func(*notify.Params) { return func(p *notify.Params) { p.BizNo = s } }
func says(s string) func(*notify.Params)  { return func(p *notify.Params) { p.Content.Text = s } }
func to(s string) func(*notify.Params)    { return func(p *notify.Params) { p.Recipient = s } }
func window(d time.Duration) func(*notify.Params) {
	return func(p *notify.Params) { p.RepeatWindow = &d }
}

func count(t *testing.T, db *pgtest.DB, query string, args ...any) (n int) {
	t.Helper()
	if err := pgtest.Pool(t, db.SuperDSN).QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func change(t *testing.T, db *pgtest.DB, query string, args ...any) {
	t.Helper()
	if _, err := pgtest.Pool(t, db.SuperDSN).Exec(t.Context(), query, args...); err != nil {
		t.Fatal(err)
	}
}

func TestRepeatIsAnsweredWithTheFirstMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 100)
	first := p.mustSend()
	for _, same := range []string{"+8613812345678", "0086 138-1234-5678"} {
		if m, existed, err := p.send(to(same)); err != nil || !existed || m.ID != first.ID || m.State != notify.Queued {
			t.Errorf("repeat to %s: %+v, existed %v, %v", same, m, existed, err)
		}
	}
	p.mustSend(says("another"))
	p.mustSend(to("13900000000"))
	p.mustSend(func(p *notify.Params) { p.BusinessType = "other" })
	p.mustSend(window(0))
	mail := func(p *notify.Params) { p.Channel, p.Recipient = send.Email, "Ada@Example.com" }
	letter := p.mustSend(mail)
	if m, existed, err := p.send(mail, to("ada@example.COM")); err != nil || !existed || m.ID != letter.ID {
		t.Errorf("same address in another case: existed %v, %v", existed, err)
	}
	hook := func(p *notify.Params) {
		p.Channel, p.Recipient, p.Content = send.Webhook, "shop", send.Content{Type: "order.paid", Text: "{}"}
	}
	p.mustSend(hook)
	p.mustSend(hook) // the channel has no default window
	change(t, db, "update notify_fingerprints set expires_at = now()")
	if m := p.mustSend(); m.ID == first.ID {
		t.Error("a repeat was recognised after the window")
	}
	if n := count(t, db, "select count(*) from notify_messages m join notify_queue using (tenant_id, message_id) "+
		"join notify_contents using (tenant_id, message_id)"); n != 9 {
		t.Errorf("%d messages, want 9", n)
	}
}

func TestBizNoNamesOneMessageForEver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	first := p.mustSend(bizNo("b1"))
	change(t, db, "delete from notify_fingerprints")
	if m, existed, err := p.send(bizNo("b1")); err != nil || !existed || m.ID != first.ID ||
		m.RecipientHint != "+86138****5678" {
		t.Errorf("repeat: %+v, existed %v, %v", m, existed, err)
	}
	for want, f := range map[string]func(*notify.Params){"content": says("x"), "recipient": to("13900000000"),
		"business_type": func(p *notify.Params) { p.BusinessType = "x" },
		"channel":       func(p *notify.Params) { p.Channel, p.Recipient = send.Push, "token" }} {
		_, _, err := p.send(bizNo("b1"), f)
		if !fault.Is(err, notify.BizNoExistsDifferent) || !strings.HasPrefix(fault.Of(err).Metadata["differs"], want) {
			t.Errorf("with another %s: %v, %v", want, err, fault.Of(err).Metadata)
		}
	}
	p.mustSend(bizNo("b2"), window(0))
	if m, existed, err := p.send(bizNo("b2"), window(0),
		func(p *notify.Params) { p.Priority = notify.High }); err != nil || !existed || m.Priority != notify.Normal {
		t.Errorf("another priority is not another message: existed %v, %v", existed, err)
	}
}

// The biz_no of a repeat names the first message for ever, also after the window.
func TestBizNoOfARepeatNamesTheFirstMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	first := p.mustSend(bizNo("b1"))
	for range 2 {
		if m, existed, err := p.send(bizNo("b2")); err != nil || !existed || m.ID != first.ID {
			t.Errorf("%+v, existed %v, %v", m, existed, err)
		}
		change(t, db, "delete from notify_fingerprints")
	}
	if _, _, err := p.send(bizNo("b2"), says("another")); !fault.Is(err, notify.BizNoExistsDifferent) {
		t.Errorf("another message: %v", err)
	}
	if got, err := notify.NewReader(p.pool, &notify.Outbox{Master: master}).Get(t.Context(), notify.Key{Tenant: 1},
		"b2", false); err != nil || got.ID != first.ID {
		t.Errorf("by its biz_no: %v", err)
	}
	var submissions []flow.Submission
	for _, n := range []string{"b3", "b4", "b4"} {
		submissions = append(submissions,
			flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(text(bizNo(n), says("batch"))), Rows: 1,
				Bytes: 100})
	}
	ids := map[int64]bool{}
	for i, r := range p.engine.DoAll(t.Context(), submissions) {
		if r.Err != nil || r.Outcome.Existed != (i > 0) {
			t.Fatalf("%d: %+v", i, r)
		}
		ids[r.Outcome.Answer.(*notify.Message).ID] = true
	}
	if n := count(t, db, "select count(*) from notify_names"); len(ids) != 1 || n != 4 {
		t.Errorf("%v, %d names", ids, n)
	}
}

func TestConcurrentEqualSendsMakeOneMessage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	processes := []*process{start(t, db, 1000), start(t, db, 1000)}
	const things, callers = 20, 16
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]map[int64]int{}
	for c := range callers {
		wg.Go(func() {
			for i := range things {
				n := fmt.Sprint((i + c) % things)
				for kind, f := range map[string][]func(*notify.Params){"biz " + n: {bizNo(n), says(n), window(0)},
					"print " + n: {says("p" + n)},
					"both " + n:  {bizNo("both" + n), says("both" + n)}} {
					m, existed, err := processes[c%2].send(f...)
					if err != nil {
						t.Errorf("%s: %v", kind, err)
						continue
					}
					mu.Lock()
					if ids[kind] == nil {
						ids[kind] = map[int64]int{}
					}
					if ids[kind][m.ID] += 0; !existed {
						ids[kind][m.ID]++
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for kind, made := range ids {
		for _, n := range made {
			if len(made) != 1 || n != 1 {
				t.Errorf("%s: %v", kind, made)
			}
		}
	}
	if n := count(t, db, "select count(*) from notify_messages"); n != 3*things {
		t.Errorf("%d messages, want %d", n, 3*things)
	}
	if n := len(processes[0].hand.taken) + len(processes[1].hand.taken); n != 3*things {
		t.Errorf("%d handed over, want %d", n, 3*things)
	}
	for _, p := range processes {
		if p.hand.reserved != len(p.hand.taken) {
			t.Errorf("%d reserved, %d handed over", p.hand.reserved, len(p.hand.taken))
		}
	}
}

func TestDeadOrCancelledMessageFreesItsFingerprint(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	first := p.mustSend()
	change(t, db, "update notify_queue set state = 'dead', due_at = null")
	second := p.mustSend()
	if _, existed, err := p.send(); err != nil || !existed {
		t.Errorf("no repeat of the second message: %v", err)
	}
	if _, err := p.do(&notify.CancelCommand{Caller: caller, ID: second.ID}); err != nil {
		t.Fatal(err)
	}
	third := p.mustSend()
	if first.ID == second.ID || second.ID == third.ID {
		t.Error("a dead or cancelled message was the first of a repeat")
	}
}

func TestInvalidWebhookContentIsRefused(t *testing.T) {
	t.Parallel()
	p := start(t, pgtest.New(t), 0)
	for name, content := range map[string]send.Content{
		"a type of two lines": {Type: "order\r\nX-Header: 1", Data: []byte(`{}`)},
		"no type":             {Data: []byte(`{}`)},
		"too much":            {Type: "order.paid", Data: make([]byte, webhook.MaxBody+1)},
	} {
		if m, _, err := p.send(func(x *notify.Params) {
			x.Channel, x.Recipient, x.Content = send.Webhook, "shop",
				content
		}); !fault.Is(err, fault.FieldInvalid) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
}
