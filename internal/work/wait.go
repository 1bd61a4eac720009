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

// pollEvery is how soon one process learns that work is free which another one freed.
const pollEvery = 100 * time.Millisecond

// Waiters are those who wait in this process for work that somebody holds. What ends here wakes them at
// once; one loop for all of them asks the database, which alone knows what others did. A wake-up is a
// hint: whoever gets it begins again.
type Waiters struct {
	pool *pgxpool.Pool
	log  *slog.Logger

	mu      sync.Mutex
	places  map[Key]*place
	polling bool
}

type place struct {
	woken   chan struct{}
	waiters int
}

// NewWaiters makes them.
func NewWaiters(pool *pgxpool.Pool, log *slog.Logger) *Waiters {
	return &Waiters{pool: pool, log: log, places: map[Key]*place{}}
}

// Watch begins to watch a piece of work. Call it before the Begin that may tell to wait, so that no
// wake-up is lost between the two. The channel is closed when another Begin may do better; leave ends it.
func (w *Waiters) Watch(k Key) (woken <-chan struct{}, leave func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.places[k]
	if p == nil {
		p = &place{woken: make(chan struct{})}
		w.places[k] = p
	}
	p.waiters++
	return p.woken, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if p.waiters--; p.waiters == 0 && w.places[k] == p {
			delete(w.places, k)
		}
	}
}

// Poll has the database asked as long as anybody watches. Call it before waiting, not with every Watch:
// most who watch are answered at once.
func (w *Waiters) Poll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.polling && len(w.places) > 0 {
		w.polling = true
		go w.poll()
	}
}

// Wake wakes all who wait for a piece of work.
func (w *Waiters) Wake(k Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p := w.places[k]; p != nil {
		delete(w.places, k)
		close(p.woken)
	}
}

// poll ends when nobody waits.
func (w *Waiters) poll() {
	tick := time.NewTicker(pollEvery)
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

// watched are the keys, or nil when the loop is to end.
func (w *Waiters) watched() []Key {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.places) == 0 {
		w.polling = false
		return nil
	}
	keys := make([]Key, 0, len(w.places))
	for k := range w.places {
		keys = append(keys, k)
	}
	return keys
}

// idle are those of the keys that nobody holds.
func (w *Waiters) idle(ctx context.Context, keys []Key) (idle []Key, err error) {
	var arg db.WorkBusyParams
	for _, k := range keys {
		arg.Tenants = append(arg.Tenants, k.Tenant)
		arg.Scopes = append(arg.Scopes, k.Scope)
		arg.Keys = append(arg.Keys, k.Name)
	}
	busy, err := q.WorkBusy(ctx, pg.Planned{DB: w.pool}, arg)
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
