package rpc

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
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
	beginRequest  = pb.BeginRequest
	beginResponse = pb.BeginResponse
)

// takenOver is the outcome that counts takeovers of expired leases, beside the outcomes of request keys.
const takenOver = "taken_over"

// beginName scopes the request keys of Begin.
const beginName = "idempotency.begin"

// Begin requests the right to run a piece of work, and waits for it if the caller asks for that.
func (s *Idempotency) Begin(ctx context.Context, r *beginRequest) (*beginResponse, error) {
	c := callOf(ctx)
	k := work.Key{Tenant: c.identity.Tenant, Scope: r.GetScope(), Name: r.GetKey()}
	wait := boundedWait(ctx, r.GetWait().AsDuration())
	end := time.NewTimer(wait)
	defer end.Stop()
	for again := wait > 0; ; {
		woken, unwatch := s.Works.waiters.Watch(k)
		res, err := s.begin(ctx, r)
		if again && (err == nil && res.response.GetWait() != nil || fault.Is(err, work.WorkRunning)) {
			again = s.Works.await(ctx, woken, end.C)
			unwatch()
			continue
		}
		unwatch()
		if err == nil && res.response.GetReplay() != nil {
			gone := false
			if gone, err = s.Works.fill(ctx, k, res.response.GetReplay()); gone {
				ctx = c.withoutGuards().within(ctx) // token and claim are accepted already
				continue
			}
		}
		s.observeBegin(c, k, res, err)
		return res.reply(ctx, err)
	}
}

// begin runs the command. A right to run recorded under a request key is replayed only while it is held. After that a
// call with the same key begins again.
func (s *Idempotency) begin(ctx context.Context, r *beginRequest) (result[*beginResponse], error) {
	res, err := mutate(ctx, s.Mutations, standaloneBegin(0), r)
	if err != nil {
		return res, err
	}
	if held := res.response.GetRun(); res.replayed && held != nil {
		now, err := mutate(callOf(ctx).withoutKey().within(ctx), s.Mutations, standaloneBegin(held.GetFence()), r)
		if err != nil || now.response.GetRun().GetFence() != held.GetFence() {
			now.replayed = err == nil && now.response.GetReplay() != nil
			return now, err
		}
	}
	res.replayed = res.replayed && res.response.GetRun() != nil || res.response.GetReplay() != nil
	return res, nil
}

// standaloneBegin is Begin outside an Execute: it may wait. With a token or a claim, work that another caller holds is
// a conflict, so that the call uses neither.
func standaloneBegin(held int64) operation[*beginRequest, *beginResponse] {
	return operation[*beginRequest, *beginResponse]{name: beginName,
		read: func(c *call, d *decoder, r *beginRequest) mutation[*beginResponse] {
			command := flow.Work(beginCommand(c, d, r, held))
			if c.guarded() {
				command = beginOrFail{command, r, true}
			}
			return newMutation(command, 1, renderBegun)
		}}
}

// A Begin in an Execute must get the right to run, or the Execute fails.
var _ = register(beginName, func(c *call, d *decoder, r *beginRequest) mutation[*beginResponse] {
	if r.GetWait().AsDuration() > 0 {
		d.bad("wait", "must be 0 in an Execute, which must not wait while it locks rows")
	}
	return newMutation(beginOrFail{flow.Work(beginCommand(c, d, r, 0)), r, false}, 1, renderBegun)
})

func beginCommand(c *call, d *decoder, r *beginRequest, held int64) *work.BeginCommand {
	return &work.BeginCommand{Caller: c.caller(), Held: held,
		BeginParams: work.BeginParams{Scope: d.name("scope", r.GetScope()), Key: d.name("key", r.GetKey()),
			Fingerprint: r.GetFingerprint(),
			Lease:       durationOr(r.GetLease(), defaultLease), Life: durationOr(r.GetLife(), defaultWorkLife),
			ParkLapsed: r.GetParkLapsed()}}
}

// beginOrFail is a Begin that fails unless the work may run. With allowSettled it fails only if another caller holds
// the work.
type beginOrFail struct {
	flow.Command
	request      *beginRequest
	allowSettled bool
}

func (c beginOrFail) Apply(tx *flow.Tx) (any, error) {
	answer, err := c.Command.Apply(tx)
	other, ok := answer.(commit.Repeat)
	if err != nil || !ok {
		return answer, err
	}
	begun := other.First.(work.Begun)
	if c.allowSettled && begun.State != work.Running {
		return answer, nil
	}
	f := work.WorkSettled.New("work %s %q is already %s", c.request.GetScope(), c.request.GetKey(), begun.State)
	if begun.State == work.Running {
		f = work.WorkRunning.New("another caller holds work %s %q", c.request.GetScope(),
			c.request.GetKey()).After(retryDelay(&begun))
	}
	return nil, f.With("state", begun.State).With("fence", begun.Fence).With("first_request_id", begun.FirstRequestID)
}

