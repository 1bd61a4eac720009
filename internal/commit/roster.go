package commit

import "sync"

// roster knows the rows that the batches of this process have locked or are about to lock, by hash.
// A batch that needs one of them waits here, not in the database: there it would hold a connection in
// a lock wait that counts against LockTimeout, and would have to look at each of those rows once more
// when the wait is over. Batches without a row in common run side by side.
type roster struct {
	door  sync.Mutex // held by the batch whose turn it is, so that none is passed over for ever
	mu    sync.Mutex
	freed sync.Cond
	rows  map[uint64]struct{}
}

func newRoster() *roster {
	r := &roster{rows: make(map[uint64]struct{})}
	r.freed.L = &r.mu
	return r
}

// enter waits until no other batch has one of the rows, then takes them all.
func (r *roster) enter(rows []uint64) {
	r.door.Lock()
	defer r.door.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.taken(rows) {
		r.freed.Wait()
	}
	for _, row := range rows {
		r.rows[row] = struct{}{}
	}
}

func (r *roster) taken(rows []uint64) bool {
	for _, row := range rows {
		if _, taken := r.rows[row]; taken {
			return true
		}
	}
	return false
}

// leave gives the rows of enter back.
func (r *roster) leave(rows []uint64) {
	if len(rows) == 0 {
		return
	}
	r.mu.Lock()
	for _, row := range rows {
		delete(r.rows, row)
	}
	r.mu.Unlock()
	r.freed.Broadcast()
}
