package deliver

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

var q db.Queries

// Config configures a pool. Zero values mean defaults.
type Config struct {
	// DB needs at least 4 connections for takes, marks and writes. Listening for hints opens one more.
	DB *pgxpool.Pool
	// Senders by channel. Messages of other channels are left to other processes.
	Senders map[send.Channel]send.Sender
	// Policies override the defaults by channel.
	Policies map[send.Channel]Policy
	// Instance names this process in leases and events.
	Instance string
	// Lease is the duration of a lease, default send.Lease.
	Lease time.Duration
	// Room limits the messages of a channel in memory, default 10,000. Bytes limits the memory of all channels
	// together, default 64 MiB.
	Room  int
	Bytes int64
	// Keys makes the idempotency keys of messages.
	Keys send.Keys
	// Secret decrypts sealed content. Without it messages with sealed content end dead.
	Secret *secret.Master
	// Drain is the time for running attempts at shutdown, default 10 s.
	Drain   time.Duration
	Metrics *Metrics
	Log     *slog.Logger
}

// Policy is how messages of a channel are sent. Zero values mean the channel's defaults.
type Policy struct {
	// Attempts limits concurrent attempts, default 128.
	Attempts int
	// Timeout of one attempt, default 20 s, at most a third of the lease.
	Timeout time.Duration
	// Base and Max bound the exponential backoff: up to Base after the first failure, then doubling, up to Max.
	Base, Max time.Duration
}

var policies = map[send.Channel]Policy{
	send.SMS:     {Base: 5 * time.Second, Max: 15 * time.Minute},
	send.Email:   {Base: 30 * time.Second, Max: time.Hour},
	send.Push:    {Base: 5 * time.Second, Max: 15 * time.Minute},
	send.Webhook: {Base: 10 * time.Second, Max: 10 * time.Hour},
}

func (m Policy) defaults(c send.Channel, lease time.Duration) Policy {
	if m.Attempts == 0 {
		m.Attempts = 128
	}
	if m.Timeout == 0 {
		m.Timeout = 20 * time.Second
	}
	m.Timeout = min(m.Timeout, lease/3)
	if m.Base == 0 {
		m.Base = policies[c].Base
	}
	if m.Max == 0 {
		m.Max = max(policies[c].Max, m.Base)
	}
	return m
}

// Pool sends messages. It is the process's send.Handoff. Run must be running.
type Pool struct {
	Config
	poll  *poller
	mark  *marker
	write *writer
	hints *hints

	mu    sync.Mutex
	lanes map[send.Channel]*lane
	open  bool // false before and after Run: nothing is queued

	work sync.WaitGroup // running attempts
	// sending is the parent context of all attempts.
	sending context.Context
	cut     context.CancelFunc
}

var _ send.Handoff = (*Pool)(nil)

// New returns a pool.
func New(c Config) *Pool {
	if c.Lease == 0 {
		c.Lease = send.Lease
	}
	if c.Room == 0 {
		c.Room = 10_000
	}
	if c.Bytes == 0 {
		c.Bytes = 64 << 20
	}
	if c.Drain == 0 {
		c.Drain = 10 * time.Second
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(nil)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	p := &Pool{Config: c, lanes: make(map[send.Channel]*lane)}
	p.sending, p.cut = context.WithCancel(context.Background())
	for channel, sender := range c.Senders {
		p.lanes[channel] = newLane(channel, sender, c.Policies[channel].defaults(channel, c.Lease), c.Room,
			c.Bytes/int64(len(c.Senders)), c.Lease)
		c.Metrics.channel(channel)
	}
	p.poll, p.mark, p.write, p.hints = newPoller(p), newMarker(p), newWriter(p), newHints(p)
	return p
}

// Reserve implements send.Handoff.
func (p *Pool) Reserve(tenant int32, channel send.Channel) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[channel]
	// A tenant with a backlog in the database queues up behind it.
	return l != nil && p.open && !l.backlogged[tenant] && l.reserve(tenant, 1, assumed) == 1
}

// Take implements send.Handoff.
func (p *Pool) Take(jobs []*send.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range jobs {
		p.accept(&job{Job: s, prevState: queued, dueSince: s.Until.Add(-send.Lease)})
	}
}

// Drop implements send.Handoff.
func (p *Pool) Drop(jobs []*send.Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range jobs {
		if l := p.lanes[s.Channel]; l != nil {
			l.release(s.Tenant, 1, assumed)
		}
	}
}

// Due implements send.Handoff.
func (p *Pool) Due(tenant int32) {
	p.poll.wake(tenant)
	p.hints.add(tenant)
}

