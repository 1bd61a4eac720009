package rpc

import (
	"context"
	"time"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1/notifyv1connect"
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

var _ notifyv1connect.NotifyServiceHandler = (*Notify)(nil)

func (c *call) notifyCaller() commit.Caller {
	return commit.Caller{Tenant: c.identity.Tenant, Principal: c.identity.Principal, RequestID: c.requestID}
}

const sendOperation = "notify.send"

// sendRows is what a message counts for: the rows that it writes.
const sendRows = 4

// Send accepts a message.
func (s *Notify) Send(ctx context.Context, r *notifyv1.SendRequest) (*notifyv1.SendResponse, error) {
	return run(ctx, s.Mutations, sendCall, r)
}

var sendCall = register(sendOperation, func(c *call, d *decoder,
	r *notifyv1.SendRequest) mutation[*notifyv1.SendResponse] {
	return mutation[*notifyv1.SendResponse]{command: flow.Notify(sendCommand(c, d, r)), rows: sendRows,
		render: renderSent}
})

func renderSent(answer any, existed bool) (*notifyv1.SendResponse, error) {
	return &notifyv1.SendResponse{Message: renderNotice(answer.(*notify.Message)), Existed: existed}, nil
}

func sendCommand(c *call, d *decoder, r *notifyv1.SendRequest) *notify.SendCommand {
	p := notify.Params{Channel: channels[r.GetChannel()], Recipient: r.GetRecipient(),
		Content: contentOf(r.GetContent()), BusinessType: r.GetBusinessType(),
		BizNo: d.bizNo("biz_no", r.GetBizNo()), Priority: priorities[r.GetPriority()],
		GiveUpAfter: r.GetGiveUpAfter().AsDuration(),
		ContentLife: r.GetContentLife().AsDuration(), OnUnknown: onUnknowns[r.GetOnUnknown()],
		MaxAttempts: r.GetMaxAttempts(), ClientIP: r.GetClientIp()}
	if r.GetNotBefore() != nil {
		p.NotBefore = r.GetNotBefore().AsTime().Truncate(time.Microsecond)
		if err := r.GetNotBefore().CheckValid(); err != nil || p.NotBefore.Year() > 9999 {
			d.bad("not_before", "is not a time between the years 1 and 9999")
		}
	}
	if r.GetRepeatWindow() != nil {
		window := r.GetRepeatWindow().AsDuration()
		p.RepeatWindow = &window
	}
	if p.Template = templated(r.GetTemplate()); p.Template != nil {
		p.AnyPriority = r.GetPriority() == notifyv1.Priority_PRIORITY_UNSPECIFIED
		if p.Template.Name.Name == "" {
			d.bad("template.name", "is missing")
		}
	} else if problem := emptyContent(p.Channel, &p.Content); problem != "" {
		d.bad("content", problem)
	}
	return &notify.SendCommand{Caller: c.notifyCaller(), Params: p}
}

// CancelMessage keeps a message from being sent.
func (s *Notify) CancelMessage(ctx context.Context,
	r *notifyv1.CancelMessageRequest) (*notifyv1.CancelMessageResponse, error) {
	return run(ctx, s.Mutations, cancelMessageCall, r)
}

var cancelMessageCall = register("notify.cancel_message",
	func(c *call, _ *decoder, r *notifyv1.CancelMessageRequest) mutation[*notifyv1.CancelMessageResponse] {
		cmd := &notify.CancelCommand{Caller: c.notifyCaller(), ID: r.GetMessageId()}
		return mutation[*notifyv1.CancelMessageResponse]{command: flow.Notify(cmd),
			render: func(answer any, _ bool) (*notifyv1.CancelMessageResponse, error) {
				return &notifyv1.CancelMessageResponse{Message: renderNotice(answer.(*notify.Message))}, nil
			}}
	})

// RequeueMessages brings messages back.
func (s *Notify) RequeueMessages(ctx context.Context,
	r *notifyv1.RequeueMessagesRequest) (*notifyv1.RequeueMessagesResponse, error) {
	return run(ctx, s.Mutations, requeueMessagesCall, r)
}

var requeueMessagesCall = register("notify.requeue_messages",
	func(c *call, _ *decoder, r *notifyv1.RequeueMessagesRequest) mutation[*notifyv1.RequeueMessagesResponse] {
		g := mutation[*notifyv1.RequeueMessagesResponse]{render: func(answer any,
			_ bool) (*notifyv1.RequeueMessagesResponse, error) {
			a := answer.(notify.Requeued)
			return &notifyv1.RequeueMessagesResponse{Requeued: int32(a.Count), More: a.More}, nil
		}}
		after := r.GetGiveUpAfter().AsDuration()
		if f := r.GetFilter(); f != nil {
			g.rows = requeueRows
			g.command = flow.Notify(&notify.RequeueAllCommand{Caller: c.notifyCaller(),
				Channel: channels[f.GetChannel()],
				Code:    f.GetCode(), GiveUpAfter: after})
		} else {
			g.command = flow.Notify(&notify.RequeueCommand{Caller: c.notifyCaller(), ID: r.GetMessageId(),
				GiveUpAfter: after})
		}
		return g
	})

// ReportDelivery writes down what became of a message.
func (s *Notify) ReportDelivery(ctx context.Context,
	r *notifyv1.ReportDeliveryRequest) (*notifyv1.ReportDeliveryResponse, error) {
	return run(ctx, s.Mutations, reportDeliveryCall, r)
}

var reportDeliveryCall = register("notify.report_delivery",
	func(c *call, d *decoder, r *notifyv1.ReportDeliveryRequest) mutation[*notifyv1.ReportDeliveryResponse] {
		cmd := &notify.ReportCommand{Caller: c.notifyCaller(), ID: r.GetMessageId(),
			Provider:          r.GetProviderMessage().GetProvider(),
			ProviderMessageID: r.GetProviderMessage().GetProviderMessageId(), Delivered: r.GetDelivered(),
			Code: r.GetCode(), Error: r.GetError()}
		if r.GetDelivered() && (r.GetCode() != "" || r.GetError() != "") {
			d.bad("code", "must be empty, and error too, when delivered is true")
		}
		return mutation[*notifyv1.ReportDeliveryResponse]{command: flow.Notify(cmd),
			render: func(answer any, _ bool) (*notifyv1.ReportDeliveryResponse, error) {
				return &notifyv1.ReportDeliveryResponse{Message: renderNotice(answer.(*notify.Message))}, nil
			}}
	})

// GetMessage shows a message, and what happened to it.
func (s *Notify) GetMessage(ctx context.Context, r *notifyv1.GetMessageRequest) (*notifyv1.GetMessageResponse, error) {
	c := callOf(ctx)
	if r.GetWithContent() && c.identity.Role < access.Admin {
		return nil, access.PermissionDenied.New("with_content requires an API key with the role admin")
	}
	c.secret = r.GetWithContent()
	t, err := s.Reader.Get(ctx, notify.Key{Tenant: c.identity.Tenant, ID: r.GetMessageId()}, r.GetBizNo(),
		r.GetWithContent())
	if err != nil {
		return nil, err
	}
	return renderTold(t), nil
}

// ListMessages lists messages, newest first.
func (s *Notify) ListMessages(ctx context.Context,
	r *notifyv1.ListMessagesRequest) (*notifyv1.ListMessagesResponse, error) {
	var d decoder
	f := notify.Filter{Channel: channels[r.GetChannel()], Recipient: r.GetRecipient(), Code: r.GetCode()}
	switch r.GetState() {
	case notifyv1.MessageState_MESSAGE_STATE_UNSPECIFIED:
	case notifyv1.MessageState_MESSAGE_STATE_QUEUED, notifyv1.MessageState_MESSAGE_STATE_SENDING,
		notifyv1.MessageState_MESSAGE_STATE_FAILED,
		notifyv1.MessageState_MESSAGE_STATE_UNKNOWN, notifyv1.MessageState_MESSAGE_STATE_DEAD:
		f.State = noticeStateNames[r.GetState()]
	default:
		d.bad("state", "must be MESSAGE_STATE_QUEUED, _SENDING, _FAILED, _UNKNOWN or _DEAD: messages in final states are not listed by state")
	}
	if f.Recipient != "" && (f.Channel == "" || f.State != "") {
		d.bad("recipient", "requires channel, and must not be set together with state")
	}
	if f.Code != "" && f.State == "" {
		d.bad("code", "requires state")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	messages, next, err := s.Reader.List(ctx, callOf(ctx).identity.Tenant, f, int(r.GetPageSize()), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	res := &notifyv1.ListMessagesResponse{NextPageToken: next}
	for _, m := range messages {
		res.Messages = append(res.Messages, renderNotice(m))
	}
	return res, nil
}

// ListDeadLetters lists what is dead or unknown, grouped by what went wrong.
func (s *Notify) ListDeadLetters(ctx context.Context,
	r *notifyv1.ListDeadLettersRequest) (*notifyv1.ListDeadLettersResponse, error) {
	state := notify.Dead
	if r.GetUnknown() {
		state = notify.Unknown
	}
	groups, err := s.Reader.DeadGroups(ctx, callOf(ctx).identity.Tenant, state)
	if err != nil {
		return nil, err
	}
	res := &notifyv1.ListDeadLettersResponse{}
	for _, g := range groups {
		res.Groups = append(res.Groups, &notifyv1.DeadLetterGroup{Channel: channelOf(g.Channel), Code: g.Code,
			Count:   g.Count,
			Example: renderNotice(g.Example), Error: g.Error})
	}
	return res, nil
}
