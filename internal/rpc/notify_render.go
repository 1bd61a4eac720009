package rpc

import (
	"encoding/json"

	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

var channels = map[notifyv1.Channel]send.Channel{notifyv1.Channel_CHANNEL_SMS: send.SMS,
	notifyv1.Channel_CHANNEL_EMAIL: send.Email,
	notifyv1.Channel_CHANNEL_PUSH:  send.Push, notifyv1.Channel_CHANNEL_WEBHOOK: send.Webhook}

var priorities = map[notifyv1.Priority]int16{notifyv1.Priority_PRIORITY_UNSPECIFIED: notify.Normal,
	notifyv1.Priority_PRIORITY_HIGH:   notify.High,
	notifyv1.Priority_PRIORITY_NORMAL: notify.Normal, notifyv1.Priority_PRIORITY_LOW: notify.Low}

var onUnknowns = map[notifyv1.OnUnknown]string{notifyv1.OnUnknown_ON_UNKNOWN_PARK: notify.Park,
	notifyv1.OnUnknown_ON_UNKNOWN_RESEND: notify.Resend,
	notifyv1.OnUnknown_ON_UNKNOWN_NEVER:  notify.Never}

var noticeStateNames = map[notifyv1.MessageState]string{
	notifyv1.MessageState_MESSAGE_STATE_QUEUED:  notify.Queued,
	notifyv1.MessageState_MESSAGE_STATE_SENDING: notify.Sending,
	notifyv1.MessageState_MESSAGE_STATE_FAILED:  notify.Failed,
	notifyv1.MessageState_MESSAGE_STATE_UNKNOWN: notify.Unknown,
	notifyv1.MessageState_MESSAGE_STATE_DEAD:    notify.Dead, notifyv1.MessageState_MESSAGE_STATE_SENT: notify.Sent,
	notifyv1.MessageState_MESSAGE_STATE_DELIVERED:   notify.Delivered,
	notifyv1.MessageState_MESSAGE_STATE_UNDELIVERED: notify.Undelivered,
	notifyv1.MessageState_MESSAGE_STATE_CANCELLED:   notify.Cancelled,
}

var (
	noticeStates = inverse(noticeStateNames)
	channelNames = inverse(channels)
	unknownNames = inverse(onUnknowns)
)

func inverse[K, V comparable](m map[K]V) map[V]K {
	n := make(map[V]K, len(m))
	for k, v := range m {
		n[v] = k
	}
	return n
}

func channelOf(c send.Channel) notifyv1.Channel { return channelNames[c] }

func priorityOf(p int16) notifyv1.Priority {
	switch p {
	case notify.High:
		return notifyv1.Priority_PRIORITY_HIGH
	case notify.Low:
		return notifyv1.Priority_PRIORITY_LOW
	}
	return notifyv1.Priority_PRIORITY_NORMAL
}

// renderNotice shows a message of the outbox; those of the inbox are shown by renderMessage.
func renderNotice(m *notify.Message) *notifyv1.Message {
	return &notifyv1.Message{MessageId: m.ID, State: noticeStates[m.State], Channel: channelOf(m.Channel),
		RecipientHint: m.RecipientHint,
		BusinessType:  m.BusinessType, BizNo: m.BizNo, Template: m.Template, Locale: m.Locale,
		Priority:  priorityOf(m.Priority),
		OnUnknown: unknownNames[m.OnUnknown], Attempts: m.Attempts, MaxAttempts: m.MaxAttempts,
		NextAttemptTime: timestamp(m.DueAt), Code: m.Code,
		Provider: m.Provider, NotBefore: timestamp(m.NotBefore), GiveUpTime: timestamp(m.GiveUpAt),
		ContentExpireTime: timestamp(m.ContentsUntil),
		AcceptTime:        timestamp(m.AcceptedAt), RequestId: m.RequestID, ContentHash: m.ContentHash}
}

func renderTold(t *notify.Told) *notifyv1.GetMessageResponse {
	res := &notifyv1.GetMessageResponse{Message: renderNotice(t.Message), Recipient: t.Recipient}
	for _, e := range t.Events {
		res.Events = append(res.Events, &notifyv1.Event{Kind: e.Kind, Time: timestamp(e.At), Attempt: e.Attempt,
			Provider:          e.Provider,
			ProviderMessageId: e.ProviderMessageID, Code: e.Code, Error: e.Error, Instance: e.Instance,
			Principal: e.Principal, RequestId: e.RequestID})
	}
	if t.Content != nil {
		res.Content = renderContent(t.Content)
	}
	return res
}

func renderContent(c *send.Content) *notifyv1.Content {
	r := &notifyv1.Content{Subject: c.Subject, Text: c.Text, Html: c.HTML, ProviderTemplates: c.Template, Type: c.Type,
		Data: c.Data, Headers: c.Headers}
	for _, p := range c.Params {
		r.Params = append(r.Params, &notifyv1.Param{Name: p.Name, Value: p.Value})
	}
	for _, a := range c.Attachments {
		r.Attachments = append(r.Attachments,
			&notifyv1.Attachment{Name: a.Name, Type: a.Type, Data: a.Data, Inline: a.Inline})
	}
	return r
}

func contentOf(r *notifyv1.Content) send.Content {
	c := send.Content{Subject: r.GetSubject(), Text: r.GetText(), HTML: r.GetHtml(), Template: r.GetProviderTemplates(),
		Type: r.GetType(), Data: r.GetData(),
		Headers: r.GetHeaders()}
	for _, p := range r.GetParams() {
		c.Params = append(c.Params, send.Param{Name: p.GetName(), Value: p.GetValue()})
	}
	for _, a := range r.GetAttachments() {
		c.Attachments = append(c.Attachments,
			send.Attachment{Name: a.GetName(), Type: a.GetType(), Data: a.GetData(), Inline: a.GetInline()})
	}
	return c
}

// emptyContent tells why a channel has nothing to send, or "".
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
