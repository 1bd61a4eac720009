package machine_test

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// thing is an instance in the model. Time is counted in minutes, so that the run time of a play does not matter.
type thing struct {
	version            int
	state, from, cause string
	revision, since    int
	timerAt            int // 0: none
	timerTo            string
	owner              string
	own                int
	history            []string
}

// model implements the documented behaviour of machines on maps.
type model struct {
	now      int
	versions []*machine.Definition
	things   map[string]*thing
}

func (m *model) state(t *thing, name string) *machine.State {
	d := m.versions[t.version-1]
	return &d.States[slices.IndexFunc(d.States, func(s machine.State) bool { return s.Name == name })]
}

func (m *model) enter(t *thing, to, actor, cause string) {
	t.history = append(t.history, fmt.Sprintf("%s>%s %s:%s", t.state, to, actor, cause))
	t.from, t.state, t.cause, t.since = t.state, to, cause, m.now
	t.revision++
	t.timerAt, t.timerTo = 0, ""
	if timer := m.state(t, to).Timer; timer != nil {
		after := int(timer.AfterMs / 60_000)
		if t.revision == 1 && t.own > 0 {
			after = t.own
		}
		t.timerAt, t.timerTo = m.now+after, timer.To
	}
}

// touched returns a copy of an instance, moved by its timer if that has fired.
func (m *model) touched(t *thing) *thing {
	now := *t
	now.history = slices.Clone(t.history)
	if t.timerAt > 0 && t.timerAt <= m.now {
		m.enter(&now, t.timerTo, "timer", "timer")
	}
	return &now
}

// moveOf returns the move between two states, and whether it leads back.
func (m *model) moveOf(t *thing, to string) (a *machine.Allowed, back bool) {
	d := m.versions[t.version-1]
	for i := range d.Moves {
		if !slices.Contains(d.Moves[i].From, t.state) {
			continue
		}
		if d.Moves[i].To == to {
			return &d.Moves[i], false
		}
		if d.Moves[i].Back && t.from == to {
			a, back = &d.Moves[i], true
		}
	}
	return a, back
}

func (m *model) create(key, owner string, own int) string {
	if t := m.things[key]; t != nil {
		now := m.touched(t)
		if t.owner != owner || t.own != own {
			return "INSTANCE_EXISTS_DIFFERENT"
		}
		m.things[key] = now
		return fmt.Sprintf("%s %d existed", now.state, now.revision)
	}
	t := &thing{version: len(m.versions), owner: owner, own: own}
	if own > 0 && m.state(t, "a").Timer == nil {
		return "FIELD_INVALID"
	}
	m.enter(t, "a", "caller", "creation")
	m.things[key] = t
	return fmt.Sprintf("%s %d", t.state, t.revision)
}

func (m *model) move(c *machine.MoveCommand) string {
	t := m.things[c.Key]
	if t == nil {
		return "INSTANCE_NOT_FOUND"
	}
	now := m.touched(t)
	if now.state == c.To {
		if now.cause != c.Cause {
			return "STATE_TAKEN"
		}
		m.things[c.Key] = now
		return fmt.Sprintf("%s %d existed", now.state, now.revision)
	}
	if c.From != "" && c.From != now.state || c.Revision != 0 && int(c.Revision) != now.revision {
		return "STATE_CHANGED"
	}
	if !slices.ContainsFunc(m.versions[now.version-1].States, func(s machine.State) bool { return s.Name == c.To }) {
		return "FIELD_INVALID"
	}
	a, back := m.moveOf(now, c.To)
	switch {
	case a == nil:
		return "MOVE_NOT_ALLOWED"
	case len(a.By) > 0 && !slices.Contains(a.By, machine.ByCaller),
		len(a.Principals) > 0 && !slices.Contains(a.Principals, c.Principal):
		return "MOVE_NOT_YOURS"
	case len(a.Require) > 0 && c.Inputs["x"] == "", back && c.From == "" && c.Revision == 0:
		return "MOVE_INPUT_MISSING"
	case now.since+int(a.StayMs/60_000) > m.now:
		return "MOVE_TOO_EARLY"
	}
	m.enter(now, c.To, "caller", c.Cause)
	m.things[c.Key] = now
	return fmt.Sprintf("%s %d", now.state, now.revision)
}

