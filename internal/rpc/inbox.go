package rpc

import (
	"context"
	"crypto/sha256"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1/inboxv1connect"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/inbox"
)

// Inbox serves InboxService.
type Inbox struct {
	*Mutations
	Reader *inbox.Reader
}

var _ inboxv1connect.InboxServiceHandler = (*Inbox)(nil)

func (c *call) inboxCaller() commit.Caller {
	return commit.Caller{Tenant: c.identity.Tenant, Principal: c.identity.Principal, RequestID: c.requestID}
}

// Receive receives and finishes a message in one.
func (s *Inbox) Receive(ctx context.Context, r *inboxv1.ReceiveRequest) (*inboxv1.ReceiveResponse, error) {
	res, err := run(ctx, s.Mutations, receiveCall, r)
	s.count(callOf(ctx), err == nil && !callOf(ctx).replayed, fault.Is(err, inbox.Duplicate), err)
	return res, err
}

// count counts for audit.key_outcomes, as the engine does for calls with a request key.
func (s *Inbox) count(c *call, first, again bool, err error) {
	const messages = "inbox.message"
	switch {
	case first:
		s.Engine.Count(c.identity.Tenant, messages, "first")
	case again:
		s.Engine.Count(c.identity.Tenant, messages, "replayed")
	case fault.Is(err, inbox.Differs):
		s.Engine.Count(c.identity.Tenant, messages, "mismatch")
	}
}

var receiveCall = register("inbox.receive",
	func(c *call, d *decoder, r *inboxv1.ReceiveRequest) mutation[*inboxv1.ReceiveResponse] {
		cmd := &inbox.ReceiveCommand{Caller: c.inboxCaller(), Key: messageKey(c, r.GetKey()),
			Delivery: d.delivery(r.GetDelivery()), Result: r.GetResult()}
		return mutation[*inboxv1.ReceiveResponse]{command: flow.Inbox(cmd),
			render: func(answer any, _ bool) (*inboxv1.ReceiveResponse, error) {
				return &inboxv1.ReceiveResponse{Message: renderMessageOf(answer)}, nil
			}}
	})

// Begin takes a message for work that is done elsewhere. A RUN that is recorded under a request key is given again
// only if it still holds: after that the same key asks anew.
func (s *Inbox) Begin(ctx context.Context, r *inboxv1.BeginRequest) (*inboxv1.BeginResponse, error) {
	res, err := s.begin(ctx, r)
	c := callOf(ctx)
	s.count(c, res.GetVerdict() == inboxv1.Verdict_VERDICT_RUN && !c.replayed,
		res.GetVerdict() == inboxv1.Verdict_VERDICT_DONE, err)
	return res, err
}

func (s *Inbox) begin(ctx context.Context, r *inboxv1.BeginRequest) (*inboxv1.BeginResponse, error) {
	res, err := run(ctx, s.Mutations, beginMessageAlone(0), r)
	c := callOf(ctx)
	if err != nil || !c.replayed || res.GetVerdict() != inboxv1.Verdict_VERDICT_RUN {
		return res, err
	}
	ctx, later := c.letThrough(ctx)
	now, err := run(ctx, s.Mutations, beginMessageAlone(res.GetFence()), r)
	if err == nil && now.GetFence() == res.GetFence() {
		return res, nil
	}
	c.replayed = later.replayed
	return now, err
}

// beginMessageAlone is a Begin as a call. Behind a token or a claim it is a conflict that the message cannot be taken
// now: nothing was done, so neither is used up.
func beginMessageAlone(held int64) operation[*inboxv1.BeginRequest, *inboxv1.BeginResponse] {
	return operation[*inboxv1.BeginRequest, *inboxv1.BeginResponse]{name: beginMessageCall.name,
		read: func(c *call, d *decoder, r *inboxv1.BeginRequest) mutation[*inboxv1.BeginResponse] {
			return beginMessage(c, d, r, held, len(c.conditions) > 0)
		}}
}

var verdicts = map[inbox.Verdict]inboxv1.Verdict{inbox.Run: inboxv1.Verdict_VERDICT_RUN,
	inbox.Done:      inboxv1.Verdict_VERDICT_DONE,
	inbox.BusyUntil: inboxv1.Verdict_VERDICT_BUSY, inbox.Buried: inboxv1.Verdict_VERDICT_DEAD,
	inbox.LaterThan: inboxv1.Verdict_VERDICT_LATER}

var beginMessageCall = register("inbox.begin",
	func(c *call, d *decoder, r *inboxv1.BeginRequest) mutation[*inboxv1.BeginResponse] {
		return beginMessage(c, d, r, 0, false)
	})

