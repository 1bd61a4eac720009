package lock

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/lock/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// WaitQueue is where the calls of this process wait for locks. The queue itself is in the database: the wait queue
// looks whose turn it is, wakes him, and keeps the places of those who wait. A release wakes the next one
// at once, here, or in another process by a hint; looking is what counts, and hints may be lost.
type WaitQueue struct {
	WaitQueueConfig

	mu     sync.Mutex
	places map[int64]*place // by ticket
	twins  map[twin][]*place
	hints  []int64       // tickets to be told to other processes
	looks  chan struct{} // look now
	tells  chan struct{} // there are hints
	opened chan struct{} // closed when the first call waits
	open   sync.Once
}

// WaitQueueConfig is what a wait queue needs.
type WaitQueueConfig struct {
	// Do runs a command through the engine.
	Do func(ctx context.Context, c commit.Caller, command commit.Command[*Tx]) (any, error)
	// Reads is for looking, and for hints.
	Reads *pgxpool.Pool
	// Instance names this process in the queues.
	Instance string
	// Closing ends all waits when it is closed.
	Closing <-chan struct{}
	Metrics *Metrics
	Log     *slog.Logger
}

// place is one call that waits.
type place struct {
	Key
	ticket int64
	twin   twin
	wake   chan struct{} // of one
	gone   bool          // the place was lost. Guarded by WaitQueue.mu
}

// twin is what calls have in common that are one call, sent more than once: when one of them has the lock, that
// answers the others.
type twin struct {
	Key
	principal, requestKey string
}

// NewWaitQueue makes a wait queue. Run has to run beside it.
func NewWaitQueue(c WaitQueueConfig) *WaitQueue {
	return &WaitQueue{WaitQueueConfig: c, places: make(map[int64]*place), twins: make(map[twin][]*place),
		looks: make(chan struct{}, 1), tells: make(chan struct{}, 1),
		opened: make(chan struct{})}
}

// Try tries once to acquire a lock, with the ticket of one who waits, or 0. replayed: it was acquired before, under
// the same request key, and the place in the queue has not been used.
type Try func(ctx context.Context, ticket int64) (replayed bool, err error)

// answerTime is kept of a call's deadline for its answer.
const answerTime = 250 * time.Millisecond

// Acquire tries to acquire a lock, and waits for it in order of arrival while others have it: for wait,
// and not past the end of ctx. It returns what the last try said, or, when the wait ends, Held or
// PageHeld with the place that the caller had.
func (w *WaitQueue) Acquire(ctx context.Context, c commit.Caller, p AcquireParams, wait time.Duration,
	try Try) (err error) {
	start := time.Now()
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)-answerTime)
	}
	key := twin{Key{c.Tenant, p.Name}, c.Principal, p.RequestKey}
	defer func() {
		if err == nil {
			w.wakeTwins(key)
		}
	}()
	_, err = try(ctx, 0)
	if wait <= 0 || !isHeld(err) {
		return err
	}
	w.Metrics.waiting.Inc()
	defer w.Metrics.waiting.Dec()
	over := time.NewTimer(wait - time.Since(start))
	defer over.Stop()
	outcome := "ended"
	defer func() { w.Metrics.waited(start, outcome) }()
	for again := false; ; again = true {
		err = w.queue(ctx, c, p, key, again, over.C, try)
		switch {
		case err == nil:
			outcome = "acquired"
		case errors.Is(err, errPlaceLost):
			continue
		case isHeld(err):
			outcome = "held"
		}
		return err
	}
}

func isHeld(err error) bool { return fault.Is(err, Held) || fault.Is(err, PageHeld) }

