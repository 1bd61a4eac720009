package machine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
)

func TestDefinitionsHaveVersions(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	other := order()
	other.States[1].Label = "paid"
	d.want(d.all(create("1")), "MACHINE_NOT_FOUND")
	d.want(d.all(define(order()), define(order()), create("1"), define(other), create("2"), define(other)),
		"version 1", "version 1 existed", "pending 1", "version 2", "pending 1", "version 2 existed")
	d.want(d.all(define(order()), create("3"), move("1", "paid", "p")), "version 3", "pending 1", "paid 2")
	if got := d.text("select string_agg(version::text, ',' order by key) from machine_instances"); got != "1,2,3" {
		t.Errorf("versions of instances: %s", got)
	}
}

// together runs commands as one.
type together []commit.Command[*machine.Tx]

func (all together) Need(tx *machine.Tx) {
	for _, c := range all {
		c.Need(tx)
	}
}

func (all together) Apply(tx *machine.Tx) (answer any, err error) {
	for _, c := range all {
		if answer, err = c.Apply(tx); err != nil {
			break
		}
	}
	return answer, err
}

func TestARefusedCommandLeavesNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.all(define(order()), create("1"),
		together{define(&machine.Definition{States: []machine.State{{Name: "a", Initial: true}}}), create("2"),
			move("1", "paid", "p"), move("1", "cancelled", "p")},
		move("1", "paid", "q"), create("3")),
		"version 1", "pending 1", "MOVE_NOT_ALLOWED", "paid 2", "pending 1")
	if got := d.text("select string_agg(key || version, ',' order by key) from machine_instances"); got != "11,31" {
		t.Errorf("instances %s", got)
	}
	if got := d.history("1"); got != "1 >pending caller:creation, 2 pending>paid caller:q" {
		t.Errorf("history %s", got)
	}
}

// from makes a move name the state that it leaves.
func from(state string) func(*machine.MoveCommand) {
	return func(c *machine.MoveCommand) { c.From = state }
}

// A batch may move one instance many times: the database sees each move.
func TestMovesOfOneBatchAreAllRecorded(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.all(define(order()), create("1"), move("1", "paid", "p"), move("1", "refunding", "r"),
		move("1", "paid", "s", from("refunding")),
		create("2"), move("2", "cancelled", "c"), move("1", "refunding", "t")),
		"version 1", "pending 1", "paid 2", "refunding 3", "paid 4", "pending 1", "cancelled 2", "refunding 5")
	// One command, which cannot be split.
	d.want(d.all(together{create("3"), move("3", "paid", "p"), move("3", "refunding", "r"),
		move("3", "paid", "s", from("refunding"))}), "paid 4")
	if got := d.history("1"); got != "1 >pending caller:creation, 2 pending>paid caller:p, 3 paid>refunding caller:r, "+
		"4 refunding>paid caller:s, 5 paid>refunding caller:t" {
		t.Errorf("history %s", got)
	}
}

func TestMoveRules(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.all(define(order()), create("1"))
	revision := func(n int64) func(*machine.MoveCommand) {
		return func(c *machine.MoveCommand) { c.Revision = n }
	}
	shipping := func(c *machine.MoveCommand) {
		c.Caller, c.Reason, c.Inputs = by("logistics"), "on its way", map[string]string{"tracking_no": "SF1"}
	}
	for _, c := range []struct {
		what string
		move *machine.MoveCommand
		want string
	}{
		{"no such instance", move("2", "paid", "p"), "INSTANCE_NOT_FOUND"},
		{"no such state", move("1", "payed", "p"), "FIELD_INVALID"},
		{"not in moves", move("1", "shipped", "p"), "MOVE_NOT_ALLOWED"},
		{"another state", move("1", "paid", "p", from("shipped")), "STATE_CHANGED"},
		{"another revision", move("1", "paid", "p", revision(2)), "STATE_CHANGED"},
		{"both as given", move("1", "paid", "p", from("pending"), revision(1)), "paid 2"},
		{"same state and cause", move("1", "paid", "p"), "paid 2 existed"},
		{"a lost race to the same", move("1", "paid", "p", from("pending"), revision(1)), "paid 2 existed"},
		{"same state, another cause", move("1", "paid", "q"), "STATE_TAKEN"},
		{"a lost race", move("1", "cancelled", "q", from("pending")), "STATE_CHANGED"},
		{"another principal", move("1", "shipped", "s"), "MOVE_NOT_YOURS"},
		{"inputs missing", move("1", "shipped", "s", shipping,
			func(c *machine.MoveCommand) { c.Inputs = nil }), "MOVE_INPUT_MISSING"},
		{"reason missing", move("1", "shipped", "s", shipping,
			func(c *machine.MoveCommand) { c.Reason = "" }), "MOVE_INPUT_MISSING"},
		{"all restrictions met", move("1", "shipped", "s", shipping), "shipped 3"},
		{"back, from a state without", move("1", "paid", "b"), "MOVE_NOT_ALLOWED"},
		{"on", move("1", "refunding", "r"), "refunding 4"},
		{"back to another state", move("1", "paid", "b"), "MOVE_NOT_ALLOWED"},
		{"too early", move("1", "refunded", "r"), "MOVE_TOO_EARLY"},
		{"reserved for flows", move("1", "settled", "r"), "MOVE_NOT_YOURS"},
		{"back, as a late repeat of the move there", move("1", "shipped", "s", shipping), "MOVE_INPUT_MISSING"},
		{"back", move("1", "shipped", "b", from("refunding")), "shipped 5"},
		{"terminal", move("1", "cancelled", "b"), "MOVE_NOT_ALLOWED"},
		{"on again", move("1", "refunding", "r2"), "refunding 6"},
		{"by a flow", move("1", "settled", "f", func(c *machine.MoveCommand) { c.Flow = true }), "settled 7"},
	} {
		if got := d.all(c.move)[0]; got != c.want {
			t.Errorf("%s: got %s, want %s", c.what, got, c.want)
		}
	}
	if got := d.history("1"); !strings.HasSuffix(got, ", 6 shipped>refunding caller:r2, 7 refunding>settled flow:f") {
		t.Errorf("the history is %s", got)
	}
}

