package code_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code"
)

// last returns the id of the message with the newest code.
func (d *fixture) last() (id int64) {
	d.t.Helper()
	if err := d.super.QueryRow(d.t.Context(), `select max(message_id) from notify_codes`).Scan(&id); err != nil {
		d.t.Fatal(err)
	}
	return id
}

func (d *fixture) event(kind string) {
	d.t.Helper()
	d.exec(`insert into notify_events (tenant_id, message_id, month, event_id, kind, attempt, at, instance)
		select tenant_id, message_id, month, (select coalesce(max(event_id), 0) + 1
		from notify_events), $2, 1, now(), 't' from notify_messages where message_id = $1`, d.last(), kind)
}

// die returns functions by name. Each of them makes it certain that the last message does not arrive.
func (d *fixture) die() map[string]func() {
	return map[string]func(){
		"dead": func() {
			d.exec(`update notify_queue set state = 'dead', due_at = null, holder = null, failure_code = 'x'
				where message_id = $1`, d.last())
		},
		"cancelled": func() {
			if _, err := d.do(flow.Notify(&notify.CancelCommand{Caller: caller, ID: d.last()})); err != nil {
				d.t.Fatal(err)
			}
		},
		"undelivered": func() {
			d.event("sent")
			d.exec(`delete from notify_queue where message_id = $1`, d.last())
			d.event("undelivered")
		},
	}
}

func TestCodeOfADeadMessageIsVoid(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	number := 0
	for name, die := range d.die() {
		number++
		to := fmt.Sprintf("+86138123456%02d", number)
		d.mustSend(request(to, "123456"))
		die()
		if v := d.verify(to, "123456"); v != (code.Verified{TriesLeft: 4}) {
			t.Errorf("%s: the code is valid: %+v", name, v)
		}
		d.mustSend(request(to, "654321"))
		if v := d.verify(to, "654321"); !v.Valid {
			t.Errorf("%s: the next code is not valid: %+v", name, v)
		}
	}
}

// Codes of dead messages count for the daily limit. Otherwise an attacker could request any number of codes for a
// recipient whose messages bounce, without being noticed by a person.
func TestDeadCodesCountForTheDay(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	die := d.die()["dead"]
	for i := range code.DefaultDaily {
		if err := d.send(request(ada, "1234")); err != nil {
			t.Fatal(i, err)
		}
		die()
	}
	if err := d.send(request(ada, "1234")); !fault.Is(err, code.TooMany) {
		t.Errorf("above the daily limit: %v", err)
	}
}

// spent tries a code, and returns whether the day's limit of wrong tries is reached.
func (d *fixture) spent(c *code.VerifyCommand) bool {
	_, err := d.do(flow.Code(c))
	if err != nil && !fault.Is(err, code.TriesSpent) {
		d.t.Error(err)
	}
	return err != nil
}

func typed(kind, to, digits string) *code.VerifyCommand {
	c := try(to, digits)
	c.Type = kind
	return c
}

func TestDailyLimitOfWrongTriesCoversAllTypes(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	for i := range code.MaxWrong {
		kind := fmt.Sprint("type-", i/4) // fewer than void a code
		c := request(ada, "123456")
		c.Type = kind
		if i%4 == 0 {
			d.mustSend(c)
		}
		// Wrong tries count even if their command fails.
		if _, err := d.do(failing{flow.Code(typed(kind, ada, "000000")),
			broken[i%len(broken)].New("no")}); !fault.Is(err, broken[i%len(broken)]) {
			t.Fatal(i, err)
		}
		d.later(time.Minute)
	}
	_, err := d.do(flow.Code(typed("type-0", ada, "123456")))
	first := 24*time.Hour - code.MaxWrong*time.Minute // until the first wrong try is a day ago
	if f := fault.Of(err); !fault.Is(err, code.TriesSpent) || f.RetryAfter > first || f.RetryAfter < first-time.Minute {
		t.Errorf("the right code after %d wrong tries: %v", code.MaxWrong, err)
	}
	if err := d.send(request(ada, "123456")); !fault.Is(err, code.TriesSpent) {
		t.Errorf("a code was sent although no try is left: %v", err)
	}
	d.mustSend(request("+8613812345679", "123456"))
	if v := d.verify("+8613812345679", "123456"); !v.Valid {
		t.Error("another recipient is limited too")
	}
	d.later(first)
	d.mustSend(request(ada, "123456"))
	if d.spent(try(ada, "000000")) || !d.spent(try(ada, "123456")) {
		t.Error("a wrong try that is a day old must allow exactly one more")
	}
	d.later(time.Minute)
	if v := d.verify(ada, "123456"); !v.Valid {
		t.Error(v)
	}
}

func TestConcurrentWrongTriesKeepTheDailyLimit(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 2)
	var told atomic.Int32
	var wg sync.WaitGroup
	for i := range 3 * code.MaxWrong {
		wg.Go(func() {
			if !d.spent(typed(fmt.Sprint("type-", i%15), ada, "000000")) {
				told.Add(1)
			}
		})
	}
	wg.Wait()
	if n := told.Load(); n != code.MaxWrong {
		t.Errorf("%d wrong tries were answered, want %d", n, code.MaxWrong)
	}
}

// An attacker requests codes of several types for a bouncing recipient, and tries as often as possible.
func TestGuessingIsLimited(t *testing.T) {
	t.Parallel()
	d := newFixture(t, 1)
	die := d.die()["dead"]
	counted := 0
	for minute := 0; minute < 24*60; minute += 7 {
		d.later(7 * time.Minute)
		kind := fmt.Sprint("type-", minute%3)
		c := request(ada, "1234")
		c.Type = kind
		if err := d.send(c); err != nil && !fault.Is(err, code.TooMany) && !fault.Is(err, code.TriesSpent) {
			t.Fatal(err)
		} else if err == nil && minute%2 == 0 {
			die()
		}
		for range 8 {
			if answer, err := d.do(flow.Code(typed(kind, ada, "0000"))); fault.Is(err, code.TriesSpent) {
				break
			} else if err != nil {
				t.Fatal(err)
			} else if counted++; answer.(code.Verified).TriesLeft == 0 {
				break
			}
		}
	}
	if counted != code.MaxWrong {
		t.Errorf("%d wrong tries in a day", counted)
	}
}
