package claim_test

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
)

// told is a claim in the model. The unit of time is a minute, so the duration of the test does not matter.
type told struct {
	owner, result string
	uses          int
	expires       int // 0: never
	number        int // of the claim, to look up its fence
}

// model implements the documented behaviour of claims on a map.
type model struct {
	now, numbers int
	keys         map[string]*told
}

func (m *model) live(key string) *told {
	t := m.keys[key]
	if t == nil || t.expires != 0 && t.expires <= m.now {
		return nil
	}
	return t
}

func (m *model) use(key, owner, result string, life int, firstOnly bool) string {
	t := m.live(key)
	switch {
	case t == nil:
		m.numbers++
		t = &told{owner: owner, result: result, uses: 1, number: m.numbers}
		if life > 0 {
			t.expires = m.now + life
		}
		m.keys[key] = t
		return fmt.Sprintf("1 of %s: %s", t.owner, t.result)
	case (t.expires == 0) != (life == 0):
		return "CLAIM_LIFE_DIFFERENT"
	case firstOnly, life == 0 && t.owner != owner:
		return fmt.Sprintf("KEY_CLAIMED by %s: %s, used %d times", t.owner, t.result, t.uses)
	case life == 0:
		return fmt.Sprintf("1 existed of %s: %s", t.owner, t.result)
	}
	t.uses++
	return fmt.Sprintf("%d existed of %s: %s", t.uses, t.owner, t.result)
}

// drop deletes a claim of an owner, or the claim with a number.
func (m *model) drop(key, owner string, number int) string {
	t := m.live(key)
	if t == nil || number != 0 && t.number != number {
		return "false"
	}
	if owner != t.owner && owner != "" {
		return "CLAIM_FOREIGN"
	}
	delete(m.keys, key)
	return "true"
}

// TestClaimsBehaveLikeTheModel runs random uses, drops, time steps and cleaning against the model, with
// several commands in a batch.
func TestClaimsBehaveLikeTheModel(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var plays atomic.Int32
	rapid.Check(t, func(r *rapid.T) {
		tenant := 100 + plays.Add(1)
		p := &play{T: r, desk: d, model: model{keys: map[string]*told{}}, fences: map[int]int64{}}
		p.caller = caller
		p.caller.Tenant = tenant
		r.Repeat(map[string]func(*rapid.T){
			"use":    p.use,
			"drop":   p.drop,
			"commit": func(*rapid.T) { p.commit() },
			"wait": func(r *rapid.T) {
				p.commit()
				minutes := rapid.IntRange(1, 40).Draw(r, "minutes")
				d.age(time.Duration(minutes) * time.Minute)
				p.model.now += minutes
			},
			"clean": func(*rapid.T) {
				p.commit()
				cleanAll(t, d.app)
			},
		})
		p.commit()
		p.compare()
	})
}

type play struct {
	*rapid.T
	desk    *desk
	caller  commit.Caller
	model   model
	fences  map[int]int64 // by the model's numbers
	waiting []step
}

// step is a command waiting for its batch, with the model's answer.
type step struct {
	command flow.Command
	model   func() string
}

var someKeys = rapid.SampledFrom([]string{"a", "b", "c"})

func (p *play) key(r *rapid.T) (scope, key, name string) {
	scope = rapid.SampledFrom([]string{"s", "t"}).Draw(r, "scope")
	key = someKeys.Draw(r, "key")
	return scope, key, scope + " " + key
}

func (p *play) use(r *rapid.T) {
	scope, key, name := p.key(r)
	who := rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(r, "owner")
	life := rapid.SampledFrom([]int{0, 10, 10, 30}).Draw(r, "life")
	only := rapid.Bool().Draw(r, "first only")
	what := fmt.Sprint("order-", rapid.IntRange(1, 9).Draw(r, "result"))
	p.waiting = append(p.waiting, step{
		command: flow.Claim(&claim.Command{Caller: p.caller, Params: claim.Params{Scope: scope, Key: key, Owner: who,
			Life: time.Duration(life) * time.Minute, FirstOnly: only, Result: what}}),
		model: func() string { return p.model.use(name, who, what, life, only) },
	})
}

func (p *play) drop(r *rapid.T) {
	p.commit() // so that fences are known
	scope, key, name := p.key(r)
	params := claim.DropParams{Scope: scope, Key: key}
	number := 0
	if numbers := sortedNumbers(p.fences); len(numbers) > 0 && rapid.Bool().Draw(r, "by fence") {
		number = rapid.SampledFrom(numbers).Draw(r, "number")
		params.Fence = p.fences[number]
	}
	if params.Owner = rapid.SampledFrom([]string{"", "ann", "bob"}).Draw(r, "owner"); params.Owner == "" &&
		number == 0 {
		params.Owner = "ann"
	}
	p.waiting = append(p.waiting, step{command: flow.Claim(&claim.DropCommand{Caller: p.caller, Params: params}),
		model: func() string { return p.model.drop(name, params.Owner, number) }})
}

func sortedNumbers(fences map[int]int64) []int {
	numbers := make([]int, 0, len(fences))
	for n := range fences {
		numbers = append(numbers, n)
	}
	sort.Ints(numbers)
	return numbers
}

// commit runs the waiting commands in one batch and compares the answers.
func (p *play) commit() {
	p.Helper()
	works := make([]flow.Submission, len(p.waiting))
	for i, s := range p.waiting {
		works[i] = submission(s.command)
		works[i].Tenant = p.caller.Tenant
	}
	for i, r := range p.desk.engines[len(works)%2].DoAll(context.Background(), works) {
		before := p.model.numbers
		want := p.waiting[i].model()
		got := ended(r)
		if f := fault.Of(r.Err); f != nil && f.Reason == claim.KeyClaimed {
			got = fmt.Sprintf("KEY_CLAIMED by %s: %s, used %s times", f.Metadata["owner"], f.Metadata["result"],
				f.Metadata["count"])
		}
		if u, ok := r.Outcome.Answer.(claim.Use); ok {
			got = fmt.Sprintf("%s of %s: %s", got, u.First.Owner, u.First.Result)
			if p.model.numbers > before {
				p.fences[p.model.numbers] = u.First.ID
			}
		}
		if got != want {
			p.Fatalf("command %d of %d\n got %s\nwant %s", i, len(works), got, want)
		}
	}
	p.waiting = nil
}

// compare compares the rows with the model.
func (p *play) compare() {
	var want []string
	for name, t := range p.model.keys {
		if p.model.live(name) != nil {
			want = append(want, fmt.Sprintf("%s %s %s %d", name, t.owner, t.result, t.uses))
		}
	}
	slices.Sort(want)
	got := p.desk.text(`select coalesce(string_agg(line, E'\n' order by line collate "C"), '') from (
		select format('%s %s %s %s %s', scope, key, owner, result, uses) as line from claim_keys
		where tenant_id = $1 and (expires_at is null or expires_at > clock_timestamp())) l`, p.caller.Tenant)
	if got != strings.Join(want, "\n") {
		p.Fatalf("rows\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}
