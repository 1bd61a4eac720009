package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/work"
)

var workStates = map[idempotencyv1.WorkOutcome]work.State{idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE: work.Done,
	idempotencyv1.WorkOutcome_WORK_OUTCOME_REFUSED: work.Refused,
	idempotencyv1.WorkOutcome_WORK_OUTCOME_UNKNOWN: work.Parked}

var workOutcomes = map[work.State]idempotencyv1.WorkOutcome{work.Done: idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE,
	work.Refused: idempotencyv1.WorkOutcome_WORK_OUTCOME_REFUSED}

var recordStates = map[work.State]idempotencyv1.RecordState{
	work.Running: idempotencyv1.RecordState_RECORD_STATE_RUNNING,
	work.Lapsed:  idempotencyv1.RecordState_RECORD_STATE_LAPSED, work.Done: idempotencyv1.RecordState_RECORD_STATE_DONE,
	work.Refused: idempotencyv1.RecordState_RECORD_STATE_REFUSED,
	work.Parked:  idempotencyv1.RecordState_RECORD_STATE_PARKED,
	work.Free:    idempotencyv1.RecordState_RECORD_STATE_FREE}

var resolutions = map[idempotencyv1.RecordResolution]work.State{
	idempotencyv1.RecordResolution_RECORD_RESOLUTION_DONE:    work.Done,
	idempotencyv1.RecordResolution_RECORD_RESOLUTION_REFUSED: work.Refused,
	idempotencyv1.RecordResolution_RECORD_RESOLUTION_FREE:    work.Free}

// GetRecord shows a piece of work with its answer.
func (s *Idempotency) GetRecord(ctx context.Context,
	r *idempotencyv1.GetRecordRequest) (*idempotencyv1.GetRecordResponse, error) {
	rec, err := s.Records.reader.Get(ctx,
		work.Key{Tenant: callOf(ctx).identity.Tenant, Scope: r.GetScope(), Name: r.GetKey()})
	if err != nil {
		return nil, err
	}
	m := renderRecord(rec)
	m.Answer, err = renderAnswer(rec.Answer)
	return &idempotencyv1.GetRecordResponse{Record: m}, err
}

// ListRecords lists work by scope and key.
func (s *Idempotency) ListRecords(ctx context.Context,
	r *idempotencyv1.ListRecordsRequest) (*idempotencyv1.ListRecordsResponse, error) {
	f := work.Filter{Scope: r.GetScope()}
	for name, state := range recordStates {
		if state == r.GetState() {
			f.State = name
		}
	}
	list, next, err := s.Records.reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()),
		r.GetPageToken())
	res := &idempotencyv1.ListRecordsResponse{NextPageToken: next}
	for _, rec := range list {
		res.Records = append(res.Records, renderRecord(rec))
	}
	return res, err
}

// ResolveRecord settles what is parked.
func (s *Idempotency) ResolveRecord(ctx context.Context,
	r *idempotencyv1.ResolveRecordRequest) (*idempotencyv1.ResolveRecordResponse, error) {
	res, err := run(ctx, s.Mutations, resolveCall, r)
	s.Records.tell(callOf(ctx), "resolve", r, err)
	return res, err
}

var resolveCall = register("work.resolve",
	func(c *call, d *decoder, r *idempotencyv1.ResolveRecordRequest) mutation[*idempotencyv1.ResolveRecordResponse] {
		cmd := &work.ResolveCommand{Caller: c.caller(), Held: heldBy(r), State: resolutions[r.GetResolution()]}
		switch {
		case cmd.State != work.Free:
			cmd.Answer = d.answer("answer", r.GetAnswer())
		case r.GetAnswer() != nil:
			d.bad("answer", "must not be set when the work is freed")
		}
		return mutation[*idempotencyv1.ResolveRecordResponse]{command: flow.Work(cmd),
			render: func(answer any, existed bool) (*idempotencyv1.ResolveRecordResponse, error) {
				a := answer.(work.Settled)
				return &idempotencyv1.ResolveRecordResponse{State: recordStates[a.State],
					ExpireTime: timeOrNil(a.ExpiresAt), Existed: existed}, nil
			}}
	})

func renderRecord(r *work.Record) *idempotencyv1.Record {
	return &idempotencyv1.Record{Scope: r.Scope, Key: r.Key, Fingerprint: r.Fingerprint, State: recordStates[r.State],
		Fence:   r.Fence,
		Attempt: r.Attempt, LeaseExpireTime: timeOrNil(r.LeaseUntil), ParkLapsed: r.ParkLapsed, Principal: r.Principal,
		RequestId:      r.RequestID,
		FirstRequestId: r.FirstRequestID, CreateTime: timestamppb.New(r.CreatedAt),
		BeginTime:  timestamppb.New(r.BegunAt),
		SettleTime: timeOrNil(r.SettledAt), SettledBy: r.SettledBy, SettleRequestId: r.SettledRequest,
		ExpireTime: timeOrNil(r.ExpiresAt),
		Status:     r.Status, BodyBytes: r.BodyBytes}
}

func renderAnswer(a *work.Answer) (*idempotencyv1.RecordedAnswer, error) {
	if a == nil {
		return nil, nil
	}
	body, err := a.Body()
	if err != nil {
		return nil, err
	}
	m := &idempotencyv1.RecordedAnswer{Status: a.Status, Body: body}
	for _, h := range a.Headers {
		m.Headers = append(m.Headers, &idempotencyv1.RecordedHeader{Name: h.Name, Value: h.Value})
	}
	return m, nil
}

func timeOrNil(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// tellBegin counts and logs how a Begin ended: once, however often it ran while it waited.
func (s *Idempotency) tellBegin(c *call, k work.Key, res *beginResponse, err error) {
	r := s.Records
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
	case err != nil: // the gate tells
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
	case c.replayed:
		count("repeat")
	case res.GetRun().GetTookOver():
		count("takeover")
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

// tell wakes those who wait for the work, and counts and logs how a later call on it ended.
func (r *Records) tell(c *call, name string, h holder, err error) {
	count := func(outcome string) { r.outcomes.WithLabelValues(name, outcome).Inc() }
	switch f := fault.Of(err); {
	case err == nil && c.replayed:
		count("repeat")
	case err == nil:
		count("ok")
	case fault.Is(err, fault.FenceLost):
		count("fence_lost")
		r.log.Warn("fence lost", "call", name, "scope", h.GetScope(), "key", h.GetKey(), "fence", h.GetFence(), "state",
			f.State["state"],
			"request_id", c.requestID)
	case f != nil && f.Reason.Class != fault.System:
		count("refused")
	}
	if err == nil && name != "extend" {
		r.waiters.Wake(work.Key{Tenant: c.identity.Tenant, Scope: h.GetScope(), Name: h.GetKey()})
	}
}
