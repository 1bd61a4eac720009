package ledger

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// The pause between polls of a tail grows from tailPauseMin to tailPauseMax while there are no new commits. A poll
// reads about tailPage entries. The tail keeps tailKeep entries for watchers that are slow.
const (
	tailPauseMin = 20 * time.Millisecond
	tailPauseMax = time.Second
	tailPage     = 10_000
	tailKeep     = 50_000
)

// Tail follows the commits of the database for all watchers of a process, with one query at a time, and none while
// there are no watchers. It keeps the newest entries of the watched tenants in memory. A Watcher that is behind
// these entries reads the database until it has caught up.
type Tail struct {
	reader *Reader
	keep   int // tailKeep, except in tests

	mu       sync.Mutex
	watchers int
	stop     context.CancelFunc // ends run; nil: there are no watchers
	lanes    map[int32]*lane    // by tenant
	epoch    commit.Epoch
	at       position // all commits up to here were read
	known    bool     // epoch and at are set
	polling  bool     // a poll is running; it reads for the lanes that existed when it began
	kept     []*group // of all lanes, oldest first
	entries  int      // in kept
}

// lane is the tail's state of one tenant.
type lane struct {
	watchers int
	ready    bool     // since is set
	since    position // groups have all of the tenant's entries after it, as far as the tail has read
	groups   []*group
	changed  chan struct{} // closed and replaced when there are new groups, or when the lane has ended
	ended    bool
	err      error // why the lane ended; nil: the epoch did
}

// group is the entries of one tenant in batches that are delivered together. It is immutable.
type group struct {
	lane    *lane
	end     position
	cursor  string
	entries []Entry
	batches []position // of each entry
}

// NewTail makes the tail of a process.
func NewTail(r *Reader) *Tail { return &Tail{reader: r, keep: tailKeep, lanes: make(map[int32]*lane)} }

// join adds a watcher to the lane of its tenant.
func (t *Tail) join(tenant int32) *lane {
	l := t.lanes[tenant]
	if l == nil {
		l = &lane{changed: make(chan struct{})}
		if t.known && !t.polling {
			l.ready, l.since = true, t.at
		}
		t.lanes[tenant] = l
	}
	l.watchers++
	return l
}

// leave removes a watcher from a lane. The last watcher of a lane removes the lane, with its groups, from the tail.
func (t *Tail) leave(tenant int32, l *lane) {
	if l.watchers--; l.watchers > 0 || l.ended {
		return
	}
	delete(t.lanes, tenant)
	t.entries -= l.size()
	t.kept = slices.DeleteFunc(t.kept, func(g *group) bool { return g.lane == l })
}

func (l *lane) size() (entries int) {
	for _, g := range l.groups {
		entries += len(g.entries)
	}
	return entries
}

func (l *lane) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// begin registers a watcher, and starts the tail with the first one.
func (t *Tail) begin(tenant int32) *lane {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.watchers++; t.stop == nil {
		ctx, cancel := context.WithCancel(context.Background())
		t.stop = cancel
		go t.run(ctx)
	}
	return t.join(tenant)
}

// end unregisters a watcher. The last one stops the tail.
func (t *Tail) end(tenant int32, l *lane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leave(tenant, l)
	if t.watchers--; t.watchers == 0 {
		t.stop() // run changes nothing after that
		t.stop = nil
		t.reset(nil)
	}
}

// reset drops all groups and the position, and ends all lanes.
func (t *Tail) reset(err error) {
	for _, l := range t.lanes {
		l.ended, l.err = true, err
		l.wake()
	}
	clear(t.lanes)
	t.kept, t.entries, t.known, t.polling = nil, 0, false, false
}

