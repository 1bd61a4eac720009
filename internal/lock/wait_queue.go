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

// WaitQueue tracks the calls of this process that wait for locks. The queue itself is in the database. The
// WaitQueue polls it, wakes the next waiter in line, and renews the queue entries of its calls. A release wakes
// the next waiter immediately: in this process directly, in another process by a notification. Notifications
// may be lost; only polling is relied on.
type WaitQueue struct {
	WaitQueueConfig

	mu         sync.Mutex
	waiting    map[int64]*waitingCall // by ticket
	duplicates map[callKey][]*waitingCall
	hints      []int64       // tickets to notify other processes about
	polls      chan struct{} // poll now
	hintReady  chan struct{} // hints has entries
	opened     chan struct{} // closed by the first waiting call
	open       sync.Once
}

// WaitQueueConfig configures a WaitQueue.
type WaitQueueConfig struct {
	// Do runs a command through the engine.
	Do func(ctx context.Context, c commit.Caller, command commit.Command[*Tx]) (any, error)
	// Reads is the pool for polling and notifications.
	Reads *pgxpool.Pool
	// Instance names this process in the queues.
	Instance string
	// Closing ends all waits when closed.
	Closing <-chan struct{}
	Metrics *Metrics
	Log     *slog.Logger
}

// waitingCall is one call that waits.
type waitingCall struct {
	Key
	ticket  int64
	callKey callKey
	wake    chan struct{} // capacity 1
	gone    bool          // the queue entry was lost; guarded by WaitQueue.mu
}

// callKey identifies retries of one call: when one of them acquires the lock, its answer also serves the others.
type callKey struct {
	Key
	principal, requestKey string
}

// NewWaitQueue makes a WaitQueue. The caller must also run Run.
func NewWaitQueue(c WaitQueueConfig) *WaitQueue {
	return &WaitQueue{WaitQueueConfig: c, waiting: make(map[int64]*waitingCall),
		duplicates: make(map[callKey][]*waitingCall), polls: make(chan struct{}, 1), hintReady: make(chan struct{}, 1),
		opened: make(chan struct{})}
}

// Try attempts once to acquire a lock, with the ticket of the waiting call or 0. replayed reports that an
// earlier call with the same request key acquired the lock, so that the queue entry was not used.
type Try func(ctx context.Context, ticket int64) (replayed bool, err error)

// answerReserve is the part of a call's deadline that is reserved for sending the answer.
const answerReserve = 250 * time.Millisecond

// Acquire acquires a lock. While the lock is taken, it waits in order of arrival, for at most wait and not past
// ctx's deadline. It returns the result of the last try or, when the wait ends, Held or PageHeld with the
// caller's position in the queue.
func (w *WaitQueue) Acquire(ctx context.Context, c commit.Caller, p AcquireParams, wait time.Duration,
	try Try) (err error) {
	start := time.Now()
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)-answerReserve)
	}
	key := callKey{Key{c.Tenant, p.Name}, c.Principal, p.RequestKey}
	defer func() {
		if err == nil {
			w.wakeDuplicates(key)
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
		case errors.Is(err, errTicketLost):
			continue
		case isHeld(err):
			outcome = "held"
		}
		return err
	}
}

func isHeld(err error) bool { return fault.Is(err, Held) || fault.Is(err, PageHeld) }

