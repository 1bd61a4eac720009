package ledger

import "context"

// NewTailThatKeeps is NewTail with less memory.
func NewTailThatKeeps(r *Reader, entries int) *Tail {
	t := NewTail(r)
	t.keep = entries
	return t
}

// State reports whether the tail runs, its number of lanes, and the sum of the entries and groups that it keeps.
func (t *Tail) State() (running bool, lanes, kept int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stop != nil, len(t.lanes), t.entries + len(t.kept)
}

// EntriesAfter is entriesAfter with texts for pattern and position.
func (r *Reader) EntriesAfter(ctx context.Context, tenant int32, cursor, codes string,
	limit int) ([]Commit, string, error) {
	p, err := parsePattern(codes)
	if err != nil {
		return nil, "", err
	}
	commits, epoch, next, err := r.entriesAfter(ctx, tenant, cursor, p, limit)
	if err != nil {
		return nil, "", err
	}
	return commits, next.cursor(epoch), nil
}