func beginMessage(c *call, d *decoder, r *inboxv1.BeginRequest, held int64,
	orFail bool) mutation[*inboxv1.BeginResponse] {
	cmd := &inbox.BeginCommand{Caller: c.inboxCaller(), Key: messageKey(c, r.GetKey()),
		Delivery: d.delivery(r.GetDelivery()),
		Holder:   r.GetHolder(), Lease: lifeOr(r.GetLease(), inbox.DefaultLease), Held: held, OrFail: orFail}
	if cmd.Holder == "" {
		cmd.Holder = cmd.Principal
	}
	return mutation[*inboxv1.BeginResponse]{command: flow.Inbox(cmd),
		render: func(answer any, _ bool) (*inboxv1.BeginResponse, error) {
			b := answer.(inbox.Begun)
			res := &inboxv1.BeginResponse{Verdict: verdicts[b.Verdict], RetryTime: timestamp(b.Until),
				Message: renderMessage(&b.Message)}
			if b.Verdict == inbox.Run {
				res.Fence = b.Message.Fence
			}
			return res, nil
		}}
}

// Complete ends an attempt well.
func (s *Inbox) Complete(ctx context.Context, r *inboxv1.CompleteRequest) (*inboxv1.CompleteResponse, error) {
	return run(ctx, s.Mutations, completeMessageCall, r)
}

var completeMessageCall = register("inbox.complete",
	func(c *call, _ *decoder, r *inboxv1.CompleteRequest) mutation[*inboxv1.CompleteResponse] {
		cmd := &inbox.CompleteCommand{Caller: c.inboxCaller(), Key: messageKey(c, r.GetKey()), Fence: r.GetFence(),
			Result: r.GetResult()}
		return mutation[*inboxv1.CompleteResponse]{command: flow.Inbox(cmd),
			render: func(answer any, _ bool) (*inboxv1.CompleteResponse, error) {
				return &inboxv1.CompleteResponse{Message: renderMessageOf(answer)}, nil
			}}
	})

// Fail ends an attempt that did not go well.
func (s *Inbox) Fail(ctx context.Context, r *inboxv1.FailRequest) (*inboxv1.FailResponse, error) {
	return run(ctx, s.Mutations, failMessageCall, r)
}

var failMessageCall = register("inbox.fail",
	func(c *call, d *decoder, r *inboxv1.FailRequest) mutation[*inboxv1.FailResponse] {
		if r.GetFence() != 0 && r.GetDelivery() != nil {
			d.bad("delivery", "must not be set together with fence: it describes a message that was not begun")
		}
		cmd := &inbox.FailCommand{Caller: c.inboxCaller(), Key: messageKey(c, r.GetKey()), Fence: r.GetFence(),
			Error:     r.GetError(),
			Permanent: r.GetPermanent(), Delivery: d.delivery(r.GetDelivery())}
		return mutation[*inboxv1.FailResponse]{command: flow.Inbox(cmd),
			render: func(answer any, _ bool) (*inboxv1.FailResponse, error) {
				return &inboxv1.FailResponse{Message: renderMessageOf(answer)}, nil
			}}
	})

// Extend lengthens a lease.
func (s *Inbox) Extend(ctx context.Context, r *inboxv1.ExtendRequest) (*inboxv1.ExtendResponse, error) {
	return run(ctx, s.Mutations, extendMessageCall, r)
}

var extendMessageCall = register("inbox.extend",
	func(c *call, _ *decoder, r *inboxv1.ExtendRequest) mutation[*inboxv1.ExtendResponse] {
		cmd := &inbox.ExtendCommand{Caller: c.inboxCaller(), Key: messageKey(c, r.GetKey()), Fence: r.GetFence(),
			Lease: lifeOr(r.GetLease(), inbox.DefaultLease)}
		return mutation[*inboxv1.ExtendResponse]{command: flow.Inbox(cmd),
			render: func(answer any, _ bool) (*inboxv1.ExtendResponse, error) {
				return &inboxv1.ExtendResponse{Message: renderMessageOf(answer)}, nil
			}}
	})

// Requeue brings dead messages back.
func (s *Inbox) Requeue(ctx context.Context, r *inboxv1.RequeueRequest) (*inboxv1.RequeueResponse, error) {
	return run(ctx, s.Mutations, requeueCall, r)
}

// requeueRows is what a filter counts for: how many it finds is known only when it runs.
const requeueRows = 500

var requeueCall = register("inbox.requeue",
	func(c *call, _ *decoder, r *inboxv1.RequeueRequest) mutation[*inboxv1.RequeueResponse] {
		g := mutation[*inboxv1.RequeueResponse]{render: func(answer any, _ bool) (*inboxv1.RequeueResponse, error) {
			a := answer.(inbox.Requeued)
			return &inboxv1.RequeueResponse{Requeued: int32(a.Count), More: a.More}, nil
		}}
		if f := r.GetFilter(); f != nil {
			g.rows = requeueRows
			g.command = flow.Inbox(&inbox.RequeueAllCommand{Caller: c.inboxCaller(), Group: f.GetConsumerGroup(),
				Topic: f.GetTopic()})
		} else {
			g.command = flow.Inbox(&inbox.RequeueCommand{Caller: c.inboxCaller(), Key: messageKey(c, r.GetKey())})
		}
		return g
	})

