package deliver

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// poller finds messages in the database: those that nobody was handed, retries, and what dead processes left. It
// remembers how far it has taken each lane of a tenant, so that it does not walk over dead entries of the index again,
// which stay while somebody holds an old snapshot. Discovery finds what is older than that after all.
type poller struct {
	pool *Pool

	mu      sync.Mutex
	cursors map[place]*cursor
	// active are those that had something lately: the others are looked through seldom, since there may be many.
	active map[place]*cursor
	idleAt time.Time
	wakes  map[int32]struct{}
	woken  chan struct{}

	discoverAt time.Time
	clock      time.Duration // the database's minus this process's
}

// place is where messages stand in line.
type place struct {
	tenant   int32
	channel  send.Channel
	priority int16
}

// cursor is how far a place was taken. Times of next and seen are this process's, since the database's.
type cursor struct {
	since  time.Time
	next   time.Time
	polled time.Time
	seen   time.Time // when there was something last
	pause  time.Duration
	more   bool // there was more than was asked for
}

const (
	// firstPause is between polls of a place that had something, lastPause of one that has had nothing for long.
	firstPause = 5 * time.Millisecond
	lastPause  = 2 * time.Second
	// margin is how much earlier than the present a cursor stays: a transaction may commit so late. What commits
	// later still is found by discovery.
	margin = time.Second
	// forget is after how long a place without anything is left to discovery.
	forget = 10 * time.Minute
	// mostTaken are taken of one place at a time, in at most mostPlaces.
	mostTaken  = 500
	mostPlaces = 64
	// leastTaken: less room is waited for, unless it is all that the tenant may have.
	leastTaken = 50
	// fewTaken are of a place that had nothing lately: there are many of them, and room is for those that have.
	fewTaken = 8
	// discoverPause is the time between two discoveries, which may take this share of the time at most.
	discoverPause = 2 * time.Second
	discoverShare = 50
	priorities    = 3
	// idleEvery is between two looks through the places that had nothing lately, which are those whose pauses have
	// grown to longPause.
	idleEvery = 50 * time.Millisecond
	longPause = 100 * time.Millisecond
)

func newPoller(p *Pool) *poller {
	return &poller{pool: p, cursors: make(map[place]*cursor), active: make(map[place]*cursor),
		wakes: make(map[int32]struct{}), woken: make(chan struct{}, 1)}
}

// wake has all places of a tenant polled at once.
func (o *poller) wake(tenant int32) {
	o.mu.Lock()
	o.wakes[tenant] = struct{}{}
	o.mu.Unlock()
	o.signal()
}

// look has everything looked for at once.
func (o *poller) look() {
	o.mu.Lock()
	o.discoverAt = time.Time{}
	o.mu.Unlock()
	o.signal()
}

// expect has a place polled when a message will be due there.
func (o *poller) expect(at place, in time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.cursor(at)
	if next := time.Now().Add(in); next.Before(c.next) {
		c.next = next
		if next.Before(o.idleAt) {
			o.idleAt = next
			o.signal()
		}
	}
}

// time is the database's at a time of this process's.
func (o *poller) time(here time.Time) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return here.Add(o.clock)
}

func (o *poller) signal() {
	select {
	case o.woken <- struct{}{}:
	default:
	}
}

// cursor gives the cursor of a place, which begins a margin ago. The caller holds the lock.
func (o *poller) cursor(at place) *cursor {
	c := o.cursors[at]
	if c == nil {
		now := time.Now()
		c = &cursor{since: now.Add(o.clock - margin), next: now.Add(lastPause), seen: now, pause: lastPause}
		o.cursors[at] = c
		if c.next.Before(o.idleAt) {
			o.idleAt = c.next
		}
	}
	return c
}

func (o *poller) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	away := time.Duration(0) // for how long to leave the database alone: it was not there
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.woken:
		case <-timer.C:
		}
		next, err := o.turn(ctx, away > 0)
		if err != nil && ctx.Err() == nil {
			o.pool.Metrics.pollFailed()
			o.pool.Log.Warn("could not poll for messages to be sent", "error", err)
			away = min(max(2*away, 100*time.Millisecond), 2*time.Second)
			o.sleep(ctx, away)
			timer.Reset(0)
			continue
		}
		away = 0
		timer.Reset(max(time.Until(next), 0))
	}
}

func (o *poller) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// turn discovers, if it is time, and takes what there is room for. It tells when to come again. When the database has
// been away leases have ended of which processes know that their messages were sent: they get a moment to write so.
func (o *poller) turn(ctx context.Context, wasAway bool) (next time.Time, err error) {
	o.mu.Lock()
	at := o.discoverAt
	o.mu.Unlock()
	if wasAway || !time.Now().Before(at) {
		if err := o.discover(ctx); err != nil {
			return next, err
		}
	}
	if wasAway {
		o.sleep(ctx, min(2*time.Second, o.pool.Lease/4))
	}
	picks := o.pick()
	if len(picks) > 0 && ctx.Err() == nil {
		if err := o.take(ctx, picks); err != nil {
			return next, err
		}
	} else {
		o.giveBack(picks)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	next = o.discoverAt
	if o.idleAt.Before(next) {
		next = o.idleAt
	}
	for _, c := range o.active {
		if c.next.Before(next) {
			next = c.next
		}
	}
	return next, nil
}

// discover asks for every place with something to be sent, now or later.
func (o *poller) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	begun := time.Now()
	var rows []db.LanesDiscoverRow
	now, err := o.pool.steered(ctx, func(d db.DBTX) (err error) { rows, err = q.LanesDiscover(ctx, d); return err })
	if err != nil {
		return err
	}
	took := time.Since(begun)
	lag := make(map[send.Channel]time.Duration)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.clock = now.Sub(begun)
	o.discoverAt = time.Now().Add(max(discoverPause, discoverShare*took))
	for _, row := range rows {
		at := place{row.TenantID, send.Channel(row.Channel), row.Priority}
		lag[at.channel] = max(lag[at.channel], now.Sub(row.DueAt))
		if o.pool.lanes[at.channel] == nil {
			continue
		}
		c := o.cursor(at)
		if row.DueAt.Before(c.since) {
			c.since = row.DueAt
		}
		if due := begun.Add(row.DueAt.Sub(now)); due.Before(c.next) {
			c.next = due
			if due.Before(o.idleAt) {
				o.idleAt = due
			}
		}
	}
	for at, c := range o.cursors {
		if time.Since(c.seen) > forget {
			delete(o.cursors, at)
			delete(o.active, at)
		}
	}
	o.pool.Metrics.lags(lag)
	return nil
}

