package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/work"
)

const (
	defaultLease    = 30 * time.Second
	defaultWorkLife = 24 * time.Hour
	maxHeaderBytes  = 64 << 10
)

type (
	beginRequest  = idempotencyv1.BeginRequest
	beginResponse = idempotencyv1.BeginResponse
)

// takenOver is the outcome by which takings of lapsed leases are counted, beside those of request keys.
const takenOver = "taken_over"

// beginName scopes the request keys of Begin.
const beginName = "work.begin"

// beginAlone is a Begin as a call: it may wait. Behind a token or a claim it is a conflict that somebody holds the
// work: nothing was done, so neither is used up.
func beginAlone(held int64) operation[*beginRequest, *beginResponse] {
	return operation[*beginRequest, *beginResponse]{name: beginName,
		read: func(c *call, d *decoder, r *beginRequest) mutation[*beginResponse] {
			command := flow.Work(begin(c, r, held))
			if len(c.conditions) > 0 {
				command = runsOrFails{command, r, true}
			}
			return mutation[*beginResponse]{command: command, render: renderBegun}
		}}
}

// A Begin in an Execute is to run, or nothing is done.
var _ = register(beginName, func(c *call, d *decoder, r *beginRequest) mutation[*beginResponse] {
	if r.GetWait().AsDuration() > 0 {
		d.bad("wait", "must be 0 in an Execute, which must not wait while it locks rows")
	}
	return mutation[*beginResponse]{command: runsOrFails{flow.Work(begin(c, r, 0)), r, false}, render: renderBegun}
})

func begin(c *call, r *beginRequest, held int64) *work.BeginCommand {
	cmd := &work.BeginCommand{Caller: c.caller(), Held: held,
		BeginParams: work.BeginParams{Scope: r.GetScope(), Key: r.GetKey(),
			Fingerprint: r.GetFingerprint(), Lease: defaultLease, Life: defaultWorkLife, ParkLapsed: r.GetParkLapsed()}}
	if r.GetLease() != nil {
		cmd.Lease = r.GetLease().AsDuration().Truncate(time.Millisecond)
	}
	if r.GetLife() != nil {
		cmd.Life = r.GetLife().AsDuration().Truncate(time.Millisecond)
	}
	return cmd
}

// runsOrFails is a Begin whose every other answer is an error; with tells, only that the work is held.
type runsOrFails struct {
	flow.Command
	request *beginRequest
	tells   bool
}

func (c runsOrFails) Apply(tx *flow.Tx) (any, error) {
	answer, err := c.Command.Apply(tx)
	other, ok := answer.(commit.Repeat)
	if err != nil || !ok {
		return answer, err
	}
	begun := other.First.(work.Begun)
	if c.tells && begun.State != work.Running {
		return answer, nil
	}
	f := work.WorkSettled.New("work %s %q is already %s", c.request.GetScope(), c.request.GetKey(), begun.State)
	if begun.State == work.Running {
		f = work.WorkRunning.New("another caller holds work %s %q", c.request.GetScope(),
			c.request.GetKey()).After(retryDelay(&begun))
	}
	return nil, f.With("state", begun.State).With("fence", begun.Fence).With("first_request_id", begun.FirstRequestID)
}

func renderBegun(answer any, _ bool) (*beginResponse, error) {
	b := answer.(work.Begun)
	switch {
	case b.Mine:
		return &beginResponse{Result: &idempotencyv1.BeginResponse_Run{Run: &idempotencyv1.WorkRun{Fence: b.Fence,
			LeaseExpireTime: timestamppb.New(b.LeaseUntil), Attempt: b.Attempt, TookOver: b.TookOver}}}, nil
	case b.State == work.Running:
		return &beginResponse{Result: &idempotencyv1.BeginResponse_Wait{
			Wait: &idempotencyv1.WorkWait{Attempt: b.Attempt,
				LeaseExpireTime: timestamppb.New(b.LeaseUntil), RetryDelay: durationpb.New(retryDelay(&b)),
				FirstRequestId: b.FirstRequestID}}}, nil
	case b.State == work.Parked:
		return &beginResponse{Result: &idempotencyv1.BeginResponse_Parked{
			Parked: &idempotencyv1.WorkParked{Fence: b.Fence,
				SettleTime: timeOrNil(b.SettledAt), FirstRequestId: b.FirstRequestID}}}, nil
	}
	return &beginResponse{Result: &idempotencyv1.BeginResponse_Replay{Replay: &idempotencyv1.WorkReplay{Fence: b.Fence,
		Outcome: workOutcomes[b.State], SettleTime: timeOrNil(b.SettledAt), FirstRequestId: b.FirstRequestID}}}, nil
}

