package rpc

import (
	"encoding/json"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

var channels = map[pb.Channel]send.Channel{pb.Channel_CHANNEL_SMS: send.SMS,
	pb.Channel_CHANNEL_EMAIL: send.Email,
	pb.Channel_CHANNEL_PUSH:  send.Push, pb.Channel_CHANNEL_WEBHOOK: send.Webhook}

var priorities = map[pb.Priority]int16{
	pb.Priority_PRIORITY_UNSPECIFIED: notify.Normal,
	pb.Priority_PRIORITY_HIGH:        notify.High,
	pb.Priority_PRIORITY_NORMAL:      notify.Normal,
	pb.Priority_PRIORITY_LOW:         notify.Low,
}

var priorityNames = map[int16]pb.Priority{notify.High: pb.Priority_PRIORITY_HIGH,
	notify.Normal: pb.Priority_PRIORITY_NORMAL, notify.Low: pb.Priority_PRIORITY_LOW}

var onUnknowns = map[pb.OnUnknown]string{pb.OnUnknown_ON_UNKNOWN_PARK: notify.Park,
	pb.OnUnknown_ON_UNKNOWN_RESEND: notify.Resend,
	pb.OnUnknown_ON_UNKNOWN_NEVER:  notify.Never}

var outboxStateNames = map[pb.MessageState]string{
	pb.MessageState_MESSAGE_STATE_QUEUED:  notify.Queued,
	pb.MessageState_MESSAGE_STATE_SENDING: notify.Sending,
	pb.MessageState_MESSAGE_STATE_FAILED:  notify.Failed,
	pb.MessageState_MESSAGE_STATE_UNKNOWN: notify.Unknown,
	pb.MessageState_MESSAGE_STATE_DEAD:    notify.Dead, pb.MessageState_MESSAGE_STATE_SENT: notify.Sent,
	pb.MessageState_MESSAGE_STATE_DELIVERED:   notify.Delivered,
	pb.MessageState_MESSAGE_STATE_UNDELIVERED: notify.Undelivered,
	pb.MessageState_MESSAGE_STATE_CANCELLED:   notify.Cancelled,
}

var (
	outboxStates = inverse(outboxStateNames)
	channelNames = inverse(channels)
	unknownNames = inverse(onUnknowns)
)

// renderOutboxMessage renders a message to send.
func renderOutboxMessage(m *notify.Message) *pb.Message {
	return &pb.Message{Id: m.ID, State: outboxStates[m.State], Channel: channelNames[m.Channel],
		RecipientHint: m.RecipientHint, BusinessType: m.BusinessType, BizNo: m.BizNo, Template: m.Template,
		Locale: m.Locale, Priority: priorityNames[m.Priority], OnUnknown: unknownNames[m.OnUnknown],
		Attempts: m.Attempts, MaxAttempts: m.MaxAttempts, RetryTime: timestamp(m.DueAt),
		FailureCode: m.FailureCode,
		Provider:    m.Provider, NotBefore: timestamp(m.NotBefore), GiveUpTime: timestamp(m.GiveUpAt),
		ContentExpireTime: timestamp(m.ContentsUntil), AcceptTime: timestamp(m.AcceptedAt), RequestId: m.RequestID,
		ContentHash: m.ContentHash}
}

func renderGroup(g notify.DeadGroup) *pb.DeadLetterGroup {
	return &pb.DeadLetterGroup{Channel: channelNames[g.Channel], FailureCode: g.FailureCode, Count: g.Count,
		Example: renderOutboxMessage(g.Example), FailureText: g.FailureText}
}

func renderDetail(t *notify.Detail) *pb.GetMessageResponse {
	res := &pb.GetMessageResponse{Message: renderOutboxMessage(t.Message), Recipient: t.Recipient}
	for _, e := range t.Events {
		res.Events = append(res.Events, &pb.Event{Kind: e.Kind, Time: timestamp(e.At), Attempt: e.Attempt,
			Provider: e.Provider, ProviderMessageId: e.ProviderMessageID, FailureCode: e.FailureCode,
			FailureText: e.FailureText, Instance: e.Instance, Principal: e.Principal, RequestId: e.RequestID})
	}
	if t.Content != nil {
		res.Content = renderContent(t.Content)
	}
	return res
}

func renderContent(c *send.Content) *pb.Content {
	r := &pb.Content{Subject: c.Subject, Text: c.Text, Html: c.HTML, ProviderTemplates: c.Template, Type: c.Type,
		Data: c.Data, Headers: c.Headers, Params: each(c.Params, renderParam)}
	for _, a := range c.Attachments {
		r.Attachments = append(r.Attachments,
			&pb.Attachment{Name: a.Name, Type: a.Type, Data: a.Data, Inline: a.Inline})
	}
	return r
}

func contentOf(r *pb.Content) send.Content {
	c := send.Content{Subject: r.GetSubject(), Text: r.GetText(), HTML: r.GetHtml(), Template: r.GetProviderTemplates(),
		Type: r.GetType(), Data: r.GetData(), Headers: r.GetHeaders(), Params: each(r.GetParams(), paramOf)}
	for _, a := range r.GetAttachments() {
		c.Attachments = append(c.Attachments,
			send.Attachment{Name: a.GetName(), Type: a.GetType(), Data: a.GetData(), Inline: a.GetInline()})
	}
	return c
}

func renderParam(p send.Param) *pb.Param { return &pb.Param{Name: p.Name, Value: p.Value} }
func paramOf(p *pb.Param) send.Param     { return send.Param{Name: p.GetName(), Value: p.GetValue()} }

// emptyContent returns which content a channel lacks, or "".
func emptyContent(channel send.Channel, c *send.Content) string {
	switch {
	case len(c.Data) > 0 && !json.Valid(c.Data):
		return "data must be JSON"
	case channel == send.Webhook && len(c.Data) == 0:
		return "a webhook requires data"
	case channel == send.Webhook && c.Type == "":
		return "a webhook requires type"
	case channel == send.Email && (c.Subject == "" || c.Text == "" && c.HTML == ""):
		return "an e-mail requires subject, and text or html"
	case channel == send.SMS && c.Text == "" && len(c.Template) == 0:
		return "an SMS requires text or provider_templates"
	case channel == send.Push && c.Subject == "" && c.Text == "" && len(c.Data) == 0:
		return "a push message requires subject, text or data"
	}
	return ""
}