func TestFaultsNameTheStateNow(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.all(define(order()), create("1"), move("1", "paid", "pay-1"))
	for _, c := range []struct {
		move    *machine.MoveCommand
		message string
		state   map[string]string
	}{
		{move("1", "paid", "pay-2"), "instance 1 is paid (已支付) already, because of pay-1",
			map[string]string{"state": "paid", "revision": "2", "cause": "pay-1", "label": "已支付"}},
		{move("1", "pending", "x"), "instance 1 cannot move from paid (已支付) to pending (待支付)",
			map[string]string{"state": "paid", "revision": "2", "allowed": "refunding,shipped"}},
		{move("1", "refunding", "x", func(c *machine.MoveCommand) { c.From = "pending" }),
			"instance 1 is paid (已支付) at revision 2 now", map[string]string{"state": "paid", "revision": "2"}},
		{move("1", "shipped", "x"), "test may not move instance 1 from paid (已支付) to shipped",
			map[string]string{"state": "paid"}},
		{move("1", "shipped", "x", func(c *machine.MoveCommand) { c.Caller = by("logistics") }),
			"inputs.tracking_no: the move from paid (已支付) to shipped requires it", nil},
	} {
		_, err := d.do(c.move)
		f := fault.Of(err)
		if f == nil || f.Message != c.message {
			t.Errorf("got %v, want %s", err, c.message)
			continue
		}
		for name, want := range c.state {
			if f.Metadata[name] != want {
				t.Errorf("%s: %s is %q, want %q", f.Reason.Name, name, f.Metadata[name], want)
			}
		}
	}
	_, err := d.do(move("1", "shipped", "x", func(c *machine.MoveCommand) { c.Caller = by("logistics") }))
	var fields []string
	for _, x := range fault.Of(err).Fields {
		fields = append(fields, x.Path)
	}
	if !slices.Equal(fields, []string{"inputs.tracking_no", "reason"}) {
		t.Errorf("fields %v", fields)
	}
	d.all(move("1", "refunding", "x"))
	_, err = d.do(move("1", "refunded", "x"))
	if f := fault.Of(err); f == nil || f.Reason != machine.TooEarly || f.RetryAfter < 59*time.Minute ||
		f.RetryAfter > time.Hour {
		t.Errorf("%v", err)
	}
}

func TestCreateTwice(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	owner := func(p *machine.CreateParams) { p.Owner = "user:1" }
	timer := func(p *machine.CreateParams) { p.Timer = time.Hour }
	d.want(d.all(define(order()), create("1", owner, timer), create("1", owner, timer), move("1", "paid", "p"),
		create("1", owner, timer), create("1", owner), create("1", timer), create("1")),
		"version 1", "pending 1", "pending 1 existed", "paid 2", "paid 2 existed", "INSTANCE_EXISTS_DIFFERENT",
		"INSTANCE_EXISTS_DIFFERENT", "INSTANCE_EXISTS_DIFFERENT")
	_, err := d.do(create("1"))
	f := fault.Of(err)
	if f == nil || f.Metadata["differs"] != "owner,timer" || f.Metadata["state"] != "paid" ||
		f.Metadata["first_id"] == "" {
		t.Errorf("%v %v", err, f.Metadata)
	}
	plain := machine.NewDefine(caller, "plain", &machine.Definition{States: []machine.State{{Name: "a",
		Initial: true}}})
	c := create("1", timer)
	c.Machine = "plain"
	d.want(d.all(plain, c), "version 1", "FIELD_INVALID")
}