// Get shows a message.
func (s *Inbox) Get(ctx context.Context, r *inboxv1.GetRequest) (*inboxv1.GetResponse, error) {
	m, err := s.Reader.Get(ctx, messageKey(callOf(ctx), r.GetKey()))
	if err != nil {
		return nil, err
	}
	return &inboxv1.GetResponse{Message: renderMessage(m)}, nil
}

// List lists messages, newest first.
func (s *Inbox) List(ctx context.Context, r *inboxv1.ListRequest) (*inboxv1.ListResponse, error) {
	f := inbox.Filter{Group: r.GetConsumerGroup(), Topic: r.GetTopic()}
	for name, state := range messageStates {
		if state == r.GetState() {
			f.State = name
		}
	}
	messages, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &inboxv1.ListResponse{NextPageToken: next}
	for _, m := range messages {
		res.Messages = append(res.Messages, renderMessage(m))
	}
	return res, err
}

func messageKey(c *call, k *inboxv1.MessageKey) inbox.Key {
	return inbox.Key{Tenant: c.identity.Tenant, Group: k.GetConsumerGroup(), ID: k.GetMessageId(), Part: k.GetPart()}
}

func lifeOr(d *durationpb.Duration, byDefault time.Duration) time.Duration {
	if d == nil {
		return byDefault
	}
	return d.AsDuration().Truncate(time.Millisecond)
}

// delivery reads what came with a message, and puts defaults where nothing is said.
func (d *decoder) delivery(r *inboxv1.Delivery) inbox.Delivery {
	x := inbox.Delivery{Topic: r.GetTopic(), Content: r.GetContent(), Hash: r.GetContentSha256(),
		ContentLife: lifeOr(r.GetContentLife(), inbox.DefaultContentLife), Keep: lifeOr(r.GetKeep(), 0),
		MaxAttempts: r.GetMaxAttempts(),
		Backoff:     lifeOr(r.GetBackoff(), inbox.DefaultBackoff),
		MaxBackoff:  lifeOr(r.GetMaxBackoff(), inbox.DefaultMaxBackoff)}
	if x.MaxAttempts == 0 {
		x.MaxAttempts = inbox.DefaultMaxAttempts
	}
	switch {
	case len(x.Hash) == 0:
		x.Hash = nil
	case len(x.Content) > 0:
		d.bad("delivery.content_sha256", "must not be set together with content")
	}
	if len(x.Content) > 0 {
		sum := sha256.Sum256(x.Content)
		x.Hash = sum[:]
	}
	if x.MaxBackoff < x.Backoff {
		if r.GetMaxBackoff() != nil {
			d.bad("delivery.max_backoff", "must not be less than backoff")
		}
		x.MaxBackoff = x.Backoff
	}
	return x
}

var messageStates = map[string]inboxv1.MessageState{
	inbox.Processing: inboxv1.MessageState_MESSAGE_STATE_PROCESSING,
	inbox.Succeeded:  inboxv1.MessageState_MESSAGE_STATE_SUCCEEDED,
	inbox.Failed:     inboxv1.MessageState_MESSAGE_STATE_FAILED, inbox.Died: inboxv1.MessageState_MESSAGE_STATE_DEAD,
}

func renderMessageOf(answer any) *inboxv1.Message {
	m := answer.(inbox.Message)
	return renderMessage(&m)
}

func renderMessage(m *inbox.Message) *inboxv1.Message {
	r := &inboxv1.Message{Key: &inboxv1.MessageKey{ConsumerGroup: m.Group, MessageId: m.ID, Part: m.Part},
		Topic: m.Topic,
		State: messageStates[m.State], Holder: m.Holder, LeaseExpireTime: timestamp(m.LeaseUntil), Attempts: m.Attempts,
		MaxAttempts: m.MaxAttempts, RetryTime: timestamp(m.RetryAt), Error: m.Error, Result: m.Result,
		ReceiveTime: timestamp(m.ReceivedAt),
		StartTime:   timestamp(m.StartedAt), FinishTime: timestamp(m.FinishedAt), ExpireTime: timestamp(m.ExpiresAt),
		RequeueTime: timestamp(m.RequeuedAt), ContentSha256: m.Hash, RequestId: m.RequestID,
		LastRequestId: m.LastRequestID}
	if m.ContentUntil.IsZero() { // else it is what the caller has just sent
		r.Content = m.Content
	}
	return r
}