// retryDelay is when the holder may be done: soon, unless he has said that it takes him long.
func retryDelay(b *work.Begun) time.Duration {
	return min(max(b.LeaseUntil.Sub(b.Now), 50*time.Millisecond), time.Second)
}

// Begin asks for the right to do a piece of work, and waits for it if the caller wants to.
func (s *Idempotency) Begin(ctx context.Context, r *beginRequest) (*beginResponse, error) {
	c := callOf(ctx)
	k := work.Key{Tenant: c.identity.Tenant, Scope: r.GetScope(), Name: r.GetKey()}
	wait := patience(ctx, r.GetWait().AsDuration())
	end := time.NewTimer(wait)
	defer end.Stop()
	for again := wait > 0; ; {
		woken, leave := s.Records.waiters.Watch(k)
		res, err := s.begin(ctx, r)
		if again && (err == nil && res.GetWait() != nil || fault.Is(err, work.WorkRunning)) {
			again = s.Records.await(ctx, woken, end.C)
			leave()
			continue
		}
		leave()
		if err == nil && res.GetReplay() != nil {
			gone := false
			if gone, err = s.Records.fill(ctx, k, res.GetReplay()); gone {
				continue
			}
		}
		s.tellBegin(c, k, res, err)
		if res.GetRun().GetTookOver() && !c.replayed {
			s.Engine.Count(k.Tenant, beginName, takenOver)
		}
		return res, err
	}
}

// patience leaves a caller who has a deadline the time to be told to wait.
func patience(ctx context.Context, wait time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(wait, time.Until(end)-time.Until(end)/10-50*time.Millisecond)
	}
	return wait
}

// await waits until it is worth while to begin again. False: for the last time.
func (r *Records) await(ctx context.Context, woken <-chan struct{}, end <-chan time.Time) bool {
	r.waiters.Poll()
	select {
	case <-woken:
		return true
	case <-end:
	case <-ctx.Done():
	case <-r.closing:
	}
	return false
}

// begin runs the command. The right to run that is recorded under a request key is given again only if it
// still holds: after that the same key asks anew.
func (s *Idempotency) begin(ctx context.Context, r *beginRequest) (*beginResponse, error) {
	c := callOf(ctx)
	res, err := run(ctx, s.Mutations, beginAlone(0), r)
	if err == nil {
		c.conditions = nil // they have been met, by this try or the one that was recorded: the next is the same call
	}
	if held := res.GetRun(); err == nil && c.replayed && held != nil {
		later, _ := c.letThrough(ctx)
		now, again := run(later, s.Mutations, beginAlone(held.GetFence()), r)
		if again != nil || now.GetRun().GetFence() != held.GetFence() {
			res, err, c.replayed = now, again, false
		}
	}
	c.replayed = err != nil && c.replayed || c.replayed && res.GetRun() != nil || res.GetReplay() != nil
	return res, err
}