// accept queues a message for which room is reserved, or gives it back. The caller holds the lock.
func (p *Pool) accept(j *job) {
	j.Key = p.Keys.Of(j.Tenant, j.ID)
	j.size = sizeOf(&j.Message)
	l := p.lanes[j.Channel]
	l.resize(j.Tenant, j.size-assumed)
	l.observeSize(j.size)
	if !p.open {
		p.write.put(j.giveBack())
		return
	}
	if wait := l.overflowWait(j); wait > 0 {
		r := j.giveBack()
		r.wait = wait
		p.write.put(r)
		return
	}
	l.add(j)
	p.start(l)
}

// start begins all attempts that may begin. The caller holds the lock.
func (p *Pool) start(l *lane) {
	for j := l.next(); j != nil; j = l.next() {
		p.work.Go(func() { p.attempts(l, j) })
	}
}

// attempts makes one attempt after another, until none may begin.
func (p *Pool) attempts(l *lane, j *job) {
	for j != nil {
		begun := time.Now()
		r := p.attempt(l, j)
		took := time.Since(begun)
		p.mu.Lock()
		if !r.sent && r.kind == "" { // no provider was asked
			took = 0
			if r.wait > 0 {
				r.wait = l.unaskedWait(j, r.wait)
			}
		}
		l.attemptEnded(j, took)
		j = l.next()
		p.start(l) // other tenants may be allowed more now
		p.mu.Unlock()
		p.write.put(r)
	}
}

// afterWrite schedules a message that was not sent, after its result was written with the given state.
func (p *Pool) afterWrite(r *result, state string) {
	j := r.job
	switch {
	case state == dead || state == unknown:
		p.Metrics.over(j.Channel, state)
	case r.kind == "" && r.wait == 0: // due for another process, or for another try here
		p.hints.add(j.Tenant)
		p.poll.wake(j.Tenant)
	default:
		p.poll.schedule(queueKey{j.Tenant, j.Channel, j.Priority}, r.wait)
	}
}

// releaseAll releases the room of written results.
func (p *Pool) releaseAll(results []*result) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range results {
		p.lanes[r.job.Channel].release(r.job.Tenant, 1, r.job.size)
	}
}

// Run delivers until ctx ends and then shuts down: it starts no more attempts, lets running ones end within Drain,
// gives back unsent messages at once, and writes all results.
func (p *Pool) Run(ctx context.Context) {
	var work, last sync.WaitGroup
	last.Go(p.write.run)
	last.Go(p.mark.run)
	p.mu.Lock()
	p.open = true
	p.mu.Unlock()
	work.Go(func() { p.poll.run(ctx) })
	work.Go(func() { p.hints.run(ctx) })
	work.Go(func() { p.hints.listen(ctx) })
	work.Go(func() { p.watch(ctx) })
	work.Wait()
	p.mu.Lock()
	p.open = false
	for _, l := range p.lanes {
		for _, j := range l.drain() {
			p.write.put(j.giveBack())
		}
	}
	p.mu.Unlock()
	over := make(chan struct{})
	go func() {
		p.work.Wait()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(p.Drain):
		p.Log.Warn("the drain timeout is over: attempts are cancelled, and their messages may have been sent")
		p.cut()
		select {
		case <-over:
		case <-time.After(lastWrites):
			p.Log.Error("attempts did not end: their messages stay leased until the leases expire")
		}
	}
	p.cut()
	p.mark.close()
	p.write.close(lastWrites)
	last.Wait()
	p.hints.flush()
}

// lastWrites limits the writes after all attempts have ended.
const lastWrites = 5 * time.Second

// watch gives back messages that can no longer begin in time, and updates the gauges.
func (p *Pool) watch(ctx context.Context) {
	tick := time.NewTicker(min(time.Second, p.Lease/10))
	defer tick.Stop()
	for counted := (time.Time{}); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.mu.Lock()
		for _, l := range p.lanes {
			for _, j := range l.expire() {
				p.write.put(j.giveBack())
			}
			p.Metrics.inFlight(l.channel, l.running, l.held)
		}
		p.mu.Unlock()
		if time.Since(counted) > parkedEvery {
			counted = time.Now()
			p.countParked(ctx)
		}
	}
}

// parkedEvery is the time between counts of parked messages.
const parkedEvery = 30 * time.Second

func (p *Pool) countParked(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var rows []db.ParkedCountRow
	if _, err := p.transact(pg.ForAllTenants(ctx), func(d db.DBTX) (err error) {
		rows,
			err = q.ParkedCount(ctx, d)
		return err
	}); err != nil {
		p.Log.Debug("could not count dead and unknown messages", "error", err)
		return
	}
	p.Metrics.parkedAre(rows)
}