func (m *model) fire(key string) string {
	t := m.things[key]
	if t == nil {
		return "false"
	}
	m.things[key] = m.touched(t)
	return fmt.Sprint(m.things[key].revision > t.revision)
}

// anyDefinition draws a valid machine of 2 to 5 states, of which the last may lead back.
func anyDefinition(r *rapid.T) *machine.Definition {
	names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(2, 5).Draw(r, "states")]
	d := &machine.Definition{}
	last := names[len(names)-1]
	back := rapid.Bool().Draw(r, "back")
	for i, from := range names {
		d.States = append(d.States, machine.State{Name: from, Initial: i == 0,
			Code: rapid.Int32Range(0, 99).Draw(r, "code")})
		for j, to := range names {
			chain := j == i+1 // makes every state reachable
			if from == to || back && from == last || !chain && !rapid.Bool().Draw(r, "allowed") {
				continue
			}
			a := machine.Allowed{From: []string{from}, To: to}
			switch rapid.IntRange(0, 7).Draw(r, "restriction") {
			case 0:
				a.Principals = []string{"ann"}
			case 1:
				a.Require = []string{"x"}
			case 2:
				a.StayMs = rapid.Int64Range(1, 30).Draw(r, "stay") * 60_000
			case 3:
				a.By = []machine.Actor{machine.ByFlow}
			case 4, 5:
				a.By = []machine.Actor{machine.ByCaller, machine.ByTimer}
				d.States[i].Timer = &machine.Timer{AfterMs: rapid.Int64Range(1, 40).Draw(r, "after") * 60_000, To: to}
			}
			d.Moves = append(d.Moves, a)
		}
	}
	if back {
		d.Moves = append(d.Moves, machine.Allowed{From: []string{last}, Back: true})
	}
	return d
}

// TestMachinesBehaveLikeTheModel runs random definitions, moves and time steps against the model, with several commands
// in a batch, over two engines. At the end of the test db/checks runs over everything.
func TestMachinesBehaveLikeTheModel(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	clock := pgtest.ShiftClock(t, db)
	d := newDeskOn(t, db)
	plays, ahead := 0, 0
	rapid.Check(t, func(r *rapid.T) {
		plays++
		p := &play{T: r, desk: d, name: fmt.Sprint("parcel", plays), model: model{things: map[string]*thing{}}}
		p.model.now = 1
		p.define(r)
		r.Repeat(map[string]func(*rapid.T){
			"define": p.define, "create": p.create, "move": p.move, "moves": p.move, "fire": p.fire,
			"commit": func(*rapid.T) { p.commit() },
			"wait": func(r *rapid.T) {
				p.commit()
				minutes := rapid.IntRange(1, 30).Draw(r, "minutes")
				ahead += minutes
				clock.Set(t, time.Duration(ahead)*time.Minute)
				p.model.now += minutes
			},
		})
		p.commit()
		p.compare()
	})
}

type play struct {
	*rapid.T
	desk    *desk
	name    string
	model   model
	waiting []waiting
	batches int
}

// waiting is a command that waits for its batch, with the expected answer.
type waiting struct {
	command commit.Command[*machine.Tx]
	answer  func() string
}

func (p *play) define(r *rapid.T) {
	if len(p.model.versions) == 3 {
		return
	}
	definition := anyDefinition(r)
	p.waiting = append(p.waiting, waiting{machine.NewDefine(caller, p.name, definition), func() string {
		n := len(p.model.versions)
		if n > 0 && fmt.Sprintf("%+v", describeDefinition(p.model.versions[n-1])) == fmt.Sprintf("%+v",
			describeDefinition(definition)) {
			return fmt.Sprintf("version %d existed", n)
		}
		p.model.versions = append(p.model.versions, definition)
		return fmt.Sprint("version ", n+1)
	}})
	p.commit() // the model draws from the newest version
}

