package ids

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Options of a Generator. Zero values take the defaults.
type Options struct {
	Pool   *pgxpool.Pool
	Holder string // name of this process, for operators; up to 256 bytes
	// Term is the duration of a lease, and how far ahead its mark lies. Without the database, ids last for this
	// long. Default 30 s; call Renew several times within it.
	Term    time.Duration
	Ticks   Ticks
	Metrics *Metrics
	Log     *slog.Logger
}

const (
	term = 30 * time.Second
	// RenewEvery is the interval at which to call Renew.
	RenewEvery = term / 6
	// borrow is how far ids may run ahead of the clock when the ids of the present time are used up: twice the
	// duration of a call for 100,000 ids.
	borrow = 50 * time.Millisecond
	// maxPause bounds a single wait for the clock.
	maxPause = borrow / 2
)

// Generator generates ids. It leases one worker number with the first id. It is safe for concurrent use.
type Generator struct {
	o       Options
	log     *slog.Logger
	metrics *Metrics

	mu      sync.Mutex
	clock   clock
	next    slot // the lowest slot not yet issued
	lease   lease
	attempt *attempt // the running attempt to lease or renew
	closed  bool
	uuids   uuids
}

// New makes a Generator. It does not use the database before the first id is requested.
func New(o Options) *Generator {
	g := &Generator{o: o, log: o.Log, metrics: o.Metrics}
	if g.o.Term == 0 {
		g.o.Term = term
	}
	if g.o.Ticks == nil {
		g.o.Ticks = monotonic()
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	if g.metrics == nil {
		g.metrics = NewMetrics(nil)
	}
	g.clock = newClock(g.o.Ticks)
	g.metrics.left(g.left)
	return g
}

// Next returns n increasing ids, greater than all earlier ones of this Generator. Concurrent calls may take ids
// in between. Returns faults ID_WORKER_LOST, ID_WORKERS_EXHAUSTED, DATABASE_UNAVAILABLE, SHUTTING_DOWN,
// NOT_RUN; the ids generated before the fault are discarded.
func (g *Generator) Next(ctx context.Context, n int) ([]ID, error) {
	made := make([]ID, n)
	for rest := made; ; {
		got := g.take(len(rest))
		for i := range got.n {
			rest[i] = (got.first + slot(i)).id(got.worker)
		}
		if rest = rest[got.n:]; len(rest) == 0 {
			g.metrics.snowflake.Add(float64(n))
			return made, nil
		}
		var err error
		if got.dry {
			err = g.lead(ctx)
		} else {
			g.metrics.waits.Inc()
			err = pause(ctx, time.Duration(len(rest)/perMillisecond+1)*time.Millisecond)
		}
		if err != nil {
			return nil, err
		}
	}
}

// taken are n slots of a worker. dry means that more slots need a lease or renewal, rather than time.
type taken struct {
	first  slot
	n      int
	worker int
	dry    bool
}

// take issues up to n slots, starting at the clock or after the last issued slot. It stops at the lease's mark
// and at borrow ahead of the clock.
func (g *Generator) take(n int) taken {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.now()
	first := max(g.next, slotAt(now))
	if g.closed || first >= g.lease.mark {
		return taken{dry: true}
	}
	end := min(slotAt(now.Add(borrow)), g.lease.mark)
	n = min(n, int(max(end-first, 0)))
	if n > 0 {
		g.next = first + slot(n)
	}
	return taken{first: first, n: n, worker: g.lease.worker}
}

// left is how many seconds ids last without a renewal.
func (g *Generator) left() float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return max(g.lease.mark.time().Sub(g.clock.now()).Seconds(), 0)
}

// pause waits for the clock.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(min(d, maxPause))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fault.NotRun.New("the call timed out or was cancelled while it waited for free ids").Because(ctx.Err())
	}
}
