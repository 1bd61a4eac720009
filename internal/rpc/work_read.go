package rpc

import (
	"context"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/work"
)

var workStates = map[pb.WorkOutcome]work.State{pb.WorkOutcome_WORK_OUTCOME_DONE: work.Done,
	pb.WorkOutcome_WORK_OUTCOME_REFUSED: work.Refused,
	pb.WorkOutcome_WORK_OUTCOME_UNKNOWN: work.Parked}

var workOutcomes = map[work.State]pb.WorkOutcome{work.Done: pb.WorkOutcome_WORK_OUTCOME_DONE,
	work.Refused: pb.WorkOutcome_WORK_OUTCOME_REFUSED}

var recordStates = map[work.State]pb.RecordState{
	work.Running: pb.RecordState_RECORD_STATE_RUNNING,
	work.Lapsed:  pb.RecordState_RECORD_STATE_LAPSED, work.Done: pb.RecordState_RECORD_STATE_DONE,
	work.Refused: pb.RecordState_RECORD_STATE_REFUSED,
	work.Parked:  pb.RecordState_RECORD_STATE_PARKED,
	work.Free:    pb.RecordState_RECORD_STATE_FREE}

var recordStateNames = inverse(recordStates)

var resolutions = map[pb.RecordResolution]work.State{
	pb.RecordResolution_RECORD_RESOLUTION_DONE:    work.Done,
	pb.RecordResolution_RECORD_RESOLUTION_REFUSED: work.Refused,
	pb.RecordResolution_RECORD_RESOLUTION_FREE:    work.Free}

func (s *Idempotency) GetRecord(ctx context.Context, r *pb.GetRecordRequest) (*pb.GetRecordResponse, error) {
	rec, err := s.Records.reader.Get(ctx,
		work.Key{Tenant: callOf(ctx).identity.Tenant, Scope: r.GetScope(), Name: r.GetKey()})
	if err != nil {
		return nil, err
	}
	m := renderRecord(rec)
	m.Answer, err = renderAnswer(rec.Answer)
	return &pb.GetRecordResponse{Record: m}, err
}

func (s *Idempotency) ListRecords(ctx context.Context, r *pb.ListRecordsRequest) (*pb.ListRecordsResponse, error) {
	f := work.Filter{Scope: r.GetScope(), State: recordStateNames[r.GetState()]}
	list, next, err := s.Records.reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListRecordsResponse{Records: each(list, renderRecord), NextPageToken: next}, err
}

func (s *Idempotency) ResolveRecord(ctx context.Context,
	r *pb.ResolveRecordRequest) (*pb.ResolveRecordResponse, error) {
	return report(ctx, s, resolveCall, r)
}

var resolveCall = register("idempotency.resolve_record",
	func(c *call, d *decoder, r *pb.ResolveRecordRequest) mutation[*pb.ResolveRecordResponse] {
		cmd := &work.ResolveCommand{Caller: c.caller(), Held: heldBy(r), State: resolutions[r.GetResolution()]}
		switch {
		case cmd.State != work.Free:
			cmd.Answer = d.answer("answer", r.GetAnswer())
		case r.GetAnswer() != nil:
			d.bad("answer", "must not be set when the work is freed")
		}
		return newMutation(flow.Work(cmd), 1, func(a work.Settled, existed bool) *pb.ResolveRecordResponse {
			return &pb.ResolveRecordResponse{State: recordStates[a.State], ExpireTime: timestamp(a.ExpiresAt),
				Existed: existed}
		})
	})

func renderRecord(r *work.Record) *pb.Record {
	return &pb.Record{Scope: r.Scope, Key: r.Key, Fingerprint: r.Fingerprint, State: recordStates[r.State],
		Fence: r.Fence, Attempt: r.Attempt, LeaseExpireTime: timestamp(pg.OrZero(r.LeaseUntil)),
		ParkLapsed: r.ParkLapsed, Principal: r.Principal, RequestId: r.RequestID, FirstRequestId: r.FirstRequestID,
		CreateTime: timestamp(r.CreatedAt), BeginTime: timestamp(r.BegunAt),
		SettleTime: timestamp(pg.OrZero(r.SettledAt)), SettledBy: pg.OrZero(r.SettledBy),
		SettleRequestId: pg.OrZero(r.SettledRequestID), ExpireTime: timestamp(pg.OrZero(r.ExpiresAt)),
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
	r, res := s.Records, result.response
	about := []any{"scope", k.Scope, "key", k.Name, "request_id", c.requestID}
	count := func(outcome string) { r.outcomes.WithLabelValues("begin", outcome).Inc() }
	switch {
	case fault.Is(err, work.WorkKeyReused):
		count("mismatch")
		s.countWork(c, "mismatch")
		r.log.Warn("work begun with another fingerprint",
			append(about, "first_request_id", fault.Of(err).State["first_request_id"])...)
	case fault.Is(err, work.WorkRunning):
		count("wait")
	case err != nil: // the gate logs it
	case res.GetReplay() != nil:
		count("replay")
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
	case res.GetRun().GetTookOver():
		count("takeover")
		s.Engine.Count(k.Tenant, beginName, takenOver)
		r.log.Warn("work taken over from a holder whose lease lapsed",
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
func (r *Records) observe(c *call, name string, h holder, replayed bool, err error) {
	count := func(outcome string) { r.outcomes.WithLabelValues(name, outcome).Inc() }
	switch f := fault.Of(err); {
	case err == nil && replayed:
		count("repeat")
	case err == nil:
		count("ok")
	case fault.Is(err, fault.FenceLost):
		count("fence_lost")
		r.log.Warn("fence lost", "call", name, "scope", h.GetScope(), "key", h.GetKey(), "fence", h.GetFence(), "state",
			f.State["state"], "request_id", c.requestID)
	case f != nil && f.Reason.Class != fault.System:
		count("refused")
	}
	if err == nil && name != "extend" {
		r.waiters.Wake(work.Key{Tenant: c.identity.Tenant, Scope: h.GetScope(), Name: h.GetKey()})
	}
}
