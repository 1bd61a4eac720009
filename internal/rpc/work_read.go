package rpc

import (
	"context"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/work"
)

var endStates = map[pb.WorkOutcome]work.State{pb.WorkOutcome_WORK_OUTCOME_DONE: work.Done,
	pb.WorkOutcome_WORK_OUTCOME_REFUSED: work.Refused,
	pb.WorkOutcome_WORK_OUTCOME_UNKNOWN: work.Parked}

var workOutcomes = map[work.State]pb.WorkOutcome{work.Done: pb.WorkOutcome_WORK_OUTCOME_DONE,
	work.Refused: pb.WorkOutcome_WORK_OUTCOME_REFUSED}

var workStates = map[work.State]pb.WorkState{
	work.Running: pb.WorkState_WORK_STATE_RUNNING,
	work.Lapsed:  pb.WorkState_WORK_STATE_LAPSED, work.Done: pb.WorkState_WORK_STATE_DONE,
	work.Refused: pb.WorkState_WORK_STATE_REFUSED,
	work.Parked:  pb.WorkState_WORK_STATE_PARKED,
	work.Free:    pb.WorkState_WORK_STATE_FREE}

var workStateNames = inverse(workStates)

var resolutions = map[pb.WorkResolution]work.State{
	pb.WorkResolution_WORK_RESOLUTION_DONE:    work.Done,
	pb.WorkResolution_WORK_RESOLUTION_REFUSED: work.Refused,
	pb.WorkResolution_WORK_RESOLUTION_FREE:    work.Free}

func (s *Idempotency) GetWork(ctx context.Context, r *pb.GetWorkRequest) (*pb.GetWorkResponse, error) {
	rec, err := s.Works.reader.Get(ctx,
		work.Key{Tenant: callOf(ctx).identity.Tenant, Scope: r.GetScope(), Name: r.GetKey()})
	if err != nil {
		return nil, err
	}
	m := renderWork(rec)
	m.Answer, err = renderAnswer(rec.Answer)
	return &pb.GetWorkResponse{Work: m}, err
}

func (s *Idempotency) ListWorks(ctx context.Context, r *pb.ListWorksRequest) (*pb.ListWorksResponse, error) {
	f := work.Filter{Scope: r.GetScope(), State: workStateNames[r.GetState()]}
	list, next, err := s.Works.reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListWorksResponse{Works: each(list, renderWork), NextPageToken: next}, err
}

func (s *Idempotency) ResolveWork(ctx context.Context,
	r *pb.ResolveWorkRequest) (*pb.ResolveWorkResponse, error) {
	return report(ctx, s, resolveOperation, r)
}

var resolveOperation = register("idempotency.resolve_work",
	func(c *call, d *decoder, r *pb.ResolveWorkRequest) mutation[*pb.ResolveWorkResponse] {
		cmd := &work.ResolveCommand{Caller: c.caller(), Held: heldBy(r), State: resolutions[r.GetResolution()]}
		switch {
		case cmd.State != work.Free:
			cmd.Answer = d.answer("answer", r.GetAnswer())
		case r.GetAnswer() != nil:
			d.bad("answer", "must not be set when the work is freed")
		}
		return newMutation(flow.Work(cmd), 1, func(a work.Settled, existed bool) *pb.ResolveWorkResponse {
			return &pb.ResolveWorkResponse{State: workStates[a.State], ExpireTime: timestamp(a.ExpiresAt),
				Existed: existed}
		})
	})

func renderWork(r *work.Record) *pb.Work {
	return &pb.Work{Scope: r.Scope, Key: r.Key, Fingerprint: r.Fingerprint, State: workStates[r.State],
		Fence: r.Fence, Attempt: r.Attempt, LeaseExpireTime: timestamp(pg.OrZero(r.LeaseExpiresAt)),
		ParkLapsed: r.ParkLapsed, Principal: r.Principal, RequestId: r.RequestID, FirstRequestId: r.FirstRequestID,
		CreateTime: timestamp(r.CreatedAt), BeginTime: timestamp(r.BegunAt),
		SettleTime: timestamp(pg.OrZero(r.SettledAt)), SettledBy: pg.OrZero(r.SettledBy),
		SettledRequestId: pg.OrZero(r.SettledRequestID), ExpireTime: timestamp(pg.OrZero(r.ExpiresAt)),
		Status: pg.OrZero(r.Status), BodyBytes: pg.OrZero(r.BodyBytes)}
}

func renderAnswer(a *work.Answer) (*pb.RecordedAnswer, error) {
	if a == nil {
		return nil, nil
	}
	body, err := a.Body()
	if err != nil {
		return nil, err
	}
	return &pb.RecordedAnswer{Status: a.Status, Body: body,
		Headers: each(a.Headers, func(h work.Header) *pb.RecordedHeader {
			return &pb.RecordedHeader{Name: h.Name, Value: h.Value}
		})}, nil
}

// observeBegin counts and logs the outcome of a Begin: once, even if it made several attempts.
func (s *Idempotency) observeBegin(c *call, k work.Key, result result[*beginResponse], err error) {
	r, res := s.Works, result.response
	about := []any{"scope", k.Scope, "key", k.Name, "request_id", c.requestID}
	count := func(outcome string) { r.outcomes.WithLabelValues("begin", outcome).Inc() }
	switch {
	case fault.Is(err, work.WorkKeyReused):
		count("mismatch")
		s.countWork(c, "mismatch")
		r.log.Warn("work begun with another fingerprint",
			append(about, "first_request_id", fault.Of(err).Metadata["first_request_id"])...)
	case fault.Is(err, work.WorkRunning):
		count("wait")
	case err != nil: // the gate logs it
	case res.GetReplay() != nil:
		count("replayed")
		s.countWork(c, "replayed")
		r.log.Info("work replayed", append(about, "first_request_id", res.GetReplay().GetFirstRequestId())...)
	case res.GetWait() != nil:
		count("wait")
	case res.GetParked() != nil:
		count("parked")
		r.log.Warn("work is parked", append(about, "fence", res.GetParked().GetFence(), "first_request_id",
			res.GetParked().GetFirstRequestId())...)
	case result.replayed:
		count("repeat")
	case res.GetRun().GetTakenOver():
		count("taken_over")
		s.Engine.Count(k.Tenant, beginName, takenOver)
		r.log.Warn("work taken over from a holder whose lease expired",
			append(about, "fence", res.GetRun().GetFence())...)
	default:
		count("run")
		s.countWork(c, "first")
	}
}

// countWork counts for audit.key_outcomes, as the engine does for calls with a request key.
func (s *Idempotency) countWork(c *call, outcome string) {
	s.Engine.Count(c.identity.Tenant, "idempotency.work", outcome)
}

// observe counts and logs the outcome of a later call on work, and wakes the callers that wait for the work.
func (r *Works) observe(c *call, name string, h holder, replayed bool, err error) {
	count := func(outcome string) { r.outcomes.WithLabelValues(name, outcome).Inc() }
	switch f := fault.Of(err); {
	case err == nil && replayed:
		count("repeat")
	case err == nil:
		count("ok")
	case fault.Is(err, fault.FenceLost):
		count("fence_lost")
		r.log.Warn("fence lost", "call", name, "scope", h.GetScope(), "key", h.GetKey(), "fence", h.GetFence(), "state",
			f.Metadata["state"], "request_id", c.requestID)
	case f != nil && f.Reason.Class != fault.System:
		count("refused")
	}
	if err == nil && name != "extend" {
		r.waiters.Wake(work.Key{Tenant: c.identity.Tenant, Scope: h.GetScope(), Name: h.GetKey()})
	}
}
