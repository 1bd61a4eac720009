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
	"github.com/ledgerd/ledgerd/internal/pg"
)

// poller finds messages in the database: those that were not handed over, retries, and those of crashed processes. A
// cursor per queue lets polls skip dead index entries, which Postgres cannot remove while an old snapshot is open.
// Discovery finds messages behind the cursor.
type poller struct {
	pool *Pool

	mu      sync.Mutex
	cursors map[queueKey]*cursor
	// active cursors had messages lately. The others, of which there may be many, are checked less often.
	active map[queueKey]*cursor
	idleAt time.Time
	wakes  map[int32]struct{}
	woken  chan struct{}

	discoverAt time.Time
	clock      time.Duration // the database clock minus this process's clock
}

// queueKey identifies a queue in the database.
type queueKey struct {
	tenant   int32
	channel  send.Channel
	priority int16
}

// cursor is the poll position in one queue. next, polled and seen are by this process's clock; since is by the
// database's clock.
type cursor struct {
	since  time.Time
	next   time.Time
	polled time.Time
	seen   time.Time // when it last had messages
	pause  time.Duration
	more   bool // the last poll filled its limit
}

const (
	// firstPause is the time between polls of a queue with messages, lastPause that of one without.
	firstPause = 5 * time.Millisecond
	lastPause  = 2 * time.Second
	// margin is how far a cursor stays behind the present, because transactions commit late. Discovery finds what
	// commits even later.
	margin = time.Second
	// forgetAfter drops the cursor of an idle queue, which leaves the queue to discovery.
	forgetAfter = 10 * time.Minute
	// maxTaken limits the messages taken from one queue, maxQueues the queues of one statement.
	maxTaken  = 500
	maxQueues = 64
	// minTaken is the room that a poll waits for. It uses less if the tenant holds no more messages than fit there.
	minTaken = 50
	// idleTaken limits the messages taken from an idle queue: there are many, and active ones need the room.
	idleTaken = 8
	// discoverPause is the minimum time between discoveries. Discovery uses at most 1/discoverShare of the time.
	discoverPause = 2 * time.Second
	discoverShare = 50
	priorities    = 3
	// idleEvery is the time between checks of the idle queues, whose pauses have grown to longPause.
	idleEvery = 50 * time.Millisecond
	longPause = 100 * time.Millisecond
)

func newPoller(p *Pool) *poller {
	return &poller{pool: p, cursors: make(map[queueKey]*cursor), active: make(map[queueKey]*cursor),
		wakes: make(map[int32]struct{}), woken: make(chan struct{}, 1)}
}

// wake polls all queues of a tenant at once.
func (o *poller) wake(tenant int32) {
	o.mu.Lock()
	o.wakes[tenant] = struct{}{}
	o.mu.Unlock()
	o.signal()
}

// discoverNow runs discovery at once.
func (o *poller) discoverNow() {
	o.mu.Lock()
	o.discoverAt = time.Time{}
	o.mu.Unlock()
	o.signal()
}

// schedule polls a queue when a message will be due.
func (o *poller) schedule(at queueKey, in time.Duration) {
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

// time converts a time of this process's clock to the database's.
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

// cursor returns the cursor of a queue; a new one begins margin ago. The caller holds the lock.
func (o *poller) cursor(at queueKey) *cursor {
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
	backoff := time.Duration(0) // backoff after a database failure
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.woken:
		case <-timer.C:
		}
		next, err := o.pollOnce(ctx, backoff > 0)
		if err != nil && ctx.Err() == nil {
			o.pool.Metrics.pollFailed()
			o.pool.Log.Warn("could not poll for messages to be sent", "error", err)
			backoff = min(max(2*backoff, 100*time.Millisecond), 2*time.Second)
			o.sleep(ctx, backoff)
			timer.Reset(0)
			continue
		}
		backoff = 0
		timer.Reset(max(time.Until(next), 0))
	}
}

