// Package hint caches rows as a server last read them, so that a command can name the rows that it will probably need.
// A hint may be outdated or missing: the command runs again if it finds something else.
package hint

import "sync"

// Memory caches a bounded number of values by key.
type Memory[K comparable, V any] struct {
	limit  int
	equal  func(a, b V) bool
	mu     sync.RWMutex
	values map[K]V
}

// New returns an empty Memory for at most limit values. A value that equals the cached one is not written again.
func New[K comparable, V any](limit int, equal func(a, b V) bool) *Memory[K, V] {
	return &Memory[K, V]{limit: limit, equal: equal, values: map[K]V{}}
}

// Last returns the cached value of a key.
func (m *Memory[K, V]) Last(k K) (v V, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	v, ok = m.values[k]
	return v, ok
}

// Learn caches a value, and returns false if an equal one was cached already. At the limit it evicts other values, at
// random.
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

// Forget removes a value.
func (m *Memory[K, V]) Forget(k K) {
	if _, ok := m.Last(k); !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, k)
}
