package rpc

import (
	"context"
	"math/rand/v2"
	"time"

	"connectrpc.com/connect"

	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/lock"
)

// Hold holds a lock while the stream lives.
func (s *Lock) Hold(ctx context.Context, r *lockv1.HoldRequest,
	stream *connect.ServerStream[lockv1.HoldResponse]) error {
	c := callOf(ctx)
	c.key, c.keyless = "", true // each renewal is another change, and a stream cannot be answered again
	acquire := &lockv1.AcquireRequest{Name: r.GetName(), Holder: r.GetHolder(), Lease: r.GetLease(), Wait: r.GetWait(),
		GuardsPage: r.GetGuardsPage()}
	// a try that is on its way is seen to its end: who else would give back what it brings?
	res, err := s.take(ctx, acquire, context.WithoutCancel)
	if err != nil {
		return err
	}
	l := res.GetLock()
	err = s.hold(ctx, l, stream)
	if fault.Is(err, lock.Lost) {
		s.Metrics.Refused("hold")
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	if releaseErr := s.releaseHeld(ctx, l); releaseErr != nil {
		c.gate.Log.WarnContext(ctx, "could not release a lock; its lease will lapse", "lock", l.GetName(), "request_id",
			c.requestID, "error", releaseErr)
	}
	return err
}

// releaseTime bounds the release of a lock whose caller is gone.
const releaseTime = 5 * time.Second

// hold sends and renews until the caller goes away, the server ends, or the lock is lost. A renewal that
// fails otherwise is tried again until a tenth of the lease is left: the caller learns that his time is over
// before anybody else can have the lock.
func (s *Lock) hold(ctx context.Context, l *lockv1.Lock, stream *connect.ServerStream[lockv1.HoldResponse]) error {
	term := l.GetLease().AsDuration()
	life := term - term/10
	end := time.Now().Add(life)
	if err := stream.Send(&lockv1.HoldResponse{Lock: l}); err != nil {
		return err
	}
	for pause := term / 3; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.Closing:
			return fault.ShuttingDown.New("the server is shutting down and releases the lock: acquire it again").After(time.Second)
		case <-time.After(pause - rand.N(pause/8+1)):
		}
		if err := s.stillIn(ctx, min(term/10, time.Until(end))); err != nil {
			return err
		}
		start := time.Now()
		next, err := s.renewHeld(ctx, l, min(term/3, end.Sub(start)))
		switch {
		case err == nil:
			end, pause = start.Add(life), term/3
			if err := stream.Send(&lockv1.HoldResponse{Lock: next}); err != nil {
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

// stillIn refuses a caller whose API key is not good any more. What cannot be found out within limit is left to the
// next time: the lease must not end meanwhile.
func (s *Lock) stillIn(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := callOf(ctx).stillIn(ctx); fault.Is(err, access.Unauthenticated) {
		return err
	}
	return nil
}

func (s *Lock) renewHeld(ctx context.Context, l *lockv1.Lock, limit time.Duration) (*lockv1.Lock, error) {
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

// releaseHeld gives back what the stream held. It is the server's own doing: nothing is required of it.
func (s *Lock) releaseHeld(ctx context.Context, l *lockv1.Lock) error {
	c := callOf(ctx)
	out, err := s.Engine.Do(ctx, flow.Submission{Tenant: c.identity.Tenant, RequestID: c.requestID, Rows: 1, Bytes: 512,
		Command: flow.Lock(&lock.ReleaseCommand{Caller: c.caller(), Name: l.GetName(), Fence: l.GetFence()})})
	if r, ok := out.Answer.(lock.Released); ok {
		s.Waiting.Wake(r.Next)
	}
	s.count("hold", err)
	return err
}