func (o *poller) sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// pollOnce runs discovery if it is time, and takes messages for which there is room. It returns when to poll next.
// After a database outage it first waits briefly: other processes have sent messages whose leases expired during the
// outage, and need time to record them as sent.
func (o *poller) pollOnce(ctx context.Context, wasDown bool) (next time.Time, err error) {
	o.mu.Lock()
	at := o.discoverAt
	o.mu.Unlock()
	if wasDown || !time.Now().Before(at) {
		if err := o.discover(ctx); err != nil {
			return next, err
		}
	}
	if wasDown {
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

// discover finds all queues with messages, due now or later.
func (o *poller) discover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	begun := time.Now()
	var rows []db.DueGroupsRow
	now, err := o.pool.transact(pg.ForAllTenants(ctx),
		func(d db.DBTX) (err error) { rows, err = q.DueGroups(ctx, d); return err })
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
		at := queueKey{row.TenantID, send.Channel(row.Channel), row.Priority}
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
		if time.Since(c.seen) > forgetAfter {
			delete(o.cursors, at)
			delete(o.active, at)
		}
	}
	o.pool.Metrics.lags(lag)
	return nil
}

// pick is a queue to take messages from, and the reserved room.
type pick struct {
	queueKey
	since time.Time
	room  int
	each  int64 // bytes reserved per message
}

// pick selects due queues for which there is room: tenants in order of their waiting time, and higher priorities of a
// tenant first.
func (o *poller) pick() (picks []pick) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	due := o.due(now)
	slices.SortFunc(due, func(a, b queueKey) int {
		return cmp.Or(o.cursors[a].next.Compare(o.cursors[b].next), cmp.Compare(a.tenant, b.tenant),
			cmp.Compare(a.priority, b.priority))
	})
	for _, at := range due {
		if len(picks) == maxQueues {
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

// most returns the limit of a poll.
func (c *cursor) most() int {
	if c.pause > longPause {
		return idleTaken
	}
	return maxTaken
}

// due returns the queues whose poll is due. The caller holds the lock.
func (o *poller) due(now time.Time) (due []queueKey) {
	for tenant := range o.wakes {
		for channel := range o.pool.lanes {
			for p := range int16(priorities) {
				at := queueKey{tenant, channel, p}
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

// urgent reports whether a higher priority of the tenant has more messages than fit.
func (o *poller) urgent(at queueKey) bool {
	for p := range at.priority {
		if c := o.cursors[queueKey{at.tenant, at.channel, p}]; c != nil && c.more {
			return true
		}
	}
	return false
}

// room reserves room for up to n messages of a queue, each of so many bytes.
func (p *Pool) room(at queueKey, n int) (got int, each int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[at.channel]
	if !p.open {
		return 0, 0
	}
	each = l.typicalSize
	got = l.reserve(at.tenant, n, each)
	if got < min(n, minTaken) && got < l.tenants[at.tenant].heldBut(got) {
		l.release(at.tenant, got, int64(got)*each)
		return 0, 0
	}
	return got, each
}

// heldBut returns what the tenant holds apart from n messages.
func (x *tenantQueue) heldBut(n int) int {
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

// advance moves the cursors after a poll at the database time now.
func (o *poller) advance(picks []pick, rows []db.QueueTakeRow, now time.Time) {
	counts, last := make([]int, len(picks)), make([]time.Time, len(picks))
	for i := range rows {
		n := rows[i].N - 1
		counts[n]++
		if rows[i].DueAt.After(last[n]) {
			last[n] = rows[i].DueAt
		}
	}
	more := make(map[queueKey]bool)
	o.mu.Lock()
	defer o.mu.Unlock()
	here := time.Now()
	for i, k := range picks {
		c := o.cursor(k.queueKey)
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
		more[k.queueKey] = c.more
	}
	o.pool.setBacklog(more)
}

// setBacklog updates in lanes which tenants have more messages in the database.
func (p *Pool) setBacklog(more map[queueKey]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range maps.Keys(more) {
		backlogged := p.lanes[at.channel].backlogged
		delete(backlogged, at.tenant)
	}
	for at, is := range more {
		if is {
			p.lanes[at.channel].backlogged[at.tenant] = true
		}
	}
}
