package deliver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// recordingSender is a sender that records Unsure and LastProvider, and calls turn before it answers as another
// provider.
type recordingSender struct {
	mu    sync.Mutex
	heard map[int64]string
	turn  func(m *send.Message) error
}

func (s *recordingSender) Send(_ context.Context, m *send.Message) (send.Receipt, error) {
	err := s.turn(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[m.ID] = fmt.Sprint(m.LastProvider, " ", m.Unsure, " ", err)
	return send.Receipt{Provider: "b"}, nil
}

// A message of a crashed process may have been sent by the first provider, or by the one that is recorded.
func TestMessageOfACrashedProcessGoesToTheSameProvider(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	ids := o.put(6, message{})
	change := func(id int64, set string) {
		if _, err := o.pool.Exec(t.Context(),
			"update notify_queue set attempts = 1, due_at = now() - interval '1 s', "+set+" where message_id = $1",
			id); err != nil {
			t.Fatal(err)
		}
	}
	change(ids[0], "holder = 'dead'")
	// a had failed, and b was not recorded before the crash
	change(ids[1], "holder = 'dead', provider = 'a'")
	change(ids[2], "holder = 'dead', provider = 'b', unsure = true")
	change(ids[3], "provider = 'a', state = 'failed'")
	change(ids[4], "provider = 'a', unsure = true, state = 'failed'")
	s := &recordingSender{heard: map[int64]string{}, turn: func(*send.Message) error { return nil }}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: s} })
	o.waitFor(0, "notify_queue")
	for i, want := range []string{" true <nil>", " true <nil>", "b true <nil>", "a false <nil>", "a true <nil>",
		" false <nil>"} {
		if got := s.heard[ids[i]]; got != want {
			t.Errorf("message %d was sent with %q, want %q", i, got, want)
		}
	}
}

// Another provider is recorded in the queue before it is asked. A process that has lost the message does not ask.
func TestProviderIsRecordedUnderTheFence(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	ids := o.put(2, message{})
	var seen []string
	s := &recordingSender{heard: map[int64]string{}}
	s.turn = func(m *send.Message) error {
		if m.ID == ids[1] {
			if _, err := o.pool.Exec(context.Background(),
				"update notify_queue set fence = fence + 1 where message_id = $1", m.ID); err != nil {
				return err
			}
		}
		err := m.MarkProvider(context.Background(), "b")
		if err == nil {
			n := o.count("notify_queue where message_id = $1 and provider = 'b' and unsure", m.ID)
			s.mu.Lock()
			defer s.mu.Unlock()
			seen = append(seen, fmt.Sprint(m.ID == ids[0], n))
		}
		return err
	}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: s} })
	o.waitFor(0, "notify_queue where message_id = $1", ids[0])
	o.waitFor(1, "notify_queue where message_id = $1", ids[1])
	soon := func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.heard[ids[1]] != "" }
	for end := time.Now().Add(20 * time.Second); !soon() && time.Now().Before(end); {
		o.count("notify_queue")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(seen, []string{"true 1"}) ||
		!strings.Contains(s.heard[ids[1]], "another process has the message") {
		t.Errorf("%v, %v", seen, s.heard)
	}
}
