package sale

import "github.com/ledgerd/ledgerd/internal/hint"

// maxRemembered limits the sales that a server remembers.
const maxRemembered = 1000

// Memory remembers sales, and which of them had no unit left.
type Memory struct {
	sales *hint.Memory[Key, Sale]
	empty *hint.Memory[Key, bool]
}

// NewMemory returns an empty memory.
func NewMemory() *Memory {
	return &Memory{hint.New[Key](maxRemembered, func(a, b Sale) bool { return a.Equal(&b) }),
		hint.New[Key](maxRemembered, func(a, b bool) bool { return a == b })}
}

// Last returns a sale as this server last read it. empty: it had no unit left then.
func (m *Memory) Last(k Key) (s Sale, empty, ok bool) {
	s, ok = m.sales.Last(k)
	empty, _ = m.empty.Last(k)
	return s, empty, ok
}

func (m *Memory) learn(k Key, s Sale) {
	if m.sales.Learn(k, s) {
		m.empty.Forget(k)
	}
}

// LearnEmpty records whether a sale has no unit left.
func (m *Memory) LearnEmpty(k Key, empty bool) {
	if !empty {
		m.empty.Forget(k)
		return
	}
	m.empty.Learn(k, true)
}
