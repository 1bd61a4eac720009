package commit

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestMemoryKeepsTheLastHalfMillion(t *testing.T) {
	t.Parallel()
	m := NewMemory()
	source := rand.NewPCG(1, 2)
	names := make([]uint64, 3*generationNames+generationNames/3)
	for i := range names {
		names[i] = source.Uint64()
		m.Add(names[i])
	}
	last := names[len(names)-generationNames:]
	for i, name := range last {
		if !m.Has(name) {
			t.Fatalf("the one %d before the end is forgotten", len(last)-i)
		}
	}
	forgotten := names[:generationNames]
	kept := 0
	for _, name := range forgotten {
		if m.Has(name) {
			kept++
		}
	}
	if kept > len(forgotten)/500 {
		t.Errorf("%d of %d that it has to forget, or never saw, are taken for known", kept, len(forgotten))
	}
	t.Logf("%d of %d", kept, len(forgotten))
}

// What this process does not know of, another one has recorded. Its answer is found, whatever the command would come to now.
func TestAKeyThatIsTakenForNewAndIsNotIsReplayed(t *testing.T) {
	t.Parallel()
	fails := toyAdd{tenant: 1, onApply: func(*toyBook) error { return TooManyRows.New("too much now") }}
	for name, second := range map[string]Command[*toyBook]{
		"answers":    add("c0", 5),
		"repeats":    add("c0", 5).named("x"),
		"is refused": add("c0", -9_000_000),
		"fails":      &fails,
		"guarded":    &toyGuarded{toyAdd: fails, tries: "c1"},
		"counted":    &toyBoth{toyGuarded{toyAdd: fails, tries: "c1"}, toyCounted{toyAdd: *add("c0", 0), tries: "c1"}},
	} {
		for _, locking := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " locking ", locking), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 2)
				ctx := within(t, 20*time.Second)
				if out, err := w.engine().Do(ctx, keyed("k", add("c0", 5).named("x"))); err != nil || out.Replayed {
					t.Fatal(out, err)
				}
				e := w.engine(patient)
				if locking {
					e.caution.take()
				}
				out, err := e.Do(ctx, keyed("k", second))
				if err != nil || !out.Replayed || string(out.Recorded) != "1000005" {
					t.Errorf("%+v, %v", out, err)
				}
				if n, tries := w.value("c0"), w.value("c1"); n != 1_000_005 || tries != 1_000_000 {
					t.Errorf("the counter is at %d, that of the tries at %d", n, tries)
				}
				if n := e.metric("wrong_guesses_total"); n != 1 {
					t.Errorf("%v wrong guesses", n)
				}
			})
		}
	}
}

func TestKeysOfThisProcessAreLookedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	e := w.engine()
	ctx := within(t, 60*time.Second)
	for i := range 300 {
		for again := range 2 {
			out, err := e.Do(ctx, keyed(fmt.Sprint(i), add("c0", 1)))
			if err != nil || out.Replayed != (again == 1) {
				t.Fatal(i, out, err)
			}
		}
	}
	if n := e.metric("wrong_guesses_total"); n != 0 {
		t.Errorf("%v wrong guesses", n)
	}
}
