package hint_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/hint"
)

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	m := hint.New[int](10, func(a, b string) bool { return a == b })
	for i := range 100 {
		if !m.Learn(i, "x") {
			t.Errorf("%d is no news", i)
		}
		if v, ok := m.Last(i); v != "x" || !ok {
			t.Errorf("%d is %q, %v", i, v, ok)
		}
	}
	left := 0
	for i := range 100 {
		if _, ok := m.Last(i); ok {
			left++
		}
	}
	if left != 10 {
		t.Errorf("%d are left", left)
	}
	if m.Learn(99, "x") || !m.Learn(99, "y") {
		t.Error("news is what differs")
	}
	if m.Forget(99); m.Learn(99, "y") != true {
		t.Error("99 was not forgotten")
	}
}
