package machine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// fire records the move of an instance's timer, as the scheduler does.
func fire(key string) *machine.FireCommand {
	return &machine.FireCommand{Caller: by("scheduler"), Key: machine.Key{Tenant: 1, Machine: "parcel", Key: key}}
}

// clockDesk is a desk whose database has a clock that the test sets.
func clockDesk(t *testing.T) (*desk, pgtest.ShiftedClock, *machine.Reader) {
	db := pgtest.New(t)
	clock := pgtest.ShiftClock(t, db)
	return newDeskOn(t, db), clock, machine.NewReader(pgtest.Pool(t, db.AllDSN))
}

func show(i machine.Instance, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s from %s, %d, %s", i.State, i.CameFrom, i.Revision, i.Cause)
}

// An instance past its timer counts as moved, for reads and commands, before the move is recorded.
func TestAnInstancePastItsTimerCountsAsMoved(t *testing.T) {
	t.Parallel()
	d, clock, reader := clockDesk(t)
	ctx := context.Background()
	d.all(define(order()), create("1"), create("2"), create("3"), create("paid"), move("paid", "paid", "p"))
	key := machine.Key{Tenant: 1, Machine: "parcel", Key: "1"}
	list := func(state, owner string) (keys string) {
		for token := ""; ; {
			page, next, err := reader.Instances(ctx, 1, machine.Filter{Machine: "parcel", State: state, Owner: owner},
				2, token)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range page {
				keys += i.Key.Key + ":" + i.State + " "
			}
			if token = next; token == "" {
				return keys
			}
		}
	}
	due := func() (keys string) {
		rows, err := machine.DueInstances(ctx, pgtest.Pool(t, d.db.AllDSN), machine.Due{}, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			keys += r.Key.Key + " "
		}
		return keys
	}
	clock.Set(t, 29*time.Minute)
	d.want([]string{show(reader.Instance(ctx, key)), list("pending", ""), list("cancelled", ""), due()},
		"pending from , 1, creation", "1:pending 2:pending 3:pending ", "", "")
	clock.Set(t, 31*time.Minute)
	d.want([]string{show(reader.Instance(ctx, key)), list("pending", ""), list("cancelled", ""), list("", ""), due()},
		"cancelled from pending, 2, timer", "", "1:cancelled 2:cancelled 3:cancelled ",
		"1:cancelled 2:cancelled 3:cancelled paid:paid ", "1 2 3 ")
	_, err := d.do(move("1", "paid", "p"))
	if f := fault.Of(err); f == nil || f.Reason != machine.NotAllowed || f.Metadata["state"] != "cancelled" ||
		f.Metadata["revision"] != "2" || f.Metadata["cause"] != "timer" {
		t.Errorf("%v", err)
	}
	d.want([]string{d.history("1")}, "1 >pending caller:creation") // refused: nothing was written
	d.want(d.all(fire("1"), fire("1"), fire("paid"), fire("none")), "true", "false", "false", "false")
	d.want(d.all(create("2"), move("2", "cancelled", "user"),
		move("3", "paid", "p", func(c *machine.MoveCommand) { c.From = "pending" }),
		fire("2")), "cancelled 2 existed", "STATE_TAKEN", "STATE_CHANGED", "false")
	d.want([]string{d.history("1"), d.history("2"), d.history("3"), due()},
		"1 >pending caller:creation, 2 pending>cancelled timer:timer",
		"1 >pending caller:creation, 2 pending>cancelled timer:timer", "1 >pending caller:creation", "3 ")
	if got := d.text("select reason || coalesce(principal, '-') from machine_history where actor = 'timer' " +
		"and key = '1'"); got != "timeout-" {
		t.Errorf("recorded as %s", got)
	}
}

