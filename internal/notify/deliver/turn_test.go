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

// told is a sender that notes who it is told may have sent a message, and asks another provider than the first.
type told struct {
	mu    sync.Mutex
	heard map[int64]string
	turn  func(m *send.Message) error
}

func (s *told) Send(_ context.Context, m *send.Message) (send.Receipt, error) {
	err := s.turn(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heard[m.ID] = fmt.Sprint(m.LastProvider, " ", m.Unsure, " ", err)
	return send.Receipt{Provider: "b"}, nil
}

// What a dead process had it may have sent: by the first provider, or by the one that is written down.
func TestWhatADeadProcessHadIsAskedOfNobodyElse(t *testing.T) {
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
	// which had surely not sent it when b was to be asked, and wrote nothing down
	change(ids[1], "holder = 'dead', provider = 'a'")
	change(ids[2], "holder = 'dead', provider = 'b', unsure = true")
	change(ids[3], "provider = 'a', state = 'failed'")
	change(ids[4], "provider = 'a', unsure = true, state = 'failed'")
	s := &told{heard: map[int64]string{}, turn: func(*send.Message) error { return nil }}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: s} })
	o.waitFor(0, 20*time.Second, "notify_queue")
	for i, want := range []string{" true <nil>", " true <nil>", "b true <nil>", "a false <nil>", "a true <nil>",
		" false <nil>"} {
		if got := s.heard[ids[i]]; got != want {
			t.Errorf("message %d was asked for with %q, not %q", i, got, want)
		}
	}
}

// Before another provider is asked it stands in the queue; who has lost the message does not ask.
func TestATurnIsWrittenDownUnderTheFence(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	o := newOutbox(t, db)
	ids := o.put(2, message{})
	var seen []string
	s := &told{heard: map[int64]string{}}
	s.turn = func(m *send.Message) error {
		if m.ID == ids[1] {
			if _, err := o.pool.Exec(context.Background(),
				"update notify_queue set fence = fence + 1 where message_id = $1", m.ID); err != nil {
				return err
			}
		}
		err := m.Turn(context.Background(), "b")
		if err == nil {
			n := o.count("notify_queue where message_id = $1 and provider = 'b' and unsure", m.ID)
			s.mu.Lock()
			defer s.mu.Unlock()
			seen = append(seen, fmt.Sprint(m.ID == ids[0], n))
		}
		return err
	}
	run(t, db, "", func(c *deliver.Config) { c.Senders = map[send.Channel]send.Sender{send.Webhook: s} })
	o.waitFor(0, 20*time.Second, "notify_queue where message_id = $1", ids[0])
	o.waitFor(1, 20*time.Second, "notify_queue where message_id = $1", ids[1])
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
