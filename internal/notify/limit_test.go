package notify_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func setLimit(t *testing.T, db *pgtest.DB, l notify.Limit) {
	t.Helper()
	if _, err := notify.PutLimit(t.Context(), pgtest.Pool(t, db.AdminDSN), 1, l); err != nil {
		t.Fatal(err)
	}
}

func TestLimitHoldsAcrossProcesses(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	setLimit(t, db, notify.Limit{Channel: send.SMS, Scope: notify.PerTenant, Window: time.Hour, MaxMessages: 23})
	setLimit(t, db, notify.Limit{Channel: notify.AllChannels, Scope: notify.PerRecipient, Window: 24 * time.Hour,
		MaxMessages: 7})
	processes := []*process{start(t, db, 0), start(t, db, 0)}
	var accepted, refused [6]atomic.Int32
	var wg sync.WaitGroup
	for i := range 120 {
		wg.Go(func() {
			_, _, err := processes[i%2].send(says(fmt.Sprint(i)), to(fmt.Sprint("+861381234567", i%6)))
			switch {
			case err == nil:
				accepted[i%6].Add(1)
			case fault.Is(err, notify.Limited) && fault.Of(err).RetryAfter > 0:
				refused[i%6].Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sum := int32(0)
	for i := range accepted {
		if n := accepted[i].Load(); n > 7 {
			t.Errorf("%d accepted for one recipient", n)
		}
		sum += accepted[i].Load()
	}
	if n := count(t, db, "select count(*) from notify_messages"); sum != 23 || n != 23 {
		t.Errorf("%d accepted, %d stored", sum, n)
	}
	if _, existed, err := processes[0].send(says("mail"),
		func(p *notify.Params) { p.Channel, p.Recipient = send.Email, "ada@example.com" }); err != nil || existed {
		t.Errorf("an SMS limit refused an e-mail: %v", err)
	}
}

func TestScopesCountSeparately(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 0)
	n := 0
	for scope, c := range map[string]struct{ same, other func(*notify.Params) }{
		notify.PerRecipient: {to("13812345678"), to("13812345679")},
		notify.PerPrefix:    {to("13812340000"), to("13899990000")},
		notify.PerIP: {func(p *notify.Params) { p.ClientIP = "2001:db8:1:2::1" },
			func(p *notify.Params) { p.ClientIP = "2001:db8:1:3::1" }},
		notify.PerChannel: {func(*notify.Params) {},
			func(p *notify.Params) { p.Channel, p.Recipient = send.Email, "a@example.com" }},
	} {
		change(t, db, "delete from notify_limits")
		change(t, db, "delete from notify_counters")
		setLimit(t, db, notify.Limit{Channel: notify.AllChannels, Scope: scope, Window: time.Hour, MaxMessages: 1})
		p = start(t, db, 0) // with an empty cache of limits
		next := func(f ...func(*notify.Params)) error {
			n++
			_, _, err := p.send(append(f, says(fmt.Sprint(n)))...)
			return err
		}
		if err := next(c.same); err != nil {
			t.Errorf("%s: the first: %v", scope, err)
		}
		if err := next(c.same); !fault.Is(err, notify.Limited) || fault.Of(err).Metadata["scope"] != scope {
			t.Errorf("%s: the second: %v", scope, err)
		}
		if err := next(c.other); err != nil {
			t.Errorf("%s: another: %v", scope, err)
		}
	}
	// A call without a client IP is not counted by it. Addresses of one /64 count as one.
	setLimit(t, db, notify.Limit{Channel: send.SMS, Scope: notify.PerIP, Window: time.Hour, MaxMessages: 0})
	change(t, db, "delete from notify_limits where scope <> 'ip' or channel = '*'")
	p = start(t, db, 0)
	if _, _, err := p.send(says("no address")); err != nil {
		t.Error(err)
	}
	if _, _, err := p.send(says("an address"), func(p *notify.Params) { p.ClientIP = "192.0.2.1" }); !fault.Is(err,
		notify.Limited) || fault.Of(err).RetryAfter != 0 {
		t.Errorf("limit 0: %v", err)
	}
}

// A repeat is answered even when the limit is reached, and does not count.
func TestRepeatDoesNotCount(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	setLimit(t, db, notify.Limit{Channel: notify.AllChannels, Scope: notify.PerTenant, Window: time.Hour,
		MaxMessages: 2})
	p := start(t, db, 0)
	p.mustSend()
	for range 5 {
		if _, existed, err := p.send(); err != nil || !existed {
			t.Errorf("repeat: %v", err)
		}
	}
	p.mustSend(says("second"))
	if _, _, err := p.send(says("third")); !fault.Is(err, notify.Limited) {
		t.Error(err)
	}
	if n := count(t, db, "select sum(c)::integer from notify_counters, unnest(counts) c"); n != 2 {
		t.Errorf("counters add up to %d", n)
	}
}

// made is a command that sends a message whose content is known only when the command is applied, like an Execute with
// references.
type made struct {
	says   func() string
	biz    string
	sample *notify.SendCommand
	last   *notify.SendCommand
	runs   int
	fails  bool // after the send
}

func (c *made) Need(tx *flow.Tx) {
	c.sample = text(says("sample"))
	c.sample.Need(tx.Messages())
	if c.last != nil {
		c.last.Need(tx.Messages())
	}
}

func (c *made) Apply(tx *flow.Tx) (any, error) {
	c.runs++
	c.last = text(says(c.says()), bizNo(c.biz))
	c.last.Need(tx.Messages())
	answer, err := c.last.Apply(tx.Messages())
	if c.fails && err == nil {
		return nil, notify.NotParked.New("refused after the send")
	}
	return answer, err
}

func TestRepeatIsRecognisedWhenContentIsResolvedInTheBatch(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	setLimit(t, db, notify.Limit{Channel: notify.AllChannels, Scope: notify.PerTenant, Window: time.Hour,
		MaxMessages: 2})
	p := start(t, db, 0)
	do := func(c *made) commit.Outcome {
		out, err := p.engine.Do(t.Context(),
			flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 1, Bytes: 100})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	five := func() string { return "balance 5" }
	first, again := &made{says: five}, &made{says: five}
	if out := do(first); out.Existed || first.runs != 1 {
		t.Errorf("existed %v, %d runs", out.Existed, first.runs)
	}
	if out := do(again); !out.Existed || again.runs != 2 { // the first run violated the unique constraint
		t.Errorf("existed %v, %d runs", out.Existed, again.runs)
	}
	n := 0
	fresh := &made{says: func() string { n++; return fmt.Sprint("transfer ", n) }}
	if out := do(fresh); out.Existed || fresh.runs != 1 {
		t.Errorf("existed %v, %d runs", out.Existed, fresh.runs)
	}
	if n := count(t, db, "select count(*) from notify_messages"); n != 2 {
		t.Errorf("%d messages", n)
	}
	if _, err := p.engine.Do(t.Context(),
		flow.Submission{Tenant: 1, RequestID: "r", Command: &made{says: func() string { return "third" }}, Rows: 1,
			Bytes: 100}); !fault.Is(err, notify.Limited) {
		t.Errorf("over the limit: %v", err)
	}
}

// The message of a refused command is rolled back: equal messages of later commands in the batch do not repeat it.
func TestRepeatOfARolledBackMessageIsNone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, 10)
	submissions := make([]flow.Submission, 3)
	for i := range submissions {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r",
			Command: &made{says: func() string { return "the same" }, fails: i == 0}, Rows: 1, Bytes: 100}
	}
	r := p.engine.DoAll(t.Context(), submissions)
	if !fault.Is(r[0].Err, notify.NotParked) || r[1].Err != nil || r[1].Outcome.Existed || r[2].Err != nil ||
		!r[2].Outcome.Existed {
		t.Errorf("%+v", r)
	}
	if n := count(t, db, "select count(*) from notify_messages m "+
		"join notify_fingerprints f using (message_id)"); n != 1 || len(p.hand.taken) != 1 {
		t.Errorf("%d messages, %d handed over", n, len(p.hand.taken))
	}
	for i := range submissions {
		submissions[i].Command = &made{says: func() string { return "with a number" }, biz: "late", fails: i == 0}
	}
	r = p.engine.DoAll(t.Context(), submissions)
	if !fault.Is(r[0].Err, notify.NotParked) || r[1].Err != nil || r[1].Outcome.Existed || r[2].Err != nil ||
		!r[2].Outcome.Existed {
		t.Errorf("%+v", r)
	}
	if n := count(t, db, "select count(*) from notify_names n join notify_messages m using (message_id) "+
		"where m.biz_no = 'late'"); n != 1 {
		t.Errorf("%d names", n)
	}
}