// The timer of a state starts when a batch records the move to that state, even if the timer that made the move fired
// long ago.
func TestTimersStartWhenTheirStateIsRecorded(t *testing.T) {
	t.Parallel()
	d, clock, reader := clockDesk(t)
	hours := func(n int64, to string) *machine.Timer { return &machine.Timer{AfterMs: n * 3_600_000, To: to} }
	timers := []machine.Actor{machine.ByTimer}
	d.all(define(&machine.Definition{
		States: []machine.State{{Name: "a", Initial: true, Timer: hours(1, "b")}, {Name: "b", Timer: hours(1, "c")},
			{Name: "c"}},
		Moves: []machine.Allowed{{From: []string{"a"}, To: "b", By: timers},
			{From: []string{"b"}, To: "c", By: timers}}}),
		create("1"), create("own", func(p *machine.CreateParams) { p.Timer = 5 * time.Hour }))
	state := func(key string) string {
		return show(reader.Instance(context.Background(), machine.Key{Tenant: 1, Machine: "parcel", Key: key}))
	}
	clock.Set(t, 4*time.Hour)
	d.want([]string{state("1"), state("own")}, "b from a, 2, timer", "a from , 1, creation")
	d.want(d.all(fire("1"), fire("1"), fire("own")), "true", "false", "false")
	clock.Set(t, 4*time.Hour+59*time.Minute)
	d.want([]string{state("1"), state("own")}, "b from a, 2, timer", "a from , 1, creation")
	clock.Set(t, 5*time.Hour+time.Minute)
	d.want([]string{state("1"), state("own")}, "c from b, 3, timer", "b from a, 2, timer")
	d.want(d.all(fire("1"), fire("own")), "true", "true")
	if got := d.text("select string_agg(key || coalesce(round(extract(epoch from " +
		"timer_at - clock_timestamp()) / 600)::text, '-'), ' ' order by key) from machine_instances"); got != "1- "+
		"own6" {
		t.Errorf("timers %s", got)
	}
}

// A clock that is set back fires no timer twice, and moves no instance back.
func TestTimersWithAClockThatGoesBack(t *testing.T) {
	t.Parallel()
	d, clock, _ := clockDesk(t)
	clock.Set(t, time.Hour)
	d.all(define(order()), create("1"), create("2"))
	clock.Set(t, 2*time.Hour)
	d.want(d.all(fire("1"), move("2", "cancelled", "user")), "true", "STATE_TAKEN")
	clock.Set(t, 0)
	d.want(d.all(fire("1"), fire("2"), move("1", "cancelled", "timer")), "false", "false", "cancelled 2 existed")
	out, err := d.do(move("2", "paid", "p"))
	if i, ok := out.Answer.(machine.Instance); err != nil || !ok || !i.ChangedAt.Equal(i.CreatedAt) {
		t.Errorf("%+v, %v: changed before it was created, as the clock says", out.Answer, err)
	}
	if got := d.text("select (min(recorded_at) = max(recorded_at))::text from machine_history " +
		"where key = '2'"); got != "true" {
		t.Errorf("the second move was recorded at another time than the first, although the clock was behind")
	}
}

// Either the payment of an order or its expiry wins, whichever call records the expiry.
func TestPaymentAgainstExpiryHasOneWinner(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.all(define(order()))
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := map[string]int{}
	for n := range 60 {
		wg.Go(func() {
			key := fmt.Sprint(n)
			ctx := context.Background()
			submit := func(e int, c commit.Command[*machine.Tx]) string {
				out, err := d.engines[e].Do(ctx, submission(flow.Machine(c)))
				return describe(commit.Result{Outcome: out, Err: err})
			}
			submit(0, create(key, func(p *machine.CreateParams) {
				p.Timer = time.Hour // the payment wins
				if n >= 5 {
					p.Timer = time.Duration(1+n*n/5) * time.Millisecond
				}
			}))
			var both sync.WaitGroup
			both.Go(func() { // until one has won
				for submit(0, fire(key)) == "false" && d.text("select state from machine_instances where key = $1",
					key) == "pending" {
				}
			})
			outcome := ""
			both.Go(func() {
				for range n % 7 * 3 { // late by some round trips
					d.text("select ''")
				}
				outcome = submit(1, move(key, "paid", "p"))
			})
			both.Wait()
			mu.Lock()
			defer mu.Unlock()
			won[outcome]++
			want := map[string]string{"paid 2": "paid p", "MOVE_NOT_ALLOWED": "cancelled timer"}[outcome]
			if got := d.text(`select to_state || ' ' || cause from machine_history where key = $1 and revision = 2`,
				key); got != want {
				t.Errorf("%s: %s, and the history has %s", key, outcome, got)
			}
		})
	}
	wg.Wait()
	if t.Log(won); len(won) != 2 {
		t.Errorf("one of payments and expiries never wins: %v", won)
	}
}
