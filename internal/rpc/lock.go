package rpc

import (
	"cmp"
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
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
	// Closing ends streams when closed.
	Closing <-chan struct{}
}

const (
	defaultLockLease = 30 * time.Second
	defaultWait      = 10 * time.Second
)

// lockLife is how long the request key of an Acquire outlives the lease. Later its answer is useless.
const lockLife = time.Hour

// Acquire acquires a lock, and waits for it if the caller asks for that.
func (s *Lock) Acquire(ctx context.Context, r *pb.AcquireRequest) (*pb.AcquireResponse, error) {
	res, err := s.acquire(ctx, r, acquireOperation, func(ctx context.Context) context.Context { return ctx })
	return res.reply(ctx, err)
}

type acquirer = operation[*pb.AcquireRequest, *pb.AcquireResponse]

// acquire acquires a lock, and waits for it. tryContext derives the context of each attempt.
func (s *Lock) acquire(ctx context.Context, r *pb.AcquireRequest, o acquirer,
	tryContext func(context.Context) context.Context) (none result[*pb.AcquireResponse], err error) {
	c := callOf(ctx)
	var d decoder
	p := d.acquire(c, r)
	p.RequestKey = c.key
	wait := defaultWait
	if r.GetWait() != nil {
		wait = r.GetWait().AsDuration()
	}
	if c.guarded() {
		d.noWait(r)
		wait = 0
	}
	if err := d.err(); err != nil {
		return none, err
	}
	return s.acquireQueued(ctx, r, o, p, wait, tryContext)
}

// acquireQueued makes attempts until one acquires the lock or the wait is over. Only the successful attempt is recorded
// under the request key, spends the token, and uses the claim.
func (s *Lock) acquireQueued(ctx context.Context, r *pb.AcquireRequest, o acquirer, p lock.AcquireParams,
	wait time.Duration, tryContext func(context.Context) context.Context) (res result[*pb.AcquireResponse],
	err error) {
	c := callOf(ctx)
	err = s.Waiting.Acquire(ctx, c.caller(), p, wait,
		func(ctx context.Context, ticket int64) (replayed bool, err error) {
			m := acquireMutation(c, p, ticket)
			m.maxKeyLife = p.Lease + lockLife
			res, err = submit(tryContext(ctx), s.Mutations, o, m, r)
			if a, ok := res.answer.(lock.Acquired); ok && a.Lapsed {
				s.Metrics.Lapsed(1)
				s.Engine.Count(c.identity.Tenant, acquireOperation.name, takenOver)
			}
			return res.replayed, err
		})
	return res, err
}

// acquireOperation is Acquire in an Execute, which must not wait.
var acquireOperation = register("lock.acquire",
	func(c *call, d *decoder, r *pb.AcquireRequest) mutation[*pb.AcquireResponse] {
		d.noWait(r)
		return acquireMutation(c, d.acquire(c, r), 0)
	})

func acquireMutation(c *call, p lock.AcquireParams, ticket int64) mutation[*pb.AcquireResponse] {
	cmd := &lock.AcquireCommand{Caller: c.caller(), AcquireParams: p, Ticket: ticket}
	return newMutation(flow.Lock(cmd), 1,
		func(a lock.Acquired, _ bool) *pb.AcquireResponse {
			return &pb.AcquireResponse{Lock: renderLock(a.Lock)}
		})
}

// acquire decodes the parameters. The default holder is the request id.
func (d *decoder) acquire(c *call, r *pb.AcquireRequest) lock.AcquireParams {
	if r.GetReentrant() && r.GetHolder() == "" {
		d.bad("holder", "must be set when reentrant is true")
	}
	return lock.AcquireParams{Name: d.name("name", r.GetName()),
		Holder: cmp.Or(d.name("holder", r.GetHolder()), c.requestID), Reentrant: r.GetReentrant(),
		GuardsPage: r.GetGuardsPage(), Lease: durationOr(r.GetLease(), defaultLockLease)}
}

func (d *decoder) noWait(r *pb.AcquireRequest) {
	if r.GetWait().AsDuration() > 0 {
		d.bad("wait", "must be 0 in an Execute and in a call with a submit token or a claim")
	}
}

func (s *Lock) Renew(ctx context.Context, r *pb.RenewRequest) (*pb.RenewResponse, error) {
	res, err := run(ctx, s.Mutations, renewOperation, r)
	s.count("renew", err)
	return res, err
}

// count counts calls with an outdated fence.
func (s *Lock) count(call string, err error) {
	if fault.Is(err, lock.Lost) {
		s.Metrics.Refused(call)
	}
}

var renewOperation = register("lock.renew", func(c *call, _ *decoder, r *pb.RenewRequest) mutation[*pb.RenewResponse] {
	cmd := &lock.RenewCommand{Caller: c.caller(), Name: r.GetName(), Fence: r.GetFence(),
		Lease: durationOr(r.GetLease(), 0)}
	return newMutation(flow.Lock(cmd), 1,
		func(l lock.Lock, _ bool) *pb.RenewResponse { return &pb.RenewResponse{Lock: renderLock(l)} })
})

// Release releases a lock and wakes the next waiter.
func (s *Lock) Release(ctx context.Context, r *pb.ReleaseRequest) (*pb.ReleaseResponse, error) {
	res, err := mutate(ctx, s.Mutations, releaseLockOperation, r)
	if a, ok := res.answer.(lock.Released); ok {
		s.Waiting.Wake(a.Next)
	}
	s.count("release", err)
	return res.reply(ctx, err)
}

var releaseLockOperation = register("lock.release",
	func(c *call, _ *decoder, r *pb.ReleaseRequest) mutation[*pb.ReleaseResponse] {
		cmd := &lock.ReleaseCommand{Caller: c.caller(), Name: r.GetName(), Fence: r.GetFence()}
		return newMutation(flow.Lock(cmd), 1, func(r lock.Released, existed bool) *pb.ReleaseResponse {
			return &pb.ReleaseResponse{Lock: renderLock(r.Lock), Existed: existed}
		})
	})

func (s *Lock) GetLock(ctx context.Context, r *pb.GetLockRequest) (*pb.GetLockResponse, error) {
	l, err := s.Reader.Get(ctx, lock.Key{Tenant: callOf(ctx).identity.Tenant, Name: r.GetName()})
	return &pb.GetLockResponse{Lock: renderLock(l)}, err
}

func (s *Lock) ListLocks(ctx context.Context, r *pb.ListLocksRequest) (*pb.ListLocksResponse, error) {
	locks, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, r.GetPrefix(), int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListLocksResponse{Locks: each(locks, renderLock), NextPageToken: next}, err
}

func renderLock(l lock.Lock) *pb.Lock {
	if l.Fence == 0 {
		return &pb.Lock{Name: l.Name, State: pb.LockState_LOCK_STATE_FREE, Waiters: int32(l.Waiters)}
	}
	return &pb.Lock{Name: l.Name, State: pb.LockState_LOCK_STATE_HELD, Holder: l.Holder, Principal: l.Principal,
		Fence: l.Fence, Holds: int32(l.Holds), Lease: durationpb.New(l.Lease), AcquireTime: timestamp(l.AcquiredAt),
		ExpireTime: timestamp(l.ExpiresAt), RequestId: l.RequestID, Waiters: int32(l.Waiters)}
}