// queue waits once: until it has the lock, its place is lost, or the wait is over. again: it has waited before, and the
// database may still be away.
func (w *WaitQueue) queue(ctx context.Context, c commit.Caller, p AcquireParams, key twin, again bool,
	over <-chan time.Time, try Try) error {
	ticket, err := w.enqueue(ctx, c, p)
	if f := fault.Of(err); again && f != nil && f.Reason.Class == fault.System {
		select {
		case <-over:
		case <-ctx.Done():
		case <-w.Closing:
		case <-time.After(lookPause):
			return errPlaceLost
		}
	}
	if err != nil {
		return err
	}
	if ticket == 0 { // it has become free meanwhile
		if _, err := try(ctx, 0); !isHeld(err) {
			return err
		}
		select {
		case <-over: // others are always faster
			return w.leave(ctx, c, p, 0)
		default:
			return errPlaceLost
		}
	}
	place := w.enter(key, ticket)
	defer w.exit(place)
	for last := false; ; {
		select {
		case <-place.wake:
		case <-over:
			if last = true; p.RequestKey == "" {
				return w.leave(ctx, c, p, ticket)
			} // the same call may have got it in another process
		case <-ctx.Done():
			return w.give(ctx, c, p, ticket,
				fault.NotRun.New("the call timed out or was cancelled while it waited for the lock").Because(ctx.Err()))
		case <-w.Closing:
			return w.give(ctx, c, p, ticket, fault.ShuttingDown.New("the server is shutting down").After(time.Second))
		}
		if !last && w.isGone(place) {
			return errPlaceLost
		}
		switch replayed, err := try(ctx, ticket); {
		case err == nil && !replayed:
			return nil
		case !isHeld(err):
			return w.give(ctx, c, p, ticket, err)
		case last:
			return w.leave(ctx, c, p, ticket)
		}
	}
}

// errPlaceLost: the place lapsed, because the database was away. The wait goes on at the end.
var errPlaceLost = errors.New("lock: the place in the queue was lost")

// enqueue takes a place. It is not cut off when the caller goes away: nobody would know which place to give up.
func (w *WaitQueue) enqueue(ctx context.Context, c commit.Caller, p AcquireParams) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	answer, err := w.Do(ctx, c, &enqueueCommand{Caller: c, Key: Key{c.Tenant, p.Name}, holder: p.Holder,
		instance: w.Instance})
	if err != nil {
		return 0, err
	}
	return answer.(int64), nil
}

// leaveTime bounds the taking and the giving up of a place, for which nobody may be waiting.
const leaveTime = 5 * time.Second

// leave gives a place up because the wait is over, and tells how it stood.
func (w *WaitQueue) leave(ctx context.Context, c commit.Caller, p AcquireParams, ticket int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	answer, err := w.Do(ctx, c, &leaveCommand{AcquireParams: p, Key: Key{c.Tenant, p.Name}, ticket: ticket})
	if err != nil {
		return err
	}
	w.Wake(answer.(left).next)
	return answer.(left).held
}

// give gives a place up because of err.
func (w *WaitQueue) give(ctx context.Context, c commit.Caller, p AcquireParams, ticket int64, err error) error {
	if leaveErr := w.leave(ctx, c, p, ticket); !isHeld(leaveErr) {
		w.Log.Debug("could not leave the queue of a lock; the place will lapse", "error", leaveErr)
	}
	return err
}

func (w *WaitQueue) enter(key twin, ticket int64) *place {
	p := &place{Key: key.Key, ticket: ticket, twin: key, wake: make(chan struct{}, 1)}
	w.mu.Lock()
	w.places[ticket] = p
	if key.requestKey != "" {
		w.twins[key] = append(w.twins[key], p)
	}
	w.mu.Unlock()
	w.open.Do(func() { close(w.opened) })
	w.look()
	return p
}

func (w *WaitQueue) exit(p *place) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.places, p.ticket)
	if rest := slices.DeleteFunc(w.twins[p.twin], func(x *place) bool { return x == p }); len(rest) > 0 {
		w.twins[p.twin] = rest
	} else {
		delete(w.twins, p.twin)
	}
}

