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

// Room is where the calls of this process wait for locks. The queue itself is in the database: the room
// looks whose turn it is, wakes him, and keeps the places of those who wait. A release wakes the next one
// at once, here, or in another process by a hint; looking is what counts, and hints may be lost.
type Room struct {
	RoomConfig

	mu     sync.Mutex
	places map[int64]*place // by ticket
	twins  map[twin][]*place
	hints  []int64       // tickets to be told to other processes
	looks  chan struct{} // look now
	tells  chan struct{} // there are hints
	opened chan struct{} // closed when the first call waits
	open   sync.Once
}

// RoomConfig is what a room needs.
type RoomConfig struct {
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
	gone   bool          // the place was lost. Guarded by Room.mu
}

// twin is what calls have in common that are one call, sent more than once: when one of them has the lock, that
// answers the others.
type twin struct {
	Key
	principal, requestKey string
}

// NewRoom makes a room. Run has to run beside it.
func NewRoom(c RoomConfig) *Room {
	return &Room{RoomConfig: c, places: make(map[int64]*place), twins: make(map[twin][]*place), looks: make(chan struct{}, 1), tells: make(chan struct{}, 1),
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
func (r *Room) Acquire(ctx context.Context, c commit.Caller, p AcquireParams, wait time.Duration, try Try) (err error) {
	start := time.Now()
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)-answerTime)
	}
	key := twin{Key{c.Tenant, p.Name}, c.Principal, p.RequestKey}
	defer func() {
		if err == nil {
			r.wakeTwins(key)
		}
	}()
	_, err = try(ctx, 0)
	if wait <= 0 || !isHeld(err) {
		return err
	}
	r.Metrics.waiting.Inc()
	defer r.Metrics.waiting.Dec()
	over := time.NewTimer(wait - time.Since(start))
	defer over.Stop()
	outcome := "ended"
	defer func() { r.Metrics.waited(start, outcome) }()
	for again := false; ; again = true {
		err = r.queue(ctx, c, p, key, again, over.C, try)
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
func (r *Room) queue(ctx context.Context, c commit.Caller, p AcquireParams, key twin, again bool, over <-chan time.Time, try Try) error {
	ticket, err := r.enqueue(ctx, c, p)
	if f := fault.Of(err); again && f != nil && f.Reason.Class == fault.System {
		select {
		case <-over:
		case <-ctx.Done():
		case <-r.Closing:
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
			return r.leave(ctx, c, p, 0)
		default:
			return errPlaceLost
		}
	}
	place := r.enter(key, ticket)
	defer r.exit(place)
	for last := false; ; {
		select {
		case <-place.wake:
		case <-over:
			if last = true; p.RequestKey == "" {
				return r.leave(ctx, c, p, ticket)
			} // the same call may have got it in another process
		case <-ctx.Done():
			return r.give(ctx, c, p, ticket, fault.NotRun.New("the call ended while it waited for the lock").Because(ctx.Err()))
		case <-r.Closing:
			return r.give(ctx, c, p, ticket, fault.ShuttingDown.New("the server is ending").After(time.Second))
		}
		if !last && r.isGone(place) {
			return errPlaceLost
		}
		switch replayed, err := try(ctx, ticket); {
		case err == nil && !replayed:
			return nil
		case !isHeld(err):
			return r.give(ctx, c, p, ticket, err)
		case last:
			return r.leave(ctx, c, p, ticket)
		}
	}
}

// errPlaceLost: the place lapsed, because the database was away. The wait goes on at the end.
var errPlaceLost = errors.New("lease: the place in the queue was lost")

// enqueue takes a place. It is not cut off when the caller goes away: nobody would know which place to give up.
func (r *Room) enqueue(ctx context.Context, c commit.Caller, p AcquireParams) (int64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	answer, err := r.Do(ctx, c, &enqueueCommand{Caller: c, Key: Key{c.Tenant, p.Name}, holder: p.Holder, instance: r.Instance})
	if err != nil {
		return 0, err
	}
	return answer.(int64), nil
}

// leaveTime bounds the taking and the giving up of a place, for which nobody may be waiting.
const leaveTime = 5 * time.Second

// leave gives a place up because the wait is over, and tells how it stood.
func (r *Room) leave(ctx context.Context, c commit.Caller, p AcquireParams, ticket int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	answer, err := r.Do(ctx, c, &leaveCommand{AcquireParams: p, Key: Key{c.Tenant, p.Name}, ticket: ticket})
	if err != nil {
		return err
	}
	r.Wake(answer.(left).next)
	return answer.(left).held
}

// give gives a place up because of err.
func (r *Room) give(ctx context.Context, c commit.Caller, p AcquireParams, ticket int64, err error) error {
	if leaveErr := r.leave(ctx, c, p, ticket); !isHeld(leaveErr) {
		r.Log.Debug("a place in a queue was not given up; it lapses", "error", leaveErr)
	}
	return err
}

func (r *Room) enter(key twin, ticket int64) *place {
	p := &place{Key: key.Key, ticket: ticket, twin: key, wake: make(chan struct{}, 1)}
	r.mu.Lock()
	r.places[ticket] = p
	if key.requestKey != "" {
		r.twins[key] = append(r.twins[key], p)
	}
	r.mu.Unlock()
	r.open.Do(func() { close(r.opened) })
	r.look()
	return p
}

func (r *Room) exit(p *place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.places, p.ticket)
	if rest := slices.DeleteFunc(r.twins[p.twin], func(x *place) bool { return x == p }); len(rest) > 0 {
		r.twins[p.twin] = rest
	} else {
		delete(r.twins, p.twin)
	}
}

