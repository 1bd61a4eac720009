package commit

import (
	"math/rand/v2"
	"testing"
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