// queue waits once: until the lock is acquired, the queue entry is lost, or the wait is over. again means that
// an earlier wait lost its entry, so the database may still be unavailable. If the outcome of queuing is unknown,
// the call queues again too: an entry that was written after all is not renewed, so it soon expires.
func (w *WaitQueue) queue(ctx context.Context, c commit.Caller, p AcquireParams, key callKey, again bool,
	over <-chan time.Time, try Try) error {
	ticket, err := w.enqueue(ctx, c, p)
	if f := fault.Of(err); f != nil && (again && f.Reason.Class == fault.System || f.Reason == fault.OutcomeUnknown) {
		select {
		case <-over:
		case <-ctx.Done():
		case <-w.Closing:
		case <-time.After(pollInterval):
			return errTicketLost
		}
	}
	if err != nil {
		return err
	}
	if ticket == 0 { // the lock became free in the meantime
		if _, err := try(ctx, 0); !isHeld(err) {
			return err
		}
		select {
		case <-over: // other callers got the lock first every time
			return w.leave(ctx, c, p, 0)
		default:
			return errTicketLost
		}
	}
	entry := w.register(key, ticket)
	defer w.unregister(entry)
	for last := false; ; {
		select {
		case <-entry.wake:
		case <-over:
			if last = true; p.RequestKey == "" {
				return w.leave(ctx, c, p, ticket)
			} // a retry of this call may have acquired the lock in another process
		case <-ctx.Done():
			return w.abandon(ctx, c, p, ticket,
				fault.NotRun.New("the call timed out or was cancelled while it waited for the lock").Because(ctx.Err()))
		case <-w.Closing:
			return w.abandon(ctx, c, p, ticket,
				fault.ShuttingDown.New("the server is shutting down").After(time.Second))
		}
		if !last && w.isLost(entry) {
			return errTicketLost
		}
		switch replayed, err := try(ctx, ticket); {
		case err == nil && !replayed:
			return nil
		case !isHeld(err):
			return w.abandon(ctx, c, p, ticket, err)
		case last:
			return w.leave(ctx, c, p, ticket)
		}
	}
}

// errTicketLost: the queue entry expired because the database was unavailable. The caller queues again, at the end.
var errTicketLost = errors.New("lock: the queue entry expired")

// enqueue inserts a queue entry. It ignores cancellation by the caller: with the answer lost, the ticket to
// delete would be unknown.
func (w *WaitQueue) enqueue(ctx context.Context, c commit.Caller, p AcquireParams) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	answer, err := w.Do(ctx, c, &enqueueCommand{Caller: c, Key: Key{c.Tenant, p.Name}, holder: p.Holder,
		instance: w.Instance})
	if err != nil {
		return 0, err
	}
	return answer.(int64), nil
}

// leaveTimeout bounds inserting and deleting a queue entry, which no caller may be waiting for.
const leaveTimeout = 5 * time.Second

// leave deletes the queue entry because the wait is over, and returns the refusal with the caller's position.
func (w *WaitQueue) leave(ctx context.Context, c commit.Caller, p AcquireParams, ticket int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	answer, err := w.Do(ctx, c, &leaveCommand{AcquireParams: p, Key: Key{c.Tenant, p.Name}, ticket: ticket})
	if err != nil {
		return err
	}
	w.Wake(answer.(leaveResult).next)
	return answer.(leaveResult).held
}

// abandon deletes the queue entry because of err.
func (w *WaitQueue) abandon(ctx context.Context, c commit.Caller, p AcquireParams, ticket int64, err error) error {
	if leaveErr := w.leave(ctx, c, p, ticket); !isHeld(leaveErr) {
		w.Log.Debug("could not delete the queue entry of a lock; it expires by itself", "error", leaveErr)
	}
	return err
}

func (w *WaitQueue) register(key callKey, ticket int64) *waitingCall {
	p := &waitingCall{Key: key.Key, ticket: ticket, callKey: key, wake: make(chan struct{}, 1)}
	w.mu.Lock()
	w.waiting[ticket] = p
	if key.requestKey != "" {
		w.duplicates[key] = append(w.duplicates[key], p)
	}
	w.mu.Unlock()
	w.open.Do(func() { close(w.opened) })
	w.poll()
	return p
}

func (w *WaitQueue) unregister(p *waitingCall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, p.ticket)
	if rest := slices.DeleteFunc(w.duplicates[p.callKey], func(x *waitingCall) bool { return x == p }); len(rest) > 0 {
		w.duplicates[p.callKey] = rest
	} else {
		delete(w.duplicates, p.callKey)
	}
}

// wakeDuplicates wakes the waiting retries of a call: the lock may have been acquired for them.
func (w *WaitQueue) wakeDuplicates(key callKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.duplicates[key] {
		signal(p.wake)
	}
}

