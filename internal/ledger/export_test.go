package ledger

// NewTailThatKeeps is NewTail with less memory.
func NewTailThatKeeps(r *Reader, entries int) *Tail {
	t := NewTail(r)
	t.keep = entries
	return t
}

// State reports whether the tail runs, its number of lanes, and of entries that it keeps.
func (t *Tail) State() (running bool, lanes, kept int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stop != nil, len(t.lanes), t.entries + len(t.kept)
}
