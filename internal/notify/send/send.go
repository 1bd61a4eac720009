// Package send is the seam between the outbox and those who really send: what a Sender is asked, and how it
// tells what became of it. It knows neither the database nor any provider.
package send

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sender hands messages of one channel to one provider. Many goroutines call it at once.
type Sender interface {
	// Send hands over one message, and returns when the provider has taken it or not, or when ctx ends. An
	// error that is no *Failure counts as Unknown: it may have been sent.
	Send(ctx context.Context, m *Message) (Receipt, error)
}

// Channel is a way to reach somebody.
type Channel string

// The channels.
const (
	SMS     Channel = "sms"
	Email   Channel = "email"
	Push    Channel = "push"
	Webhook Channel = "webhook"
)

// Message is what is to be sent, all of it rendered.
type Message struct {
	Tenant int32
	ID     int64
	// Key is the same in every attempt and tells the provider, if it honours keys, that it is the same
	// message: 1 to 64 letters, digits, - and _.
	Key     string
	Channel Channel
	Attempt int // from 1
	// Recipient is a number in E.164, an address, a device token, or the id of an endpoint.
	Recipient string
	Content   Content
	// Park: it may not be sent again once the end of an attempt is unknown. It is so in every attempt.
	Park bool
	// LastProvider is who failed last: the next one in the order is asked. Empty: there was no attempt.
	LastProvider string
	// Unsure: LastProvider may have sent it, or if that is empty the first in the order. So only that one is asked
	// again, who may know the key. It never happens to one with Park.
	Unsure bool
	// Turn writes down that another provider than the first in the order is about to be asked, before it is: should
	// this process end in the middle, the next one asks that provider again and no other. On an error it may not be
	// asked. Nil: nobody wants to know.
	Turn func(ctx context.Context, provider string) error
}

// Content is what a message says. A channel uses the fields that it has a use for. It is kept as JSON.
type Content struct {
	Subject     string       `json:"subject,omitempty"`
	Text        string       `json:"text,omitempty"`
	HTML        string       `json:"html,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
	// Template and Params are for providers that keep templates of their own, as SMS in China demands:
	// the provider's template by provider's name, and its variables in their order.
	Template map[string]string `json:"template,omitempty"`
	Params   []Param           `json:"params,omitempty"`
	// ProviderParams are the variables of those providers that take others, or in another order.
	ProviderParams map[string][]Param `json:"provider_params,omitempty"`
	// Type and Data are a webhook's event and its body, or a push message's data, as JSON.
	Type string `json:"type,omitempty"`
	Data []byte `json:"data,omitempty"`
	// Headers are further header fields of an e-mail, such as List-Unsubscribe.
	Headers map[string]string `json:"headers,omitempty"`
}

// ParamsFor are the variables of a provider's template, in the provider's order.
func (c *Content) ParamsFor(provider string) []Param {
	if p, ok := c.ProviderParams[provider]; ok {
		return p
	}
	return c.Params
}

// Param is a variable of a template at the provider's.
type Param struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Attachment is a file of an e-mail.
type Attachment struct {
	Name string `json:"name"`
	Type string `json:"type"` // such as application/pdf
	Data []byte `json:"data"`
	// Inline is the Content-ID by which the HTML shows it; empty: a file to be saved.
	Inline string `json:"inline,omitempty"`
}

// Receipt is what the provider said when it took a message.
type Receipt struct {
	ProviderMessageID string // at most 256 bytes; may be empty
	// Provider is who took it, as named in the configuration. Whoever chooses among providers fills it in, as in
	// Failure; those who talk to one leave it empty.
	Provider string
}

// Outcome is how an attempt ended that did not end well.
type Outcome int

// Outcomes. What is not surely one of the others is Unknown.
const (
	// Unknown: nobody knows whether it was sent: bytes went out, and no clear answer came back.
	Unknown Outcome = iota
	// Temporary: it was surely not sent, and may be tried again, with this provider or another.
	Temporary
	// Refused: this provider will never send it: a wrong password, a template not approved. Another may.
	Refused
	// Permanent: nobody will: the recipient does not exist, or does not want it.
	Permanent
)

func (o Outcome) String() string {
	return [...]string{"unknown", "temporary", "refused", "permanent"}[o]
}

// Failure is how a Sender tells that a message was not taken, or may not have been.
type Failure struct {
	Outcome Outcome
	// Code is a word for grouping, such as smtp_451, twilio_21211, timeout: 1 to 64 bytes.
	Code string
	// Text is for people. It names no recipient, no content and no secret.
	Text string
	// RetryAfter is the least wait that the provider asked for; zero: none.
	RetryAfter time.Duration
	// Disable: the recipient wants nothing any more, such as an endpoint that answered 410.
	Disable bool
	// Down: it is not about this message, the provider takes none at present: a wrong password, no connection. Others
	// need not find that out by themselves.
	Down bool
	// Provider is who failed, the last one where there were several. Empty: none was asked.
	Provider string
}

func (f *Failure) Error() string { return fmt.Sprintf("%s (%s): %s", f.Code, f.Outcome, f.Text) }

// Failed is what err says of the attempt: what it is not clear about is Unknown.
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
