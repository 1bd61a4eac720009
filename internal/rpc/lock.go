package rpc

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// Lock serves LockService.
type Lock struct {
	*Mutations
	Reader  *lock.Reader
	Waiting *lock.WaitQueue
	Metrics *lock.Metrics
	// Closing ends streams when it is closed.
	Closing <-chan struct{}
}

var _ lockv1connect.LockServiceHandler = (*Lock)(nil)

const (
	defaultLockLease = 30 * time.Second
	defaultWait      = 10 * time.Second
)

// lockLife is how long the key of an Acquire is kept beyond the lease: what it answered is of no use to
// anybody then.
const lockLife = time.Hour

// Acquire takes a lock, and waits for it.
func (s *Lock) Acquire(ctx context.Context, r *lockv1.AcquireRequest) (*lockv1.AcquireResponse, error) {
	return s.take(ctx, r, func(ctx context.Context) context.Context { return ctx })
}

// take acquires a lock, and waits for it. Each try has the context that tries makes of its own.
func (s *Lock) take(ctx context.Context, r *lockv1.AcquireRequest,
	tries func(context.Context) context.Context) (*lockv1.AcquireResponse, error) {
	c := callOf(ctx)
	var d decoder
	p := d.acquire(c, r)
	p.RequestKey = c.key
	wait := defaultWait
	if r.GetWait() != nil {
		wait = r.GetWait().AsDuration()
	}
	if len(c.conditions) > 0 {
		d.noWait(r)
		wait = 0
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return s.acquire(ctx, r, p, wait, tries)
}

// acquire tries until it has the lock or the wait is over. Only the try that gets it is recorded under
// the key, and only there do conditions stay.
func (s *Lock) acquire(ctx context.Context, r *lockv1.AcquireRequest, p lock.AcquireParams, wait time.Duration,
	tries func(context.Context) context.Context) (res *lockv1.AcquireResponse, err error) {
	c := callOf(ctx)
	err = s.Waiting.Acquire(ctx, c.caller(), p, wait,
		func(ctx context.Context, ticket int64) (replayed bool, err error) {
			var out commit.Outcome
			res, out, err = submit(tries(ctx), s.Mutations, acquireCall.name, acquireChange(c, p, ticket), r,
				p.Lease+lockLife)
			if a, ok := out.Answer.(lock.Acquired); ok && a.Lapsed {
				s.Metrics.Lapsed(1)
				s.Engine.Count(c.identity.Tenant, acquireCall.name, takenOver)
			}
			return out.Replayed, err
		})
	return res, err
}

// acquireCall is Acquire in an Execute, where nothing can wait.
var acquireCall = register("lock.acquire",
	func(c *call, d *decoder, r *lockv1.AcquireRequest) mutation[*lockv1.AcquireResponse] {
		d.noWait(r)
		return acquireChange(c, d.acquire(c, r), 0)
	})

func acquireChange(c *call, p lock.AcquireParams, ticket int64) mutation[*lockv1.AcquireResponse] {
	return mutation[*lockv1.AcquireResponse]{
		command: flow.Lock(&lock.AcquireCommand{Caller: c.caller(), AcquireParams: p, Ticket: ticket}),
		render: func(answer any, _ bool) (*lockv1.AcquireResponse, error) {
			return &lockv1.AcquireResponse{Lock: renderLock(answer.(lock.Acquired).Lock)}, nil
		}}
}

// acquire reads what to acquire. A holder without a name is given that of the call.
func (d *decoder) acquire(c *call, r *lockv1.AcquireRequest) lock.AcquireParams {
	if r.GetReentrant() && r.GetHolder() == "" {
		d.bad("holder", "must be set when reentrant is true")
	}
	return lock.AcquireParams{Name: r.GetName(), Holder: cmp.Or(r.GetHolder(), c.requestID),
		Reentrant:  r.GetReentrant(),
		GuardsPage: r.GetGuardsPage(), Lease: leaseOf(r.GetLease(), defaultLockLease)}
}

func leaseOf(d *durationpb.Duration, byDefault time.Duration) time.Duration {
	if d == nil {
		return byDefault
	}
	return d.AsDuration().Truncate(time.Millisecond)
}

func (d *decoder) noWait(r *lockv1.AcquireRequest) {
	if r.GetWait().AsDuration() > 0 {
		d.bad("wait", "must be 0 in an Execute and in a call with a submit token or a claim")
	}
}

// Renew makes a lease last.
func (s *Lock) Renew(ctx context.Context, r *lockv1.RenewRequest) (*lockv1.RenewResponse, error) {
	res, err := run(ctx, s.Mutations, renewCall, r)
	s.count("renew", err)
	return res, err
}

// count counts fences that are not current.
func (s *Lock) count(call string, err error) {
	if fault.Is(err, lock.Lost) {
		s.Metrics.Refused(call)
	}
}

var renewCall = register("lock.renew", func(c *call, _ *decoder,
	r *lockv1.RenewRequest) mutation[*lockv1.RenewResponse] {
	return mutation[*lockv1.RenewResponse]{
		command: flow.Lock(&lock.RenewCommand{Caller: c.caller(), Name: r.GetName(), Fence: r.GetFence(),
			Lease: leaseOf(r.GetLease(), 0)}),
		render: func(answer any, _ bool) (*lockv1.RenewResponse, error) {
			return &lockv1.RenewResponse{Lock: renderLock(answer.(lock.Lock))}, nil
		}}
})

// Release gives a lock back.
func (s *Lock) Release(ctx context.Context, r *lockv1.ReleaseRequest) (*lockv1.ReleaseResponse, error) {
	c := callOf(ctx)
	var d decoder
	res, out, err := submit(ctx, s.Mutations, releaseLockCall.name, releaseLockCall.read(c, &d, r), r, 0)
	if a, ok := out.Answer.(lock.Released); ok {
		s.Waiting.Wake(a.Next)
	}
	s.count("release", err)
	return res, err
}

var releaseLockCall = register("lock.release",
	func(c *call, _ *decoder, r *lockv1.ReleaseRequest) mutation[*lockv1.ReleaseResponse] {
		return mutation[*lockv1.ReleaseResponse]{
			command: flow.Lock(&lock.ReleaseCommand{Caller: c.caller(), Name: r.GetName(), Fence: r.GetFence()}),
			render: func(answer any, existed bool) (*lockv1.ReleaseResponse, error) {
				return &lockv1.ReleaseResponse{Lock: renderLock(answer.(lock.Released).Lock), Existed: existed}, nil
			}}
	})

// Get shows a lock.
func (s *Lock) Get(ctx context.Context, r *lockv1.GetRequest) (*lockv1.GetResponse, error) {
	l, err := s.Reader.Get(ctx, lock.Key{Tenant: callOf(ctx).identity.Tenant, Name: r.GetName()})
	if err != nil {
		return nil, err
	}
	return &lockv1.GetResponse{Lock: renderLock(l)}, nil
}

// List lists the locks that are held.
func (s *Lock) List(ctx context.Context, r *lockv1.ListRequest) (*lockv1.ListResponse, error) {
	locks, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, r.GetPrefix(), int(r.GetPageSize()),
		r.GetPageToken())
	res := &lockv1.ListResponse{NextPageToken: next}
	for _, l := range locks {
		res.Locks = append(res.Locks, renderLock(l))
	}
	return res, err
}

func renderLock(l lock.Lock) *lockv1.Lock {
	if l.Fence == 0 {
		return &lockv1.Lock{Name: l.Name, State: lockv1.LockState_LOCK_STATE_FREE, Waiters: int32(l.Waiters)}
	}
	return &lockv1.Lock{Name: l.Name, State: lockv1.LockState_LOCK_STATE_HELD, Holder: l.Holder, Principal: l.Principal,
		Fence: l.Fence, Holds: int32(l.Holds), Lease: durationpb.New(l.Lease), AcquireTime: timestamp(l.AcquiredAt),
		ExpireTime: timestamp(l.ExpiresAt), RequestId: l.RequestID, Waiters: int32(l.Waiters)}
}
