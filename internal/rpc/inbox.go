package rpc

import (
	"cmp"
	"context"
	"crypto/sha256"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/inbox"
)

// Inbox serves InboxService.
type Inbox struct {
	*Mutations
	Reader *inbox.Reader
}

func (s *Inbox) Receive(ctx context.Context, r *pb.ReceiveRequest) (*pb.ReceiveResponse, error) {
	res, err := mutate(ctx, s.Mutations, receiveOperation, r)
	s.count(callOf(ctx), err == nil && !res.replayed, fault.Is(err, inbox.Duplicate), err)
	return res.reply(ctx, err)
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

var receiveOperation = register("inbox.receive",
	func(c *call, d *decoder, r *pb.ReceiveRequest) mutation[*pb.ReceiveResponse] {
		cmd := &inbox.ReceiveCommand{Caller: c.caller(), Key: d.messageKey(c, r.GetKey()),
			Delivery: d.delivery(r.GetDelivery()), Result: r.GetResult()}
		return newMutation(flow.Inbox(cmd), 1, func(m inbox.Message, _ bool) *pb.ReceiveResponse {
			return &pb.ReceiveResponse{Message: renderInboxMessage(&m)}
		})
	})

// Begin leases a message for processing elsewhere. A RUN recorded under a request key is replayed only while its lease
// is held. After that a call with the same key begins again.
func (s *Inbox) Begin(ctx context.Context, r *pb.BeginRequest) (*pb.BeginResponse, error) {
	res, err := s.begin(ctx, r)
	verdict := res.response.GetVerdict()
	s.count(callOf(ctx), verdict == pb.Verdict_VERDICT_RUN && !res.replayed, verdict == pb.Verdict_VERDICT_DONE, err)
	return res.reply(ctx, err)
}

func (s *Inbox) begin(ctx context.Context, r *pb.BeginRequest) (result[*pb.BeginResponse], error) {
	res, err := mutate(ctx, s.Mutations, standaloneBeginMessage(0), r)
	if err != nil || !res.replayed || res.response.GetVerdict() != pb.Verdict_VERDICT_RUN {
		return res, err
	}
	again := standaloneBeginMessage(res.response.GetFence())
	now, err := mutate(callOf(ctx).withoutKey().within(ctx), s.Mutations, again, r)
	if err == nil && now.response.GetFence() == res.response.GetFence() {
		return res, nil
	}
	return now, err
}

// standaloneBeginMessage is Begin outside an Execute. With a token or a claim, a message that cannot be begun now is a
// conflict, so that the call uses neither.
func standaloneBeginMessage(held int64) operation[*pb.BeginRequest, *pb.BeginResponse] {
	return operation[*pb.BeginRequest, *pb.BeginResponse]{name: beginMessageOperation.name,
		read: func(c *call, d *decoder, r *pb.BeginRequest) mutation[*pb.BeginResponse] {
			return beginMessage(c, d, r, held, c.guarded())
		}}
}

var verdicts = map[inbox.Verdict]pb.Verdict{inbox.Run: pb.Verdict_VERDICT_RUN,
	inbox.Done:      pb.Verdict_VERDICT_DONE,
	inbox.BusyUntil: pb.Verdict_VERDICT_BUSY, inbox.Buried: pb.Verdict_VERDICT_DEAD,
	inbox.LaterThan: pb.Verdict_VERDICT_LATER}

var beginMessageOperation = register("inbox.begin",
	func(c *call, d *decoder, r *pb.BeginRequest) mutation[*pb.BeginResponse] {
		return beginMessage(c, d, r, 0, false)
	})

func beginMessage(c *call, d *decoder, r *pb.BeginRequest, held int64, orFail bool) mutation[*pb.BeginResponse] {
	cmd := &inbox.BeginCommand{Caller: c.caller(), Key: d.messageKey(c, r.GetKey()),
		Delivery: d.delivery(r.GetDelivery()), Holder: cmp.Or(d.name("holder", r.GetHolder()), c.identity.Principal),
		Lease: durationOr(r.GetLease(), inbox.DefaultLease), Held: held, OrFail: orFail}
	return newMutation(flow.Inbox(cmd), 1, func(b inbox.Begun, _ bool) *pb.BeginResponse {
		res := &pb.BeginResponse{Verdict: verdicts[b.Verdict], RetryTime: timestamp(b.Until),
			Message: renderInboxMessage(&b.Message)}
		if b.Verdict == inbox.Run {
			res.Fence = b.Message.Fence
		}
		return res
	})
}

func (s *Inbox) Complete(ctx context.Context, r *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	return run(ctx, s.Mutations, completeMessageOperation, r)
}

var completeMessageOperation = register("inbox.complete",
	func(c *call, _ *decoder, r *pb.CompleteRequest) mutation[*pb.CompleteResponse] {
		cmd := &inbox.CompleteCommand{Caller: c.caller(), Key: messageKey(c, r.GetKey()), Fence: r.GetFence(),
			Result: r.GetResult()}
		return newMutation(flow.Inbox(cmd), 1, func(m inbox.Message, _ bool) *pb.CompleteResponse {
			return &pb.CompleteResponse{Message: renderInboxMessage(&m)}
		})
	})

func (s *Inbox) Fail(ctx context.Context, r *pb.FailRequest) (*pb.FailResponse, error) {
	return run(ctx, s.Mutations, failMessageOperation, r)
}

var failMessageOperation = register("inbox.fail",
	func(c *call, d *decoder, r *pb.FailRequest) mutation[*pb.FailResponse] {
		if r.GetFence() != 0 && r.GetDelivery() != nil {
			d.bad("delivery", "must not be set together with fence: it describes a message that was not begun")
		}
		cmd := &inbox.FailCommand{Caller: c.caller(), Key: d.messageKey(c, r.GetKey()), Fence: r.GetFence(),
			FailureText: r.GetFailureText(), Permanent: r.GetPermanent(), Delivery: d.delivery(r.GetDelivery())}
		return newMutation(flow.Inbox(cmd), 1,
			func(m inbox.Message, _ bool) *pb.FailResponse {
				return &pb.FailResponse{Message: renderInboxMessage(&m)}
			})
	})

func (s *Inbox) Extend(ctx context.Context, r *pb.ExtendRequest) (*pb.ExtendResponse, error) {
	return run(ctx, s.Mutations, extendMessageOperation, r)
}

var extendMessageOperation = register("inbox.extend",
	func(c *call, _ *decoder, r *pb.ExtendRequest) mutation[*pb.ExtendResponse] {
		cmd := &inbox.ExtendCommand{Caller: c.caller(), Key: messageKey(c, r.GetKey()), Fence: r.GetFence(),
			Lease: durationOr(r.GetLease(), inbox.DefaultLease)}
		return newMutation(flow.Inbox(cmd), 1,
			func(m inbox.Message, _ bool) *pb.ExtendResponse {
				return &pb.ExtendResponse{Message: renderInboxMessage(&m)}
			})
	})

func (s *Inbox) RequeueMessages(ctx context.Context, r *pb.RequeueMessagesRequest) (*pb.RequeueMessagesResponse,
	error) {
	return run(ctx, s.Mutations, requeueOperation, r)
}

// requeueRows is the estimated number of rows of a filter. The actual number is known only when it runs.
const requeueRows = 500

var requeueOperation = register("inbox.requeue_messages",
	func(c *call, _ *decoder, r *pb.RequeueMessagesRequest) mutation[*pb.RequeueMessagesResponse] {
		cmd, rows := flow.Inbox(&inbox.RequeueCommand{Caller: c.caller(), Key: messageKey(c, r.GetKey())}), 1
		if f := r.GetFilter(); f != nil {
			rows = requeueRows
			cmd = flow.Inbox(&inbox.RequeueAllCommand{Caller: c.caller(), Group: f.GetConsumerGroup(),
				Topic: f.GetTopic()})
		}
		return newMutation(cmd, rows, func(a inbox.Requeued, _ bool) *pb.RequeueMessagesResponse {
			return &pb.RequeueMessagesResponse{Requeued: int32(a.Count), More: a.More}
		})
	})

func (s *Inbox) GetMessage(ctx context.Context, r *pb.GetMessageRequest) (*pb.GetMessageResponse, error) {
	m, err := s.Reader.Get(ctx, messageKey(callOf(ctx), r.GetKey()))
	if err != nil {
		return nil, err
	}
	return &pb.GetMessageResponse{Message: renderInboxMessage(m)}, nil
}

func (s *Inbox) ListMessages(ctx context.Context, r *pb.ListMessagesRequest) (*pb.ListMessagesResponse, error) {
	f := inbox.Filter{Group: r.GetConsumerGroup(), Topic: r.GetTopic(), State: messageStateNames[r.GetState()]}
	messages, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListMessagesResponse{Messages: each(messages, renderInboxMessage), NextPageToken: next}, err
}

func messageKey(c *call, k *pb.MessageKey) inbox.Key {
	return inbox.Key{Tenant: c.identity.Tenant, Group: k.GetConsumerGroup(), ID: k.GetMessageId(), Part: k.GetPart()}
}

// messageKey decodes and validates the key of a message that may be new.
func (d *decoder) messageKey(c *call, k *pb.MessageKey) inbox.Key {
	d.name("key.consumer_group", k.GetConsumerGroup())
	d.printable("key.message_id", k.GetMessageId())
	d.printable("key.part", k.GetPart())
	return messageKey(c, k)
}

// delivery decodes the content and the settings of a message, with defaults.
func (d *decoder) delivery(r *pb.Delivery) inbox.Delivery {
	x := inbox.Delivery{Topic: d.name("delivery.topic", r.GetTopic()),
		Content: r.GetContent(), Hash: r.GetContentSha256(),
		ContentLife: durationOr(r.GetContentLife(), inbox.DefaultContentLife), Life: durationOr(r.GetLife(), 0),
		MaxAttempts: cmp.Or(r.GetMaxAttempts(), inbox.DefaultMaxAttempts),
		Backoff:     durationOr(r.GetBackoff(), inbox.DefaultBackoff),
		MaxBackoff:  durationOr(r.GetMaxBackoff(), inbox.DefaultMaxBackoff)}
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

var messageStates = map[string]pb.MessageState{
	inbox.Processing: pb.MessageState_MESSAGE_STATE_PROCESSING,
	inbox.Succeeded:  pb.MessageState_MESSAGE_STATE_SUCCEEDED,
	inbox.Failed:     pb.MessageState_MESSAGE_STATE_FAILED, inbox.Died: pb.MessageState_MESSAGE_STATE_DEAD,
}

var messageStateNames = inverse(messageStates)

func renderInboxMessage(m *inbox.Message) *pb.Message {
	r := &pb.Message{Key: &pb.MessageKey{ConsumerGroup: m.Group, MessageId: m.ID, Part: m.Part}, Topic: m.Topic,
		State: messageStates[m.State], Holder: m.Holder, LeaseExpireTime: timestamp(m.LeaseExpiresAt),
		Attempts: m.Attempts, MaxAttempts: m.MaxAttempts, RetryTime: timestamp(m.RetryAt), FailureText: m.FailureText,
		Result: m.Result, ReceiveTime: timestamp(m.ReceivedAt), BeginTime: timestamp(m.BegunAt),
		FinishTime: timestamp(m.FinishedAt), ExpireTime: timestamp(m.ExpiresAt), RequeueTime: timestamp(m.RequeuedAt),
		ContentSha256: m.Hash, RequestId: m.RequestID, LastRequestId: m.LastRequestID}
	if m.ContentUntil.IsZero() { // otherwise the caller has just sent it
		r.Content = m.Content
	}
	return r
}
