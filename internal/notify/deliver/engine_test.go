package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// refusing is a command that sends a message and then fails.
type refusing struct{ notify.SendCommand }

var errRefused = errors.New("refused")

func (r *refusing) Apply(tx *notify.Tx) (any, error) {
	if _, err := r.SendCommand.Apply(tx); err != nil {
		return nil, err
	}
	return nil, errRefused
}

// Two processes with little room accept and deliver messages. Some are handed over in memory, the rest are polled, and
// each is sent once. A refused command sends nothing.
func TestAcceptedMessagesArriveOnce(t *testing.T) {
	t.Parallel()
	db, s := pgtest.New(t), newSink(t)
	s.answer = slowly
	o := newOutbox(t, db)
	var engines []*flow.Engine
	var pools []*running
	for n := range 2 {
		instance := fmt.Sprint("engine-", n)
		p := run(t, db, s.URL, func(c *deliver.Config) { c.Instance, c.Room = instance, 40 })
		e := flow.NewSendingEngine(pgtest.Pool(t, db.AllDSN), instance, nil, nil,
			&notify.Outbox{Master: secret.New(), Handoff: p, Instance: instance, Metrics: notify.NewMetrics(nil)})
		t.Cleanup(func() {
			if err := e.Drain(context.Background()); err != nil {
				t.Error(err)
			}
		})
		engines, pools = append(engines, e), append(pools, p)
	}
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		sent []int64
	)
	for caller := range 40 {
		all.Go(func() {
			for n := range 25 {
				c := notify.SendCommand{Caller: commit.Caller{Tenant: 1, Principal: "test", RequestID: "test"},
					Params: notify.Params{Channel: send.Webhook,
						Recipient: "endpoint", BusinessType: "test", Priority: int16(n % 3),
						Content: send.Content{Type: "test", Text: fmt.Sprint(caller, n)}}}
				work := flow.Submission{Tenant: 1, RequestID: "test", Command: flow.Notify(&c), Rows: 4, Bytes: 512}
				refuse := n%5 == 0
				if refuse {
					work.Command = flow.Notify(&refusing{c})
				}
				out, err := engines[(caller+n)%2].Do(t.Context(), work)
				if refuse {
					if err == nil {
						t.Error("a refused command succeeded")
					}
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				sent = append(sent, out.Answer.(*notify.Message).ID)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	o.waitFor(0, "notify_queue")
	s.once(t, sent)
	if messages, _ := s.count(); messages != len(sent) || len(sent) != 800 {
		t.Errorf("%d of %d messages arrived", messages, len(sent))
	}
	handed := o.count("notify_events where kind = 'sent' and attempt = 1")
	if handed != 800 || o.count("notify_events") != 800 {
		t.Error(o.states())
	}
	for _, p := range pools { // all reserved room has been released
		for range 20 { // half of 40, the most for one tenant
			for end := time.Now().Add(20 * time.Second); !p.Reserve(1, send.Webhook); pass(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("room was not released")
				}
			}
		}
	}
}
