// Package hint remembers rows as a server last read them, so that a command can name the rows that it will probably
// need. A hint may be outdated or missing: the command runs again if it finds something else.
package hint

import "sync"

// Memory remembers a bounded number of values by key.
type Memory[K comparable, V any] struct {
	limit  int
	equal  func(a, b V) bool
	mu     sync.RWMutex
	values map[K]V
}

// New returns an empty memory of at most limit values. equal avoids writes of what is remembered already.
func New[K comparable, V any](limit int, equal func(a, b V) bool) *Memory[K, V] {
	return &Memory[K, V]{limit: limit, equal: equal, values: map[K]V{}}
}

// Last returns the value that was read last.
func (m *Memory[K, V]) Last(k K) (v V, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v, ok = m.values[k]
	return v, ok
}

// Learn remembers a value, and reports whether it is news. It forgets others, at random, when there are too many.
func (m *Memory[K, V]) Learn(k K, v V) (news bool) {
	if old, ok := m.Last(k); ok && m.equal(old, v) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for other := range m.values {
		if len(m.values) < m.limit {
			break
		}
		delete(m.values, other)
	}
	m.values[k] = v
	return true
}

// Forget forgets a value.
func (m *Memory[K, V]) Forget(k K) {
	if _, ok := m.Last(k); !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, k)
}
