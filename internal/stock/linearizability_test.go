package stock_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// historyItems are the items of a history, with their segments. Each begins with historyUnits.
var historyItems = map[string]int{"tea": 1, "milk": 3}

const (
	historyUnits   = 8
	historyNumbers = 12 // of reservations and changes of an item: few, so that callers use the same
	historyCallers = 10
)

// history records calls for porcupine, which looks for one sequence of calls that explains all answers. Each call takes
// effect at one moment between its start and its answer.
type history struct {
	*shop
	strategies []string
	steps      int           // of each caller
	hurry      time.Duration // one call in twenty has less time than this; 0: none
	patience   time.Duration // time of the others
	begun      time.Time

	mu      sync.Mutex
	calls   []porcupine.Operation
	unknown int // calls that may or may not have taken effect
	none    int // calls that certainly took no effect
}

// historyCall is a command, or a read of the counts.
type historyCall struct {
	item    string
	id      string  // also in the rows that it writes
	command command // nil: a read
}

const unknownOutcome = "unknown"

// sequential is the model of one item. A call with an unknown outcome may take effect at any later time, or at the end
// of the history, where no answer depends on it.
var sequential = porcupine.Model{
	Partition: func(calls []porcupine.Operation) (parts [][]porcupine.Operation) {
		for item := range historyItems {
			parts = append(parts, slices.DeleteFunc(slices.Clone(calls),
				func(o porcupine.Operation) bool { return o.Input.(historyCall).item != item }))
		}
		return parts
	},
	Init: func() any {
		return &modelItem{Counts: stock.Counts{Available: historyUnits, Stocked: historyUnits}}
	},
	Step: func(state, input, output any) (bool, any) {
		c, i := input.(historyCall), state.(*modelItem).clone()
		got := (&model{items: map[string]*modelItem{c.item: i}}).answer(c)
		return output == unknownOutcome || got == output, i
	},
	Equal: func(a, b any) bool { return a.(*modelItem).equal(b.(*modelItem)) },
}

func (m *model) answer(c historyCall) string {
	switch command := c.command.(type) {
	case *stock.ReserveCommand:
		return m.reserve(command)
	case *stock.ConfirmCommand:
		return m.confirm(command)
	case *stock.CancelCommand:
		return m.cancel(command)
	case *stock.ChangeCommand:
		return m.change(command)
	}
	return line(m.items[c.item].Counts)
}

func (i *modelItem) clone() *modelItem {
	c := &modelItem{Counts: i.Counts, reservations: map[string]*modelReservation{},
		changes: map[string]*stock.ChangeCommand{}, after: map[string]int64{}}
	maps.Copy(c.changes, i.changes)
	maps.Copy(c.after, i.after)
	for no, r := range i.reservations {
		copied := *r
		c.reservations[no] = &copied
	}
	return c
}

func (i *modelItem) equal(o *modelItem) bool {
	return i.Counts == o.Counts && maps.Equal(i.changes, o.changes) && maps.Equal(i.after, o.after) &&
		maps.EqualFunc(i.reservations, o.reservations, func(a, b *modelReservation) bool { return *a == *b })
}

// random returns a call as callers make them.
func random(id string) historyCall {
	item := slices.Sorted(maps.Keys(historyItems))[rand.IntN(len(historyItems))]
	no, units := fmt.Sprint("n", rand.IntN(historyNumbers)), 1+rand.Int64N(3)
	c := historyCall{item: item, id: id}
	by := commit.Caller{Tenant: 1, Principal: "test", RequestID: id}
	switch rand.IntN(12) {
	case 0, 1, 2:
		command := deduct(item, no, units)
		command.Caller, c.command = by, command
	case 3, 4, 5:
		command := reserve(item, no, units)
		command.Caller, c.command = by, command
	case 6, 7:
		c.command = &stock.ConfirmCommand{Caller: by, Item: item, ReservationNo: no}
	case 8:
		c.command = &stock.CancelCommand{Caller: by, Item: item, ReservationNo: no}
	case 9:
		command := unsell(item, "u"+no, no, 1)
		command.Caller, c.command = by, command
	case 10:
		command := restock(item, "r"+no, units)
		command.Caller, c.command = by, command
	}
	return c
}

// call makes a call and records it, unless it had no effect.
func (h *history) call(client int, c historyCall) {
	wait := h.patience
	if h.hurry > 0 && rand.IntN(20) == 0 {
		wait = rand.N(h.hurry)
	}
	ctx, cancel := context.WithTimeout(h.Context(), wait)
	defer cancel()
	start := int64(time.Since(h.begun))
	end := h.end(ctx, client, c)
	returned := int64(time.Since(h.begun))
	h.mu.Lock()
	defer h.mu.Unlock()
	switch end {
	case fault.RowsLocked.Name, fault.NotRun.Name, fault.DatabaseUnavailable.Name:
		h.none++
		return
	case fault.OutcomeUnknown.Name:
		h.unknown++
		end, returned = unknownOutcome, math.MaxInt64
	}
	h.calls = append(h.calls, porcupine.Operation{ClientId: client, Input: c, Output: end, Call: start,
		Return: returned})
}

func (h *history) end(ctx context.Context, client int, c historyCall) string {
	if c.command == nil {
		i, err := stock.NewReader(h.app).Item(h.Context(), stock.ItemKey{Tenant: 1, Item: c.item})
		if err != nil {
			return err.Error()
		}
		return line(i.Counts)
	}
	w := submission(c.command)
	if r, ok := c.command.(*stock.ReserveCommand); ok {
		w = by(h.strategies[rand.IntN(len(h.strategies))], r)
		if w.Direct != nil {
			w.Direct.Attempts = 10
		}
	}
	out, err := h.engines[client%2].Do(ctx, w)
	return ended(commit.Result{Outcome: out, Err: err})
}