// wakeTwins wakes those who wait here and are the same call: the lock may have been acquired for them.
func (r *Room) wakeTwins(key twin) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.twins[key] {
		signal(p.wake)
	}
}

func (r *Room) isGone(p *place) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.gone
}

// look has the room look soon.
func (r *Room) look() { signal(r.looks) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Wake wakes him whose turn it is, by his ticket, in whichever process he waits; 0: nobody.
func (r *Room) Wake(ticket int64) {
	if ticket == 0 || r.wakeHere(ticket) {
		return
	}
	r.mu.Lock()
	r.hints = append(r.hints, ticket)
	r.mu.Unlock()
	signal(r.tells)
}

func (r *Room) wakeHere(ticket int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.places[ticket]
	if p != nil {
		signal(p.wake)
	}
	return p != nil
}

// Run looks, keeps places and exchanges hints until ctx ends. It does nothing before the first call waits.
func (r *Room) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { r.tell(ctx) })
	select {
	case <-r.opened:
		work.Go(func() { r.watch(ctx) })
		work.Go(func() { r.keep(ctx) })
		work.Go(func() { r.listen(ctx) })
	case <-ctx.Done():
	}
	work.Wait()
}

// How often the room looks when it hears nothing, and how soon after a lease has ended, so that a look is
// not too early.
const (
	lookPause = 500 * time.Millisecond
	lookAfter = 2 * time.Millisecond
)

// watch wakes whose turn it is.
func (r *Room) watch(ctx context.Context) {
	timer := time.NewTimer(lookPause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.looks:
		case <-timer.C:
		}
		next, err := r.lookOnce(ctx)
		if err != nil && ctx.Err() == nil {
			r.Log.Warn("look at the queues of locks", "error", err)
		}
		timer.Reset(next)
	}
}

// lookOnce wakes those whose turn it is, and tells when to look again.
func (r *Room) lookOnce(ctx context.Context) (next time.Duration, err error) {
	next = lookPause/2 + rand.N(lookPause)
	queues := r.queues()
	if len(queues) == 0 {
		return next, nil
	}
	var arg db.QueueHeadsParams
	for k := range queues {
		arg.Tenants, arg.Names = append(arg.Tenants, k.Tenant), append(arg.Names, k.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	heads, err := q.QueueHeads(ctx, pg.Planned{DB: r.Reads}, arg)
	for _, h := range heads {
		if h.LeftUs <= 0 {
			r.wakeHere(h.Head)
		} else if end := time.Duration(h.LeftUs)*time.Microsecond + lookAfter; h.Head != 0 {
			next = min(next, end)
		}
	}
	return next, err
}

// queues are the queues in which calls of this process wait.
func (r *Room) queues() map[Key][]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := make(map[Key][]int64)
	for t, p := range r.places {
		m[p.Key] = append(m[p.Key], t)
	}
	return m
}

// keep keeps the places of all who wait here.
func (r *Room) keep(ctx context.Context) {
	tick := time.NewTicker(placeKept)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var work sync.WaitGroup
		for k, tickets := range r.queues() {
			work.Go(func() { r.keepQueue(ctx, k, tickets) })
		}
		work.Wait()
	}
}

func (r *Room) keepQueue(ctx context.Context, k Key, tickets []int64) {
	ctx, cancel := context.WithTimeout(ctx, placeLife)
	defer cancel()
	answer, err := r.Do(ctx, commit.Caller{Tenant: k.Tenant, RequestID: "waiting"}, &keepCommand{Key: k, tickets: tickets})
	if err != nil {
		r.Log.Debug("keep places in a queue", "error", err) // the next turn tries again, or they lapse
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range answer.([]int64) {
		if p := r.places[t]; p != nil {
			p.gone = true
			signal(p.wake)
		}
	}
}