// fill reads the answer that a replay is of. Gone: its life ended in between.
func (r *Records) fill(ctx context.Context, k work.Key, replay *idempotencyv1.WorkReplay) (gone bool, err error) {
	rec, err := r.reader.Get(ctx, k)
	if fault.Is(err, work.RecordNotFound) || err == nil && rec.Fence != replay.GetFence() {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	replay.Answer, err = renderAnswer(rec.Answer)
	return false, err
}

// Extend renews a lease.
func (s *Idempotency) Extend(ctx context.Context,
	r *idempotencyv1.ExtendRequest) (*idempotencyv1.ExtendResponse, error) {
	res, err := run(ctx, s.Mutations, extendCall, r)
	s.Records.tell(callOf(ctx), "extend", r, err)
	return res, err
}

var extendCall = register("work.extend",
	func(c *call, d *decoder, r *idempotencyv1.ExtendRequest) mutation[*idempotencyv1.ExtendResponse] {
		return mutation[*idempotencyv1.ExtendResponse]{
			command: flow.Work(&work.ExtendCommand{Caller: c.caller(), Held: heldBy(r),
				Lease: r.GetLease().AsDuration().Truncate(time.Millisecond)}),
			render: func(answer any, _ bool) (*idempotencyv1.ExtendResponse, error) {
				return &idempotencyv1.ExtendResponse{LeaseExpireTime: timestamppb.New(answer.(work.Begun).LeaseUntil)},
					nil
			}}
	})

// Complete records how work ended.
func (s *Idempotency) Complete(ctx context.Context,
	r *idempotencyv1.CompleteRequest) (*idempotencyv1.CompleteResponse, error) {
	res, err := run(ctx, s.Mutations, completeCall, r)
	s.Records.tell(callOf(ctx), "complete", r, err)
	return res, err
}

var completeCall = register("work.complete",
	func(c *call, d *decoder, r *idempotencyv1.CompleteRequest) mutation[*idempotencyv1.CompleteResponse] {
		return mutation[*idempotencyv1.CompleteResponse]{
			command: flow.Work(&work.CompleteCommand{Caller: c.caller(), Held: heldBy(r),
				State:  workStates[r.GetOutcome()],
				Answer: d.answer("answer", r.GetAnswer())}),
			render: func(answer any, existed bool) (*idempotencyv1.CompleteResponse, error) {
				return &idempotencyv1.CompleteResponse{Existed: existed,
					ExpireTime: timeOrNil(answer.(work.Settled).ExpiresAt)}, nil
			}}
	})

// Abandon gives work up.
func (s *Idempotency) Abandon(ctx context.Context,
	r *idempotencyv1.AbandonRequest) (*idempotencyv1.AbandonResponse, error) {
	res, err := run(ctx, s.Mutations, abandonCall, r)
	s.Records.tell(callOf(ctx), "abandon", r, err)
	return res, err
}

var abandonCall = register("work.abandon",
	func(c *call, d *decoder, r *idempotencyv1.AbandonRequest) mutation[*idempotencyv1.AbandonResponse] {
		return mutation[*idempotencyv1.AbandonResponse]{
			command: flow.Work(&work.AbandonCommand{Caller: c.caller(), Held: heldBy(r), Forget: r.GetForget()}),
			render: func(answer any, existed bool) (*idempotencyv1.AbandonResponse, error) {
				return &idempotencyv1.AbandonResponse{Existed: existed,
					ExpireTime: timeOrNil(answer.(work.Settled).ExpiresAt)}, nil
			}}
	})

type holder interface {
	GetScope() string
	GetKey() string
	GetFence() int64
}

func heldBy(r holder) work.Held {
	return work.Held{Scope: r.GetScope(), Key: r.GetKey(), Fence: r.GetFence()}
}

// answer reads an answer to be recorded; none is an empty one.
func (d *decoder) answer(path string, m *idempotencyv1.RecordedAnswer) *work.Answer {
	size := 0
	headers := make([]work.Header, 0, len(m.GetHeaders()))
	for _, h := range m.GetHeaders() {
		size += len(h.GetName()) + len(h.GetValue())
		headers = append(headers, work.Header{Name: h.GetName(), Value: h.GetValue()})
	}
	if size > maxHeaderBytes {
		d.bad(path+".headers", fmt.Sprintf("must be at most %d KiB in total", maxHeaderBytes>>10))
	}
	a, err := work.NewAnswer(m.GetStatus(), headers, m.GetBody())
	if err != nil {
		d.bad(path, "cannot be recorded")
	}
	return a
}