// play has callers on both engines make random calls, and checks the history.
func (h *history) play(meanwhile func(stop <-chan struct{})) porcupine.CheckResult {
	for item, segments := range historyItems {
		h.all(put(item, segments), restock(item, "first", historyUnits))
	}
	h.begun = time.Now()
	stop := make(chan struct{})
	var callers, others sync.WaitGroup
	others.Go(func() { meanwhile(stop) })
	for client := range historyCallers {
		callers.Go(func() {
			for step := range h.steps {
				h.call(client, random(fmt.Sprint("call-", client, "-", step)))
			}
		})
	}
	callers.Wait()
	close(stop)
	others.Wait()
	for item := range historyItems {
		h.call(0, historyCall{item: item})
	}
	took := time.Since(h.begun)
	h.forgetIneffective()
	result := porcupine.CheckOperationsTimeout(sequential, h.calls, time.Minute)
	h.Logf("%d calls in %v, %d of them of unknown outcome, %d had none: %s after %v", len(h.calls),
		took.Round(time.Millisecond), h.unknown, h.none, result, (time.Since(h.begun) - took).Round(time.Millisecond))
	return result
}

// forgetIneffective removes calls of unknown outcome that have left no row. Otherwise the checker would try all moments
// at which they might have taken effect, which can take very long.
func (h *history) forgetIneffective() {
	left := h.text(`select string_agg(request_id, ' ') from (select request_id from stock_reservations
		union all select closed_request_id from stock_reservations union all select request_id from stock_changes) r`)
	effective := map[string]bool{}
	for id := range strings.FieldsSeq(left) {
		effective[id] = true
	}
	h.calls = slices.DeleteFunc(h.calls, func(o porcupine.Operation) bool {
		return o.Output == unknownOutcome && !effective[o.Input.(historyCall).id]
	})
}

func undisturbed(<-chan struct{}) {}

// Callers on two servers use the same items and numbers: by one strategy, by all of them while the items get more
// segments, and while connections of one server break. One sequence of all calls explains every answer.
func TestEveryAnswerFitsOneOrderOfAllCalls(t *testing.T) {
	t.Parallel()
	for name, strategies := range map[string][]string{"batched": {stock.Batched}, "atomic": {stock.Atomic},
		"optimistic": {stock.Optimistic}, "pessimistic": {stock.Pessimistic}, "advisory": {stock.Advisory},
		"mixed": allStrategies, "broken connections": allStrategies} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 8 { // on a fast machine, connections may break between all commits
				if playHistory(t, name, strategies) {
					return
				}
			}
			t.Error("the test exercised too little")
		})
	}
}

// playHistory plays a history on a database of its own. It reports whether enough calls had an effect and, with broken
// connections, an unknown outcome occurred.
func playHistory(t *testing.T, name string, strategies []string) (exercised bool) {
	t.Helper()
	db := pgtest.New(t)
	h := &history{strategies: strategies, steps: 50, hurry: 10 * time.Millisecond, patience: time.Minute}
	first, meanwhile := db.AppDSN, undisturbed
	switch name {
	case "mixed":
		meanwhile = h.growSegments
	case "broken connections":
		proxy := pgtest.NewProxy(t, db.AppDSN)
		first, meanwhile = proxy.DSN, func(stop <-chan struct{}) { breakConnections(proxy, stop) }
		// A backend that waits for a lock notices a lost connection only when the wait ends.
		h.steps, h.hurry, h.patience = 25, 0, 200*time.Millisecond
	}
	h.shop = shopOver(t, db, first, db.AppDSN)
	if result := h.play(meanwhile); result != porcupine.Ok {
		t.Errorf("the history is %s", result)
	}
	return len(h.calls) >= historyCallers*h.steps/4 &&
		(name != "broken connections" || h.count("ledgerd_commit_unknown_outcomes_total") > 0)
}

// growSegments repeatedly adds segments to the items. The other server learns of them when it reads the item.
func (h *history) growSegments(stop <-chan struct{}) {
	for segments := 4; segments <= 64; segments += 2 {
		select {
		case <-stop:
			return
		case <-time.After(10 * time.Millisecond):
		}
		for item := range historyItems {
			if _, err := h.engines[segments/2%2].Do(h.Context(), submission(put(item, segments))); err != nil {
				h.Error(err)
			}
		}
	}
}

func breakConnections(p *pgtest.Proxy, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(100*time.Millisecond + rand.N(100*time.Millisecond)):
			p.SetDown(true)
			p.SetDown(false)
		}
	}
}

// The checker detects units that are sold twice: here a trigger loses some sales, and no constraint prevents that.
func TestTheOrderOfCallsRevealsALostUpdate(t *testing.T) {
	t.Parallel()
	for _, strategy := range allStrategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.SkipChecks()
			h := &history{shop: shopOn(t, db), strategies: []string{strategy}, steps: 20, patience: time.Minute}
			h.exec(`create function forget() returns trigger language plpgsql as $$
				begin
					if new.sold > old.sold and random() < 0.8 then
						new.available := old.available; new.reserved := old.reserved; new.sold := old.sold;
					end if;
					return new;
				end $$`)
			h.exec("create trigger forget before update on stock_items for each row execute function forget()")
			h.exec(`alter table stock_items drop constraint stock_items_available_check,
				drop constraint stock_items_reserved_check, drop constraint stock_items_sold_check`)
			if result := h.play(undisturbed); result != porcupine.Illegal {
				t.Errorf("the history is %s", result)
			}
		})
	}
}