// wakeTwins wakes those who wait here and are the same call: the lock may have been acquired for them.
func (w *WaitQueue) wakeTwins(key twin) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.twins[key] {
		signal(p.wake)
	}
}

func (w *WaitQueue) isGone(p *place) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.gone
}

// look has the wait queue look soon.
func (w *WaitQueue) look() { signal(w.looks) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wake wakes him whose turn it is, by his ticket, in whichever process he waits; 0: nobody.
func (w *WaitQueue) Wake(ticket int64) {
	if ticket == 0 || w.wakeHere(ticket) {
		return
	}
	w.mu.Lock()
	w.hints = append(w.hints, ticket)
	w.mu.Unlock()
	signal(w.tells)
}

func (w *WaitQueue) wakeHere(ticket int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.places[ticket]
	if p != nil {
		signal(p.wake)
	}
	return p != nil
}

// Run looks, keeps places and exchanges hints until ctx ends. It does nothing before the first call waits.
func (w *WaitQueue) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { w.tell(ctx) })
	select {
	case <-w.opened:
		work.Go(func() { w.watch(ctx) })
		work.Go(func() { w.keep(ctx) })
		work.Go(func() { w.listen(ctx) })
	case <-ctx.Done():
	}
	work.Wait()
}

// How often the wait queue looks when it hears nothing, and how soon after a lease has ended, so that a look is
// not too early.
const (
	lookPause = 500 * time.Millisecond
	lookAfter = 2 * time.Millisecond
)

// watch wakes whose turn it is.
func (w *WaitQueue) watch(ctx context.Context) {
	timer := time.NewTimer(lookPause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.looks:
		case <-timer.C:
		}
		next, err := w.lookOnce(ctx)
		if err != nil && ctx.Err() == nil {
			w.Log.Warn("could not poll the queues of locks", "error", err)
		}
		timer.Reset(next)
	}
}

// lookOnce wakes those whose turn it is, and tells when to look again.
func (w *WaitQueue) lookOnce(ctx context.Context) (next time.Duration, err error) {
	next = lookPause/2 + rand.N(lookPause)
	queues := w.queues()
	if len(queues) == 0 {
		return next, nil
	}
	var arg db.QueueHeadsParams
	for k := range queues {
		arg.Tenants, arg.Names = append(arg.Tenants, k.Tenant), append(arg.Names, k.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	heads, err := q.QueueHeads(ctx, pg.Planned{DB: w.Reads}, arg)
	for _, h := range heads {
		if h.LeftUs <= 0 {
			w.wakeHere(h.Head)
		} else if end := time.Duration(h.LeftUs)*time.Microsecond + lookAfter; h.Head != 0 {
			next = min(next, end)
		}
	}
	return next, err
}

// queues are the queues in which calls of this process wait.
func (w *WaitQueue) queues() map[Key][]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := make(map[Key][]int64)
	for t, p := range w.places {
		m[p.Key] = append(m[p.Key], t)
	}
	return m
}

// keep keeps the places of all who wait here.
func (w *WaitQueue) keep(ctx context.Context) {
	tick := time.NewTicker(placeKept)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var work sync.WaitGroup
		for k, tickets := range w.queues() {
			work.Go(func() { w.keepQueue(ctx, k, tickets) })
		}
		work.Wait()
	}
}

func (w *WaitQueue) keepQueue(ctx context.Context, k Key, tickets []int64) {
	// All queues are renewed by one turn: one whose row is held must not outlast the places of the others.
	ctx, cancel := context.WithTimeout(ctx, placeKept)
	defer cancel()
	answer, err := w.Do(ctx, commit.Caller{Tenant: k.Tenant, RequestID: "waiting"},
		&keepCommand{Key: k, tickets: tickets})
	if err != nil {
		// the next turn tries again, or they lapse
		w.Log.Debug("could not renew places in the queue of a lock", "error", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range answer.([]int64) {
		if p := w.places[t]; p != nil {
			p.gone = true
			signal(p.wake)
		}
	}
}
