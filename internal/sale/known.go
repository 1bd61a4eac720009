package sale

import "sync"

// maxKnown limits the memory of sales.
const maxKnown = 1000

// memory has sales as this process last read them, and which of them had no unit left: a grab names the rows of what it
// will probably find. It is only a hint: the grab runs again if it finds something else.
type memory struct {
	mu    sync.RWMutex
	sales map[Key]Sale
	empty map[Key]bool
}

var known = memory{sales: map[Key]Sale{}, empty: map[Key]bool{}}

// learn corrects what LastRead returns.
func (m *memory) learn(k Key, s Sale) {
	m.mu.RLock()
	old, ok := m.sales[k]
	m.mu.RUnlock()
	if ok && old.Equal(&s) {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.sales { // evicts in random order
		if len(m.sales) < maxKnown {
			break
		}
		delete(m.sales, k)
		delete(m.empty, k)
	}
	m.sales[k] = s
	delete(m.empty, k)
}

// LearnEmpty notes whether a sale has no unit left.
func LearnEmpty(k Key, empty bool) {
	known.mu.RLock()
	old := known.empty[k]
	known.mu.RUnlock()
	if old == empty {
		return
	}
	known.mu.Lock()
	defer known.mu.Unlock()
	if delete(known.empty, k); empty && len(known.empty) < maxKnown {
		known.empty[k] = true
	}
}

// LastRead returns a sale as this process last read it. empty: it had no unit left then.
func LastRead(k Key) (s Sale, empty, ok bool) {
	known.mu.RLock()
	defer known.mu.RUnlock()
	s, ok = known.sales[k]
	return s, known.empty[k], ok
}
