package rpc

import (
	"context"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// Hold holds a lock as long as the stream is open.
func (s *Lock) Hold(ctx context.Context, r *pb.HoldRequest, stream *connect.ServerStream[pb.HoldResponse]) error {
	c := *callOf(ctx)
	c.key = "" // a stream cannot be replayed, and each renewal is a separate mutation
	ctx = c.within(ctx)
	o := acquireOperation
	o.keyless = true
	acquire := &pb.AcquireRequest{Name: r.GetName(), Holder: r.GetHolder(), Lease: r.GetLease(), Wait: r.GetWait(),
		GuardsPage: r.GetGuardsPage()}
	// Closing the stream must not cancel an attempt: a lock acquired at that moment would not be released.
	res, err := s.acquire(ctx, acquire, o, context.WithoutCancel)
	if err != nil {
		return err
	}
	l := res.response.GetLock()
	err = s.hold(ctx, l, stream)
	if fault.Is(err, lock.Lost) {
		s.Metrics.Refused("hold")
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if releaseErr := s.releaseHeld(ctx, l); releaseErr != nil {
		c.gate.Log.WarnContext(ctx, "could not release a lock; its lease will expire",
			"lock", l.GetName(), "request_id",
			c.requestID, "error", releaseErr)
	}
	return err
}

// releaseTime bounds the release of the lock after the stream has ended.
const releaseTime = 5 * time.Second

// hold renews the lease, and sends each renewal, until the stream is closed, the server shuts down, or the lock is
// lost. It retries other failures of a renewal until a tenth of the lease is left, so that the caller learns of the
// loss before another caller can acquire the lock.
func (s *Lock) hold(ctx context.Context, l *pb.Lock, stream *connect.ServerStream[pb.HoldResponse]) error {
	term := l.GetLease().AsDuration()
	life := term - term/10
	end := time.Now().Add(life)
	if err := stream.Send(&pb.HoldResponse{Lock: l}); err != nil {
		return err
	}
	for pause := term / 3; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Closing:
			return fault.ShuttingDown.New("the server is shutting down and releases the lock: acquire it again").
				After(time.Second)
		case <-time.After(pause - rand.N(pause/8+1)):
		}
		if err := s.reauthenticate(ctx, min(term/10, time.Until(end))); err != nil {
			return err
		}
		start := time.Now()
		next, err := s.renewHeld(ctx, l, min(term/3, end.Sub(start)))
		switch {
		case err == nil:
			end, pause = start.Add(life), term/3
			if err := stream.Send(&pb.HoldResponse{Lock: next}); err != nil {
				return err
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case fault.Is(err, lock.Lost):
			return err
		case !time.Now().Before(end):
			return lock.Lost.New("the lock %q could not be renewed in time", l.GetName()).Because(err)
		default:
			pause = max(0, min(term/10, time.Second, time.Until(end)))
		}
	}
}

// reauthenticate refuses a caller whose API key is no longer valid. Without an answer within limit it leaves the check
// to the next renewal, so that the lease does not expire meanwhile.
func (s *Lock) reauthenticate(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := callOf(ctx).reauthenticate(ctx); fault.Is(err, access.Unauthenticated) {
		return err
	}
	return nil
}

func (s *Lock) renewHeld(ctx context.Context, l *pb.Lock, limit time.Duration) (*pb.Lock, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := callOf(ctx)
	out, err := s.Engine.Do(ctx, flow.Submission{Tenant: c.identity.Tenant, RequestID: c.requestID, Rows: 1, Bytes: 512,
		Command: flow.Lock(&lock.RenewCommand{Caller: c.caller(), Name: l.GetName(), Fence: l.GetFence()})})
	if err != nil {
		return nil, err
	}
	return renderLock(out.Answer.(lock.Lock)), nil
}

// releaseHeld releases the lock of the stream. Policies do not apply, because the server itself makes this call.
func (s *Lock) releaseHeld(ctx context.Context, l *pb.Lock) error {
	c := callOf(ctx)
	out, err := s.Engine.Do(ctx, flow.Submission{Tenant: c.identity.Tenant, RequestID: c.requestID, Rows: 1, Bytes: 512,
		Command: flow.Lock(&lock.ReleaseCommand{Caller: c.caller(), Name: l.GetName(), Fence: l.GetFence()})})
	if r, ok := out.Answer.(lock.Released); ok {
		s.Waiting.Wake(r.Next)
	}
	s.count("hold", err)
	return err
}