// describeDefinition replaces pointers by what they point to.
func describeDefinition(d *machine.Definition) (parts []string) {
	for _, s := range d.States {
		timer := machine.Timer{}
		if s.Timer != nil {
			timer = *s.Timer
		}
		s.Timer = nil
		parts = append(parts, fmt.Sprintf("%+v %+v", s, timer))
	}
	return append(parts, fmt.Sprintf("%+v", d.Moves))
}

var keys = rapid.SampledFrom([]string{"1", "2", "3"})

func (p *play) create(r *rapid.T) {
	key, owner := keys.Draw(r, "key"), rapid.SampledFrom([]string{"", "", "ann"}).Draw(r, "owner")
	own := rapid.SampledFrom([]int{0, 0, 0, 7}).Draw(r, "own")
	p.waiting = append(p.waiting, waiting{&machine.CreateCommand{Caller: caller, CreateParams: machine.CreateParams{
		Machine: p.name, Key: key, Owner: owner, Timer: time.Duration(own) * time.Minute}},
		func() string { return p.model.create(key, owner, own) }})
}

func (p *play) move(r *rapid.T) {
	c := &machine.MoveCommand{Caller: by(rapid.SampledFrom([]string{"ann", "bob"}).Draw(r, "principal")),
		MoveParams: machine.MoveParams{Machine: p.name, Key: keys.Draw(r, "key"),
			To:    rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(r, "to"),
			From:  rapid.SampledFrom([]string{"", "", "", "a", "b"}).Draw(r, "from"),
			Cause: rapid.SampledFrom([]string{"x", "y"}).Draw(r, "cause")}}
	c.Revision = rapid.SampledFrom([]int64{0, 0, 0, 1, 2, 3}).Draw(r, "revision")
	if rapid.Bool().Draw(r, "input") {
		c.Inputs = map[string]string{"x": "1"}
	}
	p.waiting = append(p.waiting, waiting{c, func() string { return p.model.move(c) }})
}

func (p *play) fire(r *rapid.T) {
	key := keys.Draw(r, "key")
	p.waiting = append(p.waiting, waiting{&machine.FireCommand{Caller: by("scheduler"),
		Key: machine.Key{Tenant: 1, Machine: p.name, Key: key}}, func() string { return p.model.fire(key) }})
}

// commit runs the waiting commands in one batch and compares the answers.
func (p *play) commit() {
	p.Helper()
	submissions := make([]flow.Submission, len(p.waiting))
	for i, w := range p.waiting {
		submissions[i] = submission(flow.Machine(w.command))
	}
	p.batches++
	for i, r := range p.desk.engines[p.batches%2].DoAll(context.Background(), submissions) {
		if got, want := describe(r), p.waiting[i].answer(); got != want {
			p.Fatalf("command %d of %d, %+v\n got %s\nwant %s", i, len(submissions), p.waiting[i].command, got, want)
		}
	}
	p.waiting = nil
}

// compare compares instances and their history with the model.
func (p *play) compare() {
	var want []string
	for key, t := range p.model.things {
		want = append(want, fmt.Sprintf("%s v%d %s %s %d %s: %s", key, t.version, t.state, t.from, t.revision,
			t.timerTo,
			strings.Join(t.history, ", ")))
	}
	sort.Strings(want)
	got := p.desk.text(`select coalesce(string_agg(line, E'\n' order by line collate "C"), '') from (
		select format('%s v%s %s %s %s %s: %s', key, version, state, came_from, revision, timer_to, (
			select string_agg(format('%s>%s %s:%s', from_state, to_state, actor, cause), ', ' order by revision)
			from machine_history h where h.tenant_id = i.tenant_id and h.instance_id = i.instance_id)) as line
		from machine_instances i where machine = $1) l`, p.name)
	if got != strings.Join(want, "\n") {
		p.Fatalf("rows\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
