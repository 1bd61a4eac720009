package machine_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
)

// racers is the number of concurrent callers, half of them of each server.
const racers = 100

// race runs a command per caller at once, over two engines, and returns the outcomes.
func (d *desk) race(command func(n int) commit.Command[*machine.Tx]) []commit.Result {
	results := make([]commit.Result, racers)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for n := range racers {
		wg.Go(func() {
			<-start
			out, err := d.engines[n%2].Do(context.Background(), submission(flow.Machine(command(n))))
			results[n] = commit.Result{Outcome: out, Err: err}
		})
	}
	close(start)
	wg.Wait()
	return results
}

// pingPong is a machine of two states.
func pingPong() *machine.Definition {
	return &machine.Definition{States: []machine.State{{Name: "ping", Initial: true}, {Name: "pong"}},
		Moves: []machine.Allowed{{From: []string{"ping"}, To: "pong"}, {From: []string{"pong"}, To: "ping"}}}
}

func TestOneCallerWinsEachRevision(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.all(define(pingPong()), create("1"))
	const rounds = 15
	var mu sync.Mutex
	won := map[int64]string{} // the cause that moved the instance to a revision
	var wg sync.WaitGroup
	for n := range racers {
		wg.Go(func() {
			for round := range rounds {
				revision := int64(round + 1)
				to, cause := []string{"pong", "ping"}[round%2], fmt.Sprint(n, "/", round)
				c := move("1", to, cause, func(c *machine.MoveCommand) { c.Revision = revision })
				for {
					out, err := d.engines[n%2].Do(context.Background(), submission(flow.Machine(c)))
					if f := fault.Of(err); f != nil && f.Reason == machine.StateChanged &&
						f.Metadata["revision"] == fmt.Sprint(revision-1) {
						continue // too early: another caller moves it to the revision
					}
					if err == nil {
						i := out.Answer.(machine.Instance)
						mu.Lock()
						if won[revision] != "" || i.Revision != revision+1 || i.Cause != cause || out.Existed {
							t.Errorf("%s and %s moved from revision %d", won[revision], cause, revision)
						}
						won[revision] = cause
						mu.Unlock()
					} else if !fault.Is(err, machine.StateChanged) && !fault.Is(err, machine.StateTaken) {
						t.Error(err)
					}
					break
				}
			}
		})
	}
	wg.Wait()
	if len(won) != rounds {
		t.Errorf("%d of %d revisions were won", len(won), rounds)
	}
	want := []string{"1 >ping caller:creation"}
	for round := range rounds {
		want = append(want, fmt.Sprintf("%d %s caller:%s", round+2, []string{"ping>pong", "pong>ping"}[round%2],
			won[int64(round+1)]))
	}
	d.want([]string{d.history("1")}, strings.Join(want, ", "))
}

func TestOneCauseTakesAState(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.all(define(order()), create("1"))
	count := map[string]int{}
	var winner string
	for n, r := range d.race(func(n int) commit.Command[*machine.Tx] {
		return move("1", "paid",
			fmt.Sprint("pay-", n/4))
	}) {
		if r.Err == nil {
			winner = fmt.Sprint("pay-", n/4)
			count[fmt.Sprint("moved, existed: ", r.Outcome.Existed)]++
			continue
		}
		f := fault.Of(r.Err)
		count[f.Reason.Name+" by "+f.Metadata["cause"]]++
	}
	if count["moved, existed: false"] != 1 || count["moved, existed: true"] != 3 ||
		count["STATE_TAKEN by "+winner] != racers-4 {
		t.Errorf("%v", count)
	}
}

func TestOneCallerCreatesAnInstance(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.all(define(order()))
	count := map[string]int{}
	for _, r := range d.race(func(n int) commit.Command[*machine.Tx] {
		return create("1", func(p *machine.CreateParams) { p.Owner = fmt.Sprint("user:", n%5) })
	}) {
		count[describe(r)]++
	}
	if count["pending 1"] != 1 || count["pending 1 existed"] != racers/5-1 ||
		count["INSTANCE_EXISTS_DIFFERENT"] != racers-racers/5 {
		t.Errorf("%v", count)
	}
}

func TestConcurrentDefinitionsGetVersionsWithoutGaps(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	count := map[string]int{}
	for _, r := range d.race(func(n int) commit.Command[*machine.Tx] {
		definition := order()
		definition.States[1].Code = int32(n / 2)
		return define(definition)
	}) {
		count[describe(r)]++
	}
	versions := d.text("select count(*) || ' of ' || max(version) from machine_definitions")
	made := 0
	for outcome, n := range count {
		if !strings.HasSuffix(outcome, "existed") {
			if made++; n != 1 {
				t.Errorf("%s was made %d times", outcome, n)
			}
		}
	}
	if versions != fmt.Sprintf("%d of %[1]d", made) || made < racers/2 {
		t.Errorf("%d versions were made, the table has %s", made, versions)
	}
}
