// Package send is the interface between the outbox and the providers: requests to a Sender, and their outcomes. It
// depends neither on the database nor on a provider.
package send

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sender sends messages of one channel through one provider. Safe for concurrent use.
type Sender interface {
	// Send sends one message. It returns when the provider has accepted or refused the message, or when ctx ends. An
	// error that is not a *Failure counts as Unknown.
	Send(ctx context.Context, m *Message) (Receipt, error)
}

// Channel is a way to reach a recipient.
type Channel string

const (
	SMS     Channel = "sms"
	Email   Channel = "email"
	Push    Channel = "push"
	Webhook Channel = "webhook"
)

// Message is a rendered message.
type Message struct {
	Tenant int32
	ID     int64
	// Key is the same in every attempt, so that a provider with idempotency keys deduplicates: 1 to 64 letters, digits,
	// - and _.
	Key     string
	Channel Channel
	Attempt int // from 1
	// Recipient is a phone number in E.164, an e-mail address, a device token, or the name of an endpoint.
	Recipient string
	Content   Content
	// Park forbids another attempt after one with unknown outcome. It is constant over the attempts of a message.
	Park bool
	// LastProvider is the recorded provider of the last attempt: the next one in the order is asked. Empty: none is
	// recorded.
	LastProvider string
	// Unsure means that LastProvider, or the first provider if LastProvider is empty, may have sent the message. Only
	// this provider is asked again, because it can deduplicate by key, unless the configuration allows others
	// (resend_unknown). Never set with Park.
	Unsure bool
	// MarkProvider records in the database that a provider other than the first is about to be asked. If this
	// process crashes during the request, the next process gets that provider as LastProvider, with Unsure. After an
	// error the provider must not be asked. May be nil.
	MarkProvider func(ctx context.Context, provider string) error
}

// Content is the content of a message, stored as JSON. A channel uses the fields that apply to it.
type Content struct {
	Subject     string       `json:"subject,omitempty"`
	Text        string       `json:"text,omitempty"`
	HTML        string       `json:"html,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
	// Template and Params are for providers with templates of their own, as required for SMS in China: the template
	// number by provider, and the variables in order.
	Template map[string]string `json:"template,omitempty"`
	Params   []Param           `json:"params,omitempty"`
	// ProviderParams override Params for some providers.
	ProviderParams map[string][]Param `json:"provider_params,omitempty"`
	// Type and Data are the event type and body of a webhook, or the data of a push message, as JSON.
	Type string `json:"type,omitempty"`
	Data []byte `json:"data,omitempty"`
	// Headers are additional e-mail headers, such as List-Unsubscribe.
	Headers map[string]string `json:"headers,omitempty"`
}

// ParamsFor returns the variables for a provider, in its order.
func (c *Content) ParamsFor(provider string) []Param {
	if p, ok := c.ProviderParams[provider]; ok {
		return p
	}
	return c.Params
}

// Param is a variable of a provider's template.
type Param struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Attachment is a file attached to an e-mail.
type Attachment struct {
	Name string `json:"name"`
	Type string `json:"type"` // such as application/pdf
	Data []byte `json:"data"`
	// Inline is the Content-ID by which the HTML refers to the file. Empty: an ordinary attachment.
	Inline string `json:"inline,omitempty"`
}

// Receipt is a provider's acceptance of a message.
type Receipt struct {
	ProviderMessageID string // at most 256 bytes; may be empty
	// Provider is the name of the provider in the configuration. A Sender that chooses among providers sets it, as in
	// Failure; a Sender for one provider leaves it empty.
	Provider string
}

// Outcome classifies a failed attempt.
type Outcome int

// Outcomes. Anything ambiguous is Unknown.
const (
	// Unknown: the message may have been sent: the request went out, and no clear answer came.
	Unknown Outcome = iota
	// Temporary: the message was not sent. Retry with this or another provider.
	Temporary
	// Refused: this provider never accepts the message, for example because of a wrong password or an unapproved
	// template. Another provider may.
	Refused
	// Permanent: no provider can deliver it, for example because the recipient does not exist or has unsubscribed.
	Permanent
)

func (o Outcome) String() string {
	return [...]string{"unknown", "temporary", "refused", "permanent"}[o]
}

// Failure is the error of a message that was not sent, or may not have been.
type Failure struct {
	Outcome Outcome
	// Code groups failures, such as smtp_451, twilio_21211 or timeout: 1 to 64 bytes.
	Code string
	// Text explains the failure to operators. It contains no recipient, content or secret.
	Text string
	// RetryAfter is the minimum wait that the provider requests. Zero: none.
	RetryAfter time.Duration
	// Disable means that the recipient wants no further messages, as an endpoint that answers 410.
	Disable bool
	// Down means that the provider accepts no messages at all, because of a wrong password or a lost connection. It
	// opens the circuit breaker.
	Down bool
	// Provider is the provider that failed, the last one of several. Empty: none was asked.
	Provider string
}

func (f *Failure) Error() string { return fmt.Sprintf("%s (%s): %s", f.Code, f.Outcome, f.Text) }

// Failed returns the *Failure of an error. Any other error is Unknown.
func Failed(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Failure{Outcome: Unknown, Code: "timeout", Text: "no answer in time"}
	}
	return &Failure{Outcome: Unknown, Code: "unexpected", Text: err.Error()}
}