// pick is a place to be taken from, with room for so many.
type pick struct {
	place
	since time.Time
	room  int
	each  int64 // bytes reserved for each
}

// pick chooses among the places whose time has come, as far as there is room: tenants in turn, and of one tenant the
// more urgent before the others.
func (o *poller) pick() (picks []pick) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	due := o.due(now)
	slices.SortFunc(due, func(a, b place) int {
		return cmp.Or(o.cursors[a].next.Compare(o.cursors[b].next), cmp.Compare(a.tenant, b.tenant),
			cmp.Compare(a.priority, b.priority))
	})
	for _, at := range due {
		if len(picks) == mostPlaces {
			break
		}
		c := o.cursors[at]
		room, each := 0, int64(0)
		if !o.urgent(at) {
			room, each = o.pool.room(at, c.most())
		}
		if room == 0 {
			c.next = now.Add(firstPause)
			continue
		}
		picks = append(picks, pick{at, c.since, room, each})
	}
	return picks
}

// most is for how many messages to ask.
func (c *cursor) most() int {
	if c.pause > longPause {
		return fewTaken
	}
	return mostTaken
}

// due are the places whose time has come. The caller holds the lock.
func (o *poller) due(now time.Time) (due []place) {
	for tenant := range o.wakes {
		for channel := range o.pool.lanes {
			for p := range int16(priorities) {
				at := place{tenant, channel, p}
				c := o.cursor(at)
				c.next, c.pause = c.polled.Add(firstPause), firstPause
				o.active[at] = c
			}
		}
	}
	clear(o.wakes)
	if !o.idleAt.After(now) {
		o.idleAt = now.Add(discoverPause)
		for at, c := range o.cursors {
			switch {
			case !c.next.After(now):
				o.active[at] = c
			case c.pause > longPause && c.next.Before(o.idleAt):
				o.idleAt = c.next
			}
		}
		if soon := now.Add(idleEvery); o.idleAt.Before(soon) {
			o.idleAt = soon
		}
	}
	for at, c := range o.active {
		if !c.next.After(now) {
			due = append(due, at)
		} else if c.pause > longPause {
			delete(o.active, at)
		}
	}
	return due
}

// urgent tells whether the tenant has more than it had room for that goes before this.
func (o *poller) urgent(at place) bool {
	for p := range at.priority {
		if c := o.cursors[place{at.tenant, at.channel, p}]; c != nil && c.more {
			return true
		}
	}
	return false
}

// room reserves room for messages of a place, of so many bytes each.
func (p *Pool) room(at place, n int) (got int, each int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[at.channel]
	if !p.open {
		return 0, 0
	}
	each = l.usual
	got = l.reserve(at.tenant, n, each)
	if got < min(n, leastTaken) && got < l.lines[at.tenant].heldBut(got) {
		l.release(at.tenant, got, int64(got)*each)
		return 0, 0
	}
	return got, each
}

// heldBut is what a tenant holds beside n.
func (x *line) heldBut(n int) int {
	if x == nil {
		return 0
	}
	return x.held - n
}

func (o *poller) giveBack(picks []pick) {
	o.pool.mu.Lock()
	defer o.pool.mu.Unlock()
	for _, k := range picks {
		o.pool.lanes[k.channel].release(k.tenant, k.room, int64(k.room)*k.each)
	}
}

// advance moves the cursors on after a take at a time of the database's, and tells which places had how many.
func (o *poller) advance(picks []pick, rows []db.QueueTakeRow, now time.Time) {
	counts, last := make([]int, len(picks)), make([]time.Time, len(picks))
	for i := range rows {
		n := rows[i].N - 1
		counts[n]++
		if rows[i].DueAt.After(last[n]) {
			last[n] = rows[i].DueAt
		}
	}
	more := make(map[place]bool)
	o.mu.Lock()
	defer o.mu.Unlock()
	here := time.Now()
	for i, k := range picks {
		c := o.cursor(k.place)
		c.polled = here
		c.since, c.more = now.Add(-margin), counts[i] == k.room
		switch {
		case c.more:
			if last[i].Before(c.since) {
				c.since = last[i]
			}
			c.next, c.pause, c.seen = here, firstPause, here
		case counts[i] > 0:
			c.pause, c.seen = firstPause, here
			c.next = here.Add(c.pause)
		default:
			c.pause = min(2*c.pause, lastPause)
			c.next = here.Add(c.pause)
			if c.pause > longPause && c.next.Before(o.idleAt) {
				o.idleAt = c.next
			}
		}
		more[k.place] = c.more
	}
	o.pool.note(more)
}

// note tells lanes which tenants have more waiting in the database.
func (p *Pool) note(more map[place]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range maps.Keys(more) {
		behind := p.lanes[at.channel].behind
		delete(behind, at.tenant)
	}
	for at, is := range more {
		if is {
			p.lanes[at.channel].behind[at.tenant] = true
		}
	}
}