func (w *WaitQueue) isLost(p *waitingCall) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return p.gone
}

// poll requests a poll soon.
func (w *WaitQueue) poll() { signal(w.polls) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wake wakes the waiter with this ticket, in this process or by a notification in another one; 0: none.
func (w *WaitQueue) Wake(ticket int64) {
	if ticket == 0 || w.wakeHere(ticket) {
		return
	}
	w.mu.Lock()
	w.hints = append(w.hints, ticket)
	w.mu.Unlock()
	signal(w.hintReady)
}

func (w *WaitQueue) wakeHere(ticket int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.waiting[ticket]
	if p != nil {
		signal(p.wake)
	}
	return p != nil
}

// Run polls, renews queue entries and exchanges hints until ctx ends. It is idle until the first call waits.
func (w *WaitQueue) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { w.sendHints(ctx) })
	select {
	case <-w.opened:
		work.Go(func() { w.pollLoop(ctx) })
		work.Go(func() { w.renewLoop(ctx) })
		work.Go(func() { w.listen(ctx) })
	case <-ctx.Done():
	}
	work.Wait()
}

// pollInterval is the mean time between polls without a notification; expiryMargin is the delay after a lease's
// end, so that a poll is not too early.
const (
	pollInterval = 500 * time.Millisecond
	expiryMargin = 2 * time.Millisecond
)

// pollLoop wakes waiters whose turn has come.
func (w *WaitQueue) pollLoop(ctx context.Context) {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.polls:
		case <-timer.C:
		}
		next, err := w.pollOnce(ctx)
		if err != nil && ctx.Err() == nil {
			w.Log.Warn("could not poll the lock queues", "error", err)
		}
		timer.Reset(next)
	}
}

// pollOnce wakes the waiters whose turn has come, and returns when to poll again.
func (w *WaitQueue) pollOnce(ctx context.Context) (next time.Duration, err error) {
	next = pollInterval/2 + rand.N(pollInterval)
	queues := w.queues()
	if len(queues) == 0 {
		return next, nil
	}
	var arg db.QueueHeadsParams
	for k := range queues {
		arg.Tenants = append(arg.Tenants, k.Tenant)
		arg.Names = append(arg.Names, k.Name)
	}
	ctx, cancel := context.WithTimeout(pg.ForTenants(ctx, arg.Tenants...), 5*time.Second)
	defer cancel()
	heads, err := q.QueueHeads(ctx, pg.Planned{DB: w.Reads}, arg)
	for _, h := range heads {
		if h.LeftUs <= 0 {
			w.wakeHere(h.Head)
		} else if end := time.Duration(h.LeftUs)*time.Microsecond + expiryMargin; h.Head != 0 {
			next = min(next, end)
		}
	}
	return next, err
}

// queues groups this process's waiting tickets by lock.
func (w *WaitQueue) queues() map[Key][]int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := make(map[Key][]int64)
	for t, p := range w.waiting {
		m[p.Key] = append(m[p.Key], t)
	}
	return m
}

// renewLoop renews the queue entries of this process.
func (w *WaitQueue) renewLoop(ctx context.Context) {
	tick := time.NewTicker(waiterRenewInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var work sync.WaitGroup
		for k, tickets := range w.queues() {
			work.Go(func() { w.renewQueue(ctx, k, tickets) })
		}
		work.Wait()
	}
}

func (w *WaitQueue) renewQueue(ctx context.Context, k Key, tickets []int64) {
	// The queues are renewed concurrently and under one timeout: a blocked row must not let entries of other
	// queues expire.
	ctx, cancel := context.WithTimeout(ctx, waiterRenewInterval)
	defer cancel()
	answer, err := w.Do(ctx, commit.Caller{Tenant: k.Tenant, RequestID: "waiting"},
		&renewWaitersCommand{Key: k, tickets: tickets})
	if err != nil {
		w.Log.Debug("could not renew the queue entries of a lock; trying again", "error", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range answer.([]int64) {
		if p := w.waiting[t]; p != nil {
			p.gone = true
			signal(p.wake)
		}
	}
}
