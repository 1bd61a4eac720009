package notify_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// world is one of two databases with the same history, except for message ids.
type world struct {
	*process
	db  *pgtest.DB
	ids []int64 // of messages, in order of creation
}

// step is a command that names messages by their index in world.ids.
type step struct {
	what             string
	text, biz, to    string
	again, delivered bool // again: repeat_window 0; delivered: what a report says
	at               int
	all              []step // of "send all"
}

func (s step) in(w *world) commit.Command[*notify.Tx] {
	switch s.what {
	case "cancel":
		return &notify.CancelCommand{Caller: caller, ID: w.ids[s.at]}
	case "requeue":
		return &notify.RequeueCommand{Caller: caller, ID: w.ids[s.at]}
	case "requeue all":
		return &notify.RequeueAllCommand{Caller: caller}
	case "report":
		return &notify.ReportCommand{Caller: caller, ID: w.ids[s.at], Delivered: s.delivered}
	}
	if s.what == "send" {
		return s.send()
	}
	all := &notify.SendAllCommand{}
	for _, x := range s.all {
		all.Sends = append(all.Sends, x.send())
	}
	return all
}

func (s step) send() *notify.SendCommand {
	c := text(says(s.text), bizNo(s.biz), to(s.to))
	if s.again {
		window(0)(&c.Params)
	}
	return c
}

// describe describes the result of a step, with indexes for ids.
func (w *world) describe(r commit.Result) string {
	if f := fault.Of(r.Err); f != nil {
		return f.Reason.Name + " " + f.Metadata["message_state"] + f.Metadata["state"] + f.Metadata["item"]
	}
	switch a := r.Outcome.Answer.(type) {
	case *notify.Message:
		return w.describeMessage(a, r.Outcome.Existed)
	case []notify.Accepted:
		var all []string
		for _, x := range a {
			all = append(all, w.describeMessage(x.Message, x.Existed))
		}
		return strings.Join(all, ", ")
	}
	return fmt.Sprint(r.Outcome.Answer, r.Err)
}

func (w *world) describeMessage(m *notify.Message, existed bool) string {
	if !slices.Contains(w.ids, m.ID) {
		w.ids = append(w.ids, m.ID)
	}
	return fmt.Sprintf("%d is %s, existed %v", slices.Index(w.ids, m.ID), m.State, existed)
}

func TestBatchEqualsSerialExecution(t *testing.T) {
	t.Parallel()
	var together, apart world
	for _, w := range []*world{&together, &apart} {
		w.db = pgtest.New(t)
		setLimit(t, w.db, notify.Limit{Channel: notify.AllChannels, Scope: notify.PerRecipient, Window: 24 * time.Hour,
			MaxMessages: 22})
		w.process = start(t, w.db, 0)
	}
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	random := func(round int, what string) step {
		return step{what: what, text: pick("a", "b", "c", fmt.Sprint("t", round)),
			biz: pick("", "", "1", "2", "3", fmt.Sprint(round)),
			to:  pick("13812345678", "13912345678", "13712345678"), again: r.IntN(4) == 0, delivered: r.IntN(2) == 0}
	}
	for round := range 80 {
		var steps []step
		var submissions []flow.Submission
		for range 2 + r.IntN(6) {
			s := random(round, pick("send", "send", "send", "send all", "cancel", "requeue", "requeue all", "report"))
			if n := len(together.ids); n > 0 {
				s.at = max(0, n-1-r.IntN(6))
			} else {
				s.what = "send"
			}
			for range 1 + r.IntN(3) {
				s.all = append(s.all, random(round, "send"))
			}
			steps = append(steps, s)
			submissions = append(submissions,
				flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Notify(s.in(&together)), Rows: 1, Bytes: 100})
		}
		for i, got := range together.engine.DoAll(t.Context(), submissions) {
			out, err := apart.do(steps[i].in(&apart))
			a, b := together.describe(got), apart.describe(commit.Result{Outcome: out, Err: err})
			if a != b {
				t.Fatalf("round %d: %+v of %+v: in a batch %s, alone %s", round, steps[i], steps, a, b)
			}
		}
		as := pick("", "state = 'dead', due_at = null, failure_code = 'x'",
			"state = 'unknown', due_at = null, failure_code = 'x'",
			"state = 'failed', unsure = true, failure_code = 'x'", "sent")
		at := r.IntN(len(apart.ids))
		for _, w := range []*world{&together, &apart} {
			switch as {
			case "":
			case "sent":
				sent(t, w.db, w.ids[at])
			default:
				change(t, w.db, "update notify_queue set "+as+" where message_id = $1 and due_at is not null",
					w.ids[at])
			}
		}
	}
	for at := range apart.ids {
		a, b := together.state(together.ids[at]), apart.state(apart.ids[at])
		if a.State != b.State || len(a.Events) != len(b.Events) {
			t.Errorf("message %d: in batches %s after %d events, alone %s after %d", at, a.State, len(a.Events),
				b.State, len(b.Events))
		}
	}
	for _, what := range []string{"notify_names", "notify_fingerprints", "notify_queue where state = 'queued'",
		"notify_counters c, unnest(c.counts) n, generate_series(1, n)"} {
		if a, b := count(t, together.db, "select count(*) from "+what),
			count(t, apart.db, "select count(*) from "+what); a != b || a == 0 {
			t.Errorf("%s: %d in batches, %d alone", what, a, b)
		}
	}
	t.Logf("%d messages", len(apart.ids))
}