// A definition of 150 KB whose moves back would be millions costs little to refuse.
func TestLargeDefinitionsAreRefusedCheaply(t *testing.T) {
	d := &machine.Definition{}
	var all []string
	for n := range machine.MaxStates {
		all = append(all, fmt.Sprint("s", n))
		d.States = append(d.States, machine.State{Name: all[n], Initial: n == 0})
	}
	for _, to := range all {
		others := slices.DeleteFunc(slices.Clone(all), func(from string) bool { return from == to })
		d.Moves = append(d.Moves, machine.Allowed{From: others, To: to})
	}
	for range 448 {
		d.Moves = append(d.Moves, machine.Allowed{From: all, Back: true})
	}
	allocations := testing.AllocsPerRun(1, func() { machine.NewDefine(caller, "large", d) })
	if allocations > 300_000 {
		t.Errorf("%v allocations", allocations)
	}
}

func TestInvalidDefinitionsAreRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.want(d.all(define(order())), "version 1")
	many := func(n int) (states []machine.State) {
		for i := range n {
			states = append(states, machine.State{Name: fmt.Sprint("s", i), Initial: i == 0})
		}
		return states
	}
	for want, change := range map[string]func(*machine.Definition){
		"definition.states":            func(d *machine.Definition) { d.States[0].Initial = false },
		"definition.states[2].initial": func(d *machine.Definition) { d.States[2].Initial = true },
		"definition.states[1].name":    func(d *machine.Definition) { d.States[1].Name = "Paid!" },
		"definition.states[2].name":    func(d *machine.Definition) { d.States[2].Name = "paid" },
		"definition.states[6].name":    func(d *machine.Definition) { d.Moves = d.Moves[:6] },
		"definition.states[1].label": func(d *machine.Definition) {
			d.States[1].Label = strings.Repeat("x",
				129)
		},
		"definition.states[0].timer.to": func(d *machine.Definition) { d.States[0].Timer.To = "paid" },
		"definition.states[1].timer.to": func(d *machine.Definition) { d.States[1].Timer = d.States[0].Timer },
		"definition.states[3].timer.to": func(d *machine.Definition) {
			d.States[3].Timer = &machine.Timer{AfterMs: 1000, To: "paid"}
		},
		"definition.states[0].timer.after": func(d *machine.Definition) { d.States[0].Timer.AfterMs = 999 },
		"definition.moves[0].to":           func(d *machine.Definition) { d.Moves[0].To = "payed" },
		"definition.moves[1].to":           func(d *machine.Definition) { d.Moves[1].Back = true },
		"definition.moves[0].from[0]":      func(d *machine.Definition) { d.Moves[0].From[0] = "pend" },
		"definition.moves[3].from[0]":      func(d *machine.Definition) { d.Moves[3].From[0] = "refunding" },
		"definition.moves[3].from[1]":      func(d *machine.Definition) { d.Moves[3].From[1] = "paid" },
		"definition.moves[4].from[0]":      func(d *machine.Definition) { d.Moves[4].From[0] = "pending" },
		"definition.moves[0].from":         func(d *machine.Definition) { d.Moves[0].From = nil },
		"definition.moves[5].stay":         func(d *machine.Definition) { d.Moves[5].StayMs = -1 },
		"definition.moves[6].by": func(d *machine.Definition) {
			d.Moves[6].By = append(d.Moves[6].By,
				machine.ByCaller)
		},
		"definition.moves[2].require[0]": func(d *machine.Definition) { d.Moves[2].Require[0] = "tracking no" },
		"definition.moves[2].publish":    func(d *machine.Definition) { d.Moves[2].Publish = "order paid" },
		"definition.moves[2].principals": func(d *machine.Definition) { d.Moves[2].Principals = make([]string, 33) },
		"definition.moves": func(d *machine.Definition) {
			d.States, d.Moves = many(33), nil
			for i, from := range d.States {
				for j, to := range d.States {
					if i != j && len(d.Moves) < 513 {
						d.Moves = append(d.Moves, machine.Allowed{From: []string{from.Name}, To: to.Name})
					}
				}
			}
		},
	} {
		definition := order()
		change(definition)
		_, err := d.do(define(definition))
		if f := fault.Of(err); f == nil || f.Reason != machine.Invalid || f.Fields[0].Path != want {
			t.Errorf("%s: %v %v", want, err, f)
		}
	}
	_, err := d.do(define(&machine.Definition{States: many(65)}))
	if f := fault.Of(err); f == nil || f.Fields[0].Path != "definition.states" {
		t.Errorf("%v", err)
	}
	if got := d.text("select count(*)::text from machine_definitions"); got != "1" {
		t.Errorf("%s definitions", got)
	}
}