// run polls until ctx ends. An error ends all lanes: their watchers return the error, and later watchers get new lanes.
func (t *Tail) run(ctx context.Context) {
	for pause := tailPauseMin; ; {
		progress, err := t.poll(ctx)
		t.mu.Lock()
		if err != nil && ctx.Err() == nil {
			t.reset(err)
		}
		t.mu.Unlock()
		switch {
		case progress == pageFull:
			pause = 0
		case progress == pageSome:
			pause = tailPauseMin
		default:
			pause = min(max(2*pause, tailPauseMin), tailPauseMax)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// progress of a poll.
type progress int

const (
	pageEmpty progress = iota
	pageSome
	pageFull // there may be more
)

// poll reads the next commits.
func (t *Tail) poll(ctx context.Context) (progress, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	epoch, err := commit.CurrentEpoch(ctx, t.reader.pool)
	if err != nil {
		return pageEmpty, err
	}
	if !t.knows(ctx, epoch) {
		at, err := t.reader.lastCommit(ctx)
		if err != nil {
			return pageEmpty, err
		}
		t.locate(ctx, epoch, at)
	}
	lanes, after := t.beginPoll(ctx)
	page, err := t.reader.tailPage(ctx, lanes, after)
	if err != nil || len(page.batches) == 0 {
		t.endPoll(ctx, nil, after)
		return pageEmpty, err
	}
	at := page.batches[len(page.batches)-1].position
	t.endPoll(ctx, page.groups(lanes, epoch), at)
	if page.more {
		return pageFull, nil
	}
	return pageSome, nil
}

// knows reports whether the tail has a position in the epoch. If the epoch has changed, all lanes end: their watchers
// then read the database, which refuses their cursors.
func (t *Tail) knows(ctx context.Context, epoch commit.Epoch) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() == nil && t.known && t.epoch.Term != epoch.Term {
		t.reset(nil)
	}
	return t.known
}

// locate sets the tail's first position.
func (t *Tail) locate(ctx context.Context, epoch commit.Epoch, at position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() == nil {
		t.epoch, t.at, t.known = epoch, at, true
		t.openLanes()
	}
}

// openLanes marks new lanes as ready: from the tail's position on, they get all entries of their tenants.
func (t *Tail) openLanes() {
	for _, l := range t.lanes {
		if !l.ready {
			l.ready, l.since = true, t.at
			l.wake()
		}
	}
}

// beginPoll returns the lanes for which the poll reads entries, and the position to read from.
func (t *Tail) beginPoll(ctx context.Context) (map[int32]*lane, position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lanes := make(map[int32]*lane, len(t.lanes))
	if ctx.Err() == nil {
		t.polling = true
		for tenant, l := range t.lanes {
			lanes[tenant] = l
		}
	}
	return lanes, t.at
}

// endPoll adds the groups that the poll read, and drops the oldest ones above the limit.
func (t *Tail) endPoll(ctx context.Context, groups []*group, at position) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	t.polling, t.at = false, at
	woken := map[*lane]bool{}
	for _, g := range groups {
		if l := g.lane; l.watchers > 0 {
			l.groups, woken[l] = append(l.groups, g), true
			t.kept = append(t.kept, g)
			t.entries += len(g.entries)
		}
	}
	for t.entries > t.keep {
		g := t.kept[0]
		t.kept[0], g.lane.groups[0] = nil, nil
		t.kept, g.lane.groups = t.kept[1:], g.lane.groups[1:]
		g.lane.since = g.end
		t.entries -= len(g.entries)
	}
	for l := range woken {
		l.wake()
	}
	t.openLanes()
}

// compare orders positions.
func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.epoch, q.epoch), cmp.Compare(p.xid, q.xid), cmp.Compare(p.batch, q.batch))
}

// tailRows are commits in whole groups, with the entries of some tenants.
type tailRows struct {
	batches []watchedBatch
	rows    []db.EntryOfTenantsRow // ordered by batch within each tenant; N is the index of the batch
	more    bool
}

// tailPage reads the final commits after a position, until there are about tailPage entries.
func (r *Reader) tailPage(ctx context.Context, lanes map[int32]*lane, after position) (page tailRows, err error) {
	tenants := make([]int32, 0, len(lanes))
	for tenant := range lanes {
		tenants = append(tenants, tenant)
	}
	err = pg.Snapshot(pg.ForTenants(ctx, tenants...), r.pool, func(d pg.DB) error {
		batches, err := commitsAfter(ctx, d, after)
		if err != nil {
			return err
		}
		read, end := 0, 0
		for count := countBatches; read < len(batches) && (end == 0 || len(page.rows) < tailPage); count *= 2 {
			part := batches[read:min(read+count, len(batches))]
			rows, err := q.EntryOfTenants(ctx, d, db.EntryOfTenantsParams{Tenants: tenants, BatchIds: batchIDs(part)})
			if err != nil {
				return err
			}
			for i := range rows {
				rows[i].N += int32(read - 1)
			}
			page.rows = append(page.rows, rows...)
			for i := range part {
				if part[i].cut {
					end = read + i + 1
				}
			}
			read += len(part)
		}
		page.batches, page.more = batches[:end], end < len(batches) || len(batches) >= watchBatches
		return nil
	})
	return page, err
}

// groups returns the entries by tenant and group. The groups of each tenant are in order.
func (p *tailRows) groups(lanes map[int32]*lane, epoch commit.Epoch) (groups []*group) {
	ends := make([]int, len(p.batches)) // index of the last batch of the same group
	for i, end := len(p.batches)-1, 0; i >= 0; i-- {
		if p.batches[i].cut {
			end = i
		}
		ends[i] = end
	}
	newest := map[int32]*group{}
	for _, row := range p.rows {
		if int(row.N) >= len(p.batches) {
			continue // after the last whole group: for the next poll
		}
		g, end := newest[row.TenantID], p.batches[ends[row.N]].position
		if g == nil || g.end != end {
			g = &group{lane: lanes[row.TenantID], end: end, cursor: end.cursor(epoch)}
			newest[row.TenantID] = g
			groups = append(groups, g)
		}
		g.entries = append(g.entries, tailEntry(row))
		g.batches = append(g.batches, p.batches[row.N].position)
	}
	return groups
}

func tailEntry(r db.EntryOfTenantsRow) Entry {
	return watchedEntry(db.EntryOfBatchRow{AccountID: r.AccountID, Code: r.Code, Asset: r.Asset, Scale: r.Scale,
		Version: r.Version, TransferID: r.TransferID, Posting: r.Posting, Amount: r.Amount,
		BalanceBefore: r.BalanceBefore, BalanceAfter: r.BalanceAfter, RecordedAt: r.RecordedAt,
		EffectiveAt: r.EffectiveAt})
}
