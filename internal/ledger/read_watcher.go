package ledger

import (
	"context"
	"slices"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Watcher reads the entries of one tenant whose account codes match a pattern, in commit order, none of them twice. It
// follows the tail from memory; while it is behind, it reads the database. One goroutine uses it.
type Watcher struct {
	tail    *Tail
	tenant  int32
	pattern pattern
	matches func(code string) bool
	lane    *lane

	cursor string // of the caller, until the first read
	placed bool   // epoch and after are set
	epoch  commit.Epoch
	after  position
}

// Watch begins to watch after a cursor: empty for now, "0" for the beginning. Close the watcher at the end. Returns
// fault FIELD_INVALID for an invalid pattern. The first Read validates the cursor.
func (t *Tail) Watch(tenant int32, cursor, codes string) (*Watcher, error) {
	p, err := parsePattern(codes)
	if err != nil {
		return nil, err
	}
	matches, err := p.matcher()
	if err != nil {
		return nil, err
	}
	return &Watcher{tail: t, tenant: tenant, pattern: p, matches: matches, cursor: cursor, lane: t.begin(tenant)}, nil
}

// Close ends the watch.
func (w *Watcher) Close() { w.tail.end(w.tenant, w.lane) }

// Cursor continues after the entries returned so far. Before the first Read it is the cursor that was passed to Watch.
func (w *Watcher) Cursor() string {
	if !w.placed {
		return w.cursor
	}
	return w.after.cursor(w.epoch)
}

// Read reads the next commits from the database, as entriesAfter does.
func (w *Watcher) Read(ctx context.Context, limit int) ([]Commit, error) {
	commits, epoch, next, err := w.tail.reader.entriesAfter(ctx, w.tenant, w.Cursor(), w.pattern, limit)
	if err == nil {
		w.placed, w.epoch, w.after = true, epoch, next
	}
	return commits, err
}

// Follow returns the next commits from memory, until they have limit entries or more. When changed is closed, there may
// be more. following is false if the watcher is behind the tail's memory: then call Read.
func (w *Watcher) Follow(limit int) (commits []Commit, changed <-chan struct{}, following bool, err error) {
	groups, newest, changed, following, err := w.next()
	if err != nil || !following {
		return nil, changed, false, err
	}
	after, sum := w.after, 0
	for _, g := range groups {
		if sum >= limit {
			break
		}
		w.after = g.end
		if entries := w.matching(g, after); len(entries) > 0 {
			commits = append(commits, Commit{Cursor: g.cursor, Entries: entries})
			sum += len(entries)
		}
	}
	if sum < limit && newest.compare(w.after) > 0 {
		w.after = newest
	}
	return commits, changed, true, nil
}

// next returns the groups after the watcher's position, and the tail's position.
func (w *Watcher) next() (groups []*group, newest position, changed <-chan struct{}, following bool, err error) {
	t := w.tail
	t.mu.Lock()
	defer t.mu.Unlock()
	if w.lane.ended {
		if w.lane.err != nil {
			return nil, position{}, nil, false, w.lane.err
		}
		w.lane = t.join(w.tenant)
	}
	l := w.lane
	if !w.placed || !l.ready || w.epoch.Term != t.epoch.Term || w.after.compare(l.since) < 0 {
		return nil, position{}, l.changed, false, nil
	}
	first, _ := slices.BinarySearchFunc(l.groups, w.after, func(g *group, after position) int {
		if g.end.compare(after) <= 0 {
			return -1
		}
		return 1
	})
	return slices.Clone(l.groups[first:]), t.at, l.changed, true, nil
}

// matching returns the matching entries of a group after a position. The position may be within the group, because a
// read of the database may split commits into other groups than the tail.
func (w *Watcher) matching(g *group, after position) (entries []Entry) {
	several := false
	for i := range g.entries {
		if g.batches[i].compare(after) > 0 && w.matches(g.entries[i].Account) {
			entries = append(entries, g.entries[i])
			several = several || g.batches[i] != g.batches[0]
		}
	}
	if several {
		inTime(entries)
	}
	return entries
}
