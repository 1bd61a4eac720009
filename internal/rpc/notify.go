package rpc

import (
	"context"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

// Notify serves NotifyService.
type Notify struct {
	*Mutations
	Reader    *notify.Reader
	Templates *template.Reader
}

const sendName = "notify.send"

// sendRows is the number of rows that a message writes.
const sendRows = 4

func (s *Notify) Send(ctx context.Context, r *pb.SendRequest) (*pb.SendResponse, error) {
	return run(ctx, s.Mutations, sendOperation, r)
}

var sendOperation = register(sendName, func(c *call, d *decoder, r *pb.SendRequest) mutation[*pb.SendResponse] {
	return newMutation(flow.Notify(sendCommand(c.caller(), d, r)), sendRows,
		func(m *notify.Message, existed bool) *pb.SendResponse {
			return &pb.SendResponse{Message: renderOutboxMessage(m), Existed: existed}
		})
})

func sendCommand(c commit.Caller, d *decoder, r *pb.SendRequest) *notify.SendCommand {
	p := notify.Params{Channel: channels[r.GetChannel()], Recipient: r.GetRecipient(),
		Content: contentOf(r.GetContent()), BusinessType: d.name("business_type", r.GetBusinessType()),
		BizNo: d.bizNo("biz_no", r.GetBizNo()), Priority: priorities[r.GetPriority()],
		GiveUpAfter: r.GetGiveUpAfter().AsDuration(), ContentLife: r.GetContentLife().AsDuration(),
		OnUnknown: onUnknowns[r.GetOnUnknown()], MaxAttempts: r.GetMaxAttempts(), ClientIP: r.GetClientIp()}
	p.NotBefore = d.time("not_before", r.GetNotBefore())
	if r.GetRepeatWindow() != nil {
		window := r.GetRepeatWindow().AsDuration()
		p.RepeatWindow = &window
	}
	if p.Template = templated(r.GetTemplate()); p.Template != nil {
		p.AnyPriority = r.GetPriority() == pb.Priority_PRIORITY_UNSPECIFIED
		if p.Template.Name.Name == "" {
			d.bad("template.name", "must not be empty")
		}
	} else if problem := emptyContent(p.Channel, &p.Content); problem != "" {
		d.bad("content", problem)
	}
	return &notify.SendCommand{Caller: c, Params: p}
}

func (s *Notify) CancelMessage(ctx context.Context, r *pb.CancelMessageRequest) (*pb.CancelMessageResponse, error) {
	return run(ctx, s.Mutations, cancelMessageOperation, r)
}

var cancelMessageOperation = register("notify.cancel_message",
	func(c *call, _ *decoder, r *pb.CancelMessageRequest) mutation[*pb.CancelMessageResponse] {
		cmd := &notify.CancelCommand{Caller: c.caller(), ID: r.GetMessageId()}
		return newMutation(flow.Notify(cmd), 1, func(m *notify.Message, _ bool) *pb.CancelMessageResponse {
			return &pb.CancelMessageResponse{Message: renderOutboxMessage(m)}
		})
	})

func (s *Notify) RequeueMessages(ctx context.Context,
	r *pb.RequeueMessagesRequest) (*pb.RequeueMessagesResponse, error) {
	return run(ctx, s.Mutations, requeueMessagesOperation, r)
}

var requeueMessagesOperation = register("notify.requeue_messages",
	func(c *call, _ *decoder, r *pb.RequeueMessagesRequest) mutation[*pb.RequeueMessagesResponse] {
		after, rows := r.GetGiveUpAfter().AsDuration(), 1
		cmd := flow.Notify(&notify.RequeueCommand{Caller: c.caller(), ID: r.GetMessageId(), GiveUpAfter: after})
		if f := r.GetFilter(); f != nil {
			rows = requeueRows
			cmd = flow.Notify(&notify.RequeueAllCommand{Caller: c.caller(), Channel: channels[f.GetChannel()],
				FailureCode: f.GetFailureCode(), GiveUpAfter: after})
		}
		return newMutation(cmd, rows, func(a notify.Requeued, _ bool) *pb.RequeueMessagesResponse {
			return &pb.RequeueMessagesResponse{Requeued: int32(a.Count), More: a.More}
		})
	})

func (s *Notify) ReportDelivery(ctx context.Context, r *pb.ReportDeliveryRequest) (*pb.ReportDeliveryResponse, error) {
	return run(ctx, s.Mutations, reportDeliveryOperation, r)
}

var reportDeliveryOperation = register("notify.report_delivery",
	func(c *call, d *decoder, r *pb.ReportDeliveryRequest) mutation[*pb.ReportDeliveryResponse] {
		cmd := &notify.ReportCommand{Caller: c.caller(), ID: r.GetMessageId(),
			Provider:          r.GetProviderMessage().GetProvider(),
			ProviderMessageID: r.GetProviderMessage().GetProviderMessageId(), Delivered: r.GetDelivered(),
			FailureCode: r.GetFailureCode(), FailureText: r.GetFailureText()}
		if r.GetDelivered() && (r.GetFailureCode() != "" || r.GetFailureText() != "") {
			d.bad("failure_code", "must be empty, and failure_text too, when delivered is true")
		}
		return newMutation(flow.Notify(cmd), 1, func(m *notify.Message, _ bool) *pb.ReportDeliveryResponse {
			return &pb.ReportDeliveryResponse{Message: renderOutboxMessage(m)}
		})
	})

func (s *Notify) GetMessage(ctx context.Context, r *pb.GetMessageRequest) (*pb.GetMessageResponse, error) {
	c := callOf(ctx)
	if r.GetWithContent() && c.identity.Role < access.Admin {
		return nil, access.PermissionDenied.New("with_content requires an API key with the role admin")
	}
	if r.GetWithContent() {
		noStore(ctx)
	}
	t, err := s.Reader.Get(ctx, notify.Key{Tenant: c.identity.Tenant, ID: r.GetMessageId()}, r.GetMessageBizNo(),
		r.GetWithContent())
	if err != nil {
		return nil, err
	}
	return renderDetail(t), nil
}

func (s *Notify) ListMessages(ctx context.Context, r *pb.ListMessagesRequest) (*pb.ListMessagesResponse, error) {
	var d decoder
	f := notify.Filter{Channel: channels[r.GetChannel()], Recipient: r.GetRecipient(), FailureCode: r.GetFailureCode()}
	f.State = outboxStateNames[r.GetState()]
	switch f.State {
	case "", notify.Queued, notify.Sending, notify.Failed, notify.Unknown, notify.Dead:
	default:
		d.bad("state", "must be MESSAGE_STATE_QUEUED, MESSAGE_STATE_SENDING, MESSAGE_STATE_FAILED, "+
			"MESSAGE_STATE_UNKNOWN or MESSAGE_STATE_DEAD: messages in final states are not listed by state")
	}
	if f.Recipient != "" && (f.Channel == "" || f.State != "") {
		d.bad("recipient", "requires channel, and must not be set together with state")
	}
	if f.FailureCode != "" && f.State == "" {
		d.bad("failure_code", "requires state")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	messages, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	return &pb.ListMessagesResponse{Messages: each(messages, renderOutboxMessage), NextPageToken: next}, nil
}

func (s *Notify) ListDeadLetters(ctx context.Context,
	r *pb.ListDeadLettersRequest) (*pb.ListDeadLettersResponse, error) {
	state := notify.Dead
	if r.GetUnknown() {
		state = notify.Unknown
	}
	groups, err := s.Reader.DeadGroups(ctx, callOf(ctx).identity.Tenant, state)
	return &pb.ListDeadLettersResponse{Groups: each(groups, renderGroup)}, err
}
