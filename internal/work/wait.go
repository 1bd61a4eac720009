package work

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/work/internal/db"
)

// pollInterval bounds how late this process notices work that another process freed.
const pollInterval = 100 * time.Millisecond

// Waiters tracks the calls in this process that wait for work held by another caller. Work that ends in this
// process wakes them immediately. One shared loop polls the database for changes by other processes. A wake-up
// is a hint: the woken call must Begin again.
type Waiters struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	mu      sync.Mutex
	watches map[Key]*watchedWork
	polling bool
}

type watchedWork struct {
	woken   chan struct{}
	waiters int
}

// NewWaiters returns the waiters of a process. They poll the database while there are any.
func NewWaiters(pool *pgxpool.Pool, log *slog.Logger) *Waiters {
	return &Waiters{pool: pool, log: log, watches: map[Key]*watchedWork{}}
}

// Watch registers interest in a piece of work. Call Watch before the Begin that may answer "wait", so that no
// wake-up is lost in between. The channel is closed when a new Begin may succeed; leave unregisters.
func (w *Waiters) Watch(k Key) (woken <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.watches[k]
	if p == nil {
		p = &watchedWork{woken: make(chan struct{})}
		w.watches[k] = p
	}
	p.waiters++
	return p.woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.waiters--; p.waiters == 0 && w.watches[k] == p {
			delete(w.watches, k)
		}
	}
}

// Poll starts polling the database while any watch is registered. Call Poll before waiting rather than in every
// Watch: most watches end without a wait.
func (w *Waiters) Poll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.polling && len(w.watches) > 0 {
		w.polling = true
		go w.poll()
	}
}

// Wake wakes all calls that wait for a piece of work.
func (w *Waiters) Wake(k Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.watches[k]; p != nil {
		delete(w.watches, k)
		close(p.woken)
	}
}

// poll runs until no call waits.
func (w *Waiters) poll() {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for range tick.C {
		keys := w.watched()
		if keys == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		idle, err := w.idle(ctx, keys)
		cancel()
		if err != nil {
			w.log.Warn("could not poll the work that calls wait for", "error", err)
			continue
		}
		for _, k := range idle {
			w.Wake(k)
		}
	}
}

// watched returns the watched keys, or nil to end the loop.
func (w *Waiters) watched() []Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.watches) == 0 {
		w.polling = false
		return nil
	}
	keys := make([]Key, 0, len(w.watches))
	for k := range w.watches {
		keys = append(keys, k)
	}
	return keys
}

// idle returns the keys that no caller holds.
func (w *Waiters) idle(ctx context.Context, keys []Key) (idle []Key, err error) {
	var arg db.WorkBusyParams
	for _, k := range keys {
		arg.Tenants = append(arg.Tenants, k.Tenant)
		arg.Scopes = append(arg.Scopes, k.Scope)
		arg.Keys = append(arg.Keys, k.Name)
	}
	busy, err := q.WorkBusy(pg.ForTenants(ctx, arg.Tenants...), pg.Planned{DB: w.pool}, arg)
	if err != nil {
		return nil, err
	}
	held := make([]bool, len(keys))
	for _, n := range busy {
		held[n-1] = true
	}
	for i, k := range keys {
		if !held[i] {
			idle = append(idle, k)
		}
	}
	return idle, nil
}