func renderBegun(b work.Begun, _ bool) *beginResponse {
	switch {
	case b.Mine:
		return &beginResponse{Result: &pb.BeginResponse_Run{Run: &pb.WorkRun{Fence: b.Fence,
			LeaseExpireTime: timestamp(b.LeaseExpiresAt), Attempt: b.Attempt, TakenOver: b.TakenOver}}}
	case b.State == work.Running:
		return &beginResponse{Result: &pb.BeginResponse_Wait{
			Wait: &pb.WorkWait{Attempt: b.Attempt, LeaseExpireTime: timestamp(b.LeaseExpiresAt),
				RetryDelay: durationpb.New(retryDelay(&b)), FirstRequestId: b.FirstRequestID}}}
	case b.State == work.Parked:
		return &beginResponse{Result: &pb.BeginResponse_Parked{
			Parked: &pb.WorkParked{Fence: b.Fence, SettleTime: timestamp(b.SettledAt),
				FirstRequestId: b.FirstRequestID}}}
	}
	return &beginResponse{Result: &pb.BeginResponse_Replay{Replay: &pb.WorkReplay{Fence: b.Fence,
		Outcome: workOutcomes[b.State], SettleTime: timestamp(b.SettledAt), FirstRequestId: b.FirstRequestID}}}
}

// retryDelay returns the time until the lease ends, within 50 ms and 1 s.
func retryDelay(b *work.Begun) time.Duration {
	return min(max(b.LeaseExpiresAt.Sub(b.Now), 50*time.Millisecond), time.Second)
}

// boundedWait shortens a wait to end before the call's deadline, so that the response still reaches the caller.
func boundedWait(ctx context.Context, wait time.Duration) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(wait, time.Until(end)-time.Until(end)/10-50*time.Millisecond)
	}
	return wait
}

// await waits until the work changes or the wait ends. It returns false if the next attempt is the last one.
func (r *Works) await(ctx context.Context, woken <-chan struct{}, end <-chan time.Time) bool {
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

// fill reads the answer of a replay. gone: the record expired meanwhile.
func (r *Works) fill(ctx context.Context, k work.Key, replay *pb.WorkReplay) (gone bool, err error) {
	rec, err := r.reader.Get(ctx, k)
	if fault.Is(err, work.NotFound) || err == nil && rec.Fence != replay.GetFence() {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	replay.Answer, err = renderAnswer(rec.Answer)
	return false, err
}

func (s *Idempotency) Extend(ctx context.Context, r *pb.ExtendRequest) (*pb.ExtendResponse, error) {
	return report(ctx, s, extendOperation, r)
}

var extendOperation = register("idempotency.extend",
	func(c *call, d *decoder, r *pb.ExtendRequest) mutation[*pb.ExtendResponse] {
		cmd := &work.ExtendCommand{Caller: c.caller(), Held: heldBy(r), Lease: durationOr(r.GetLease(), 0)}
		return newMutation(flow.Work(cmd), 1, func(b work.Begun, _ bool) *pb.ExtendResponse {
			return &pb.ExtendResponse{LeaseExpireTime: timestamp(b.LeaseExpiresAt)}
		})
	})

func (s *Idempotency) Complete(ctx context.Context, r *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	return report(ctx, s, completeOperation, r)
}

var completeOperation = register("idempotency.complete",
	func(c *call, d *decoder, r *pb.CompleteRequest) mutation[*pb.CompleteResponse] {
		cmd := &work.CompleteCommand{Caller: c.caller(), Held: heldBy(r), State: endStates[r.GetOutcome()],
			Answer: d.answer("answer", r.GetAnswer())}
		return newMutation(flow.Work(cmd), 1, func(a work.Settled, existed bool) *pb.CompleteResponse {
			return &pb.CompleteResponse{Existed: existed, ExpireTime: timestamp(a.ExpiresAt)}
		})
	})

func (s *Idempotency) Abandon(ctx context.Context, r *pb.AbandonRequest) (*pb.AbandonResponse, error) {
	return report(ctx, s, abandonOperation, r)
}

var abandonOperation = register("idempotency.abandon",
	func(c *call, d *decoder, r *pb.AbandonRequest) mutation[*pb.AbandonResponse] {
		cmd := &work.AbandonCommand{Caller: c.caller(), Held: heldBy(r), Forget: r.GetForget()}
		return newMutation(flow.Work(cmd), 1, func(a work.Settled, existed bool) *pb.AbandonResponse {
			return &pb.AbandonResponse{Existed: existed, ExpireTime: timestamp(a.ExpiresAt)}
		})
	})

// report serves a later call on work: all but Begin.
func report[Q holder, R proto.Message](ctx context.Context, s *Idempotency, o operation[Q, R], r Q) (R, error) {
	res, err := mutate(ctx, s.Mutations, o, r)
	s.Works.observe(callOf(ctx), strings.TrimPrefix(o.name, "idempotency."), r, res.replayed, err)
	return res.reply(ctx, err)
}

type holder interface {
	proto.Message
	GetScope() string
	GetKey() string
	GetFence() int64
}

func heldBy(r holder) work.Held {
	return work.Held{Scope: r.GetScope(), Key: r.GetKey(), Fence: r.GetFence()}
}

// answer decodes an answer to be recorded. A missing one counts as empty.
func (d *decoder) answer(path string, m *pb.RecordedAnswer) *work.Answer {
	size := 0
	headers := make([]work.Header, 0, len(m.GetHeaders()))
	for i, h := range m.GetHeaders() {
		d.name(fmt.Sprintf("%s.headers[%d].name", path, i), h.GetName())
		if strings.ContainsAny(h.GetValue(), "\r\n") { // would begin another header where the answer is repeated
			d.bad(fmt.Sprintf("%s.headers[%d].value", path, i), "must not contain line ends")
		}
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
