// Package gateway has the interface between payments and payment providers: calls, callbacks, and the notices that both
// yield. It owns no tables and knows no domain. Each provider's dialect is a package below this one.
//
// Promises: a Notice is verified: signed by the provider, or an answer to our request over TLS. Requests carry our
// number, so that the provider deduplicates. A failed call says whether it certainly had no effect, was refused for
// good, or may have had an effect. Errors and notices contain no key, secret or payer.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// Kind classifies a notice.
type Kind string

const (
	Paid     Kind = "paid"
	Pending  Kind = "pending"  // created, waiting for the payer or the bank
	Declined Kind = "declined" // this attempt failed; a later one may succeed under the same number
	Closed   Kind = "closed"   // cannot be paid any more
	// Refund kinds are about one refund, not about the payment.
	Refunded       Kind = "refunded"
	RefundPending  Kind = "refund_pending"
	RefundFailed   Kind = "refund_failed"   // the money stays with the merchant
	RefundAbnormal Kind = "refund_abnormal" // the money may be with neither side: a person has to act at the provider
	// Other is verified, but about an object that ledgerd does not track.
	Other Kind = "other"
	// Unreadable is signed by the gateway, but not in its format. It is returned with ErrFormat, so that the callback
	// can be recorded.
	Unreadable Kind = "unreadable"
)

// CodeRefunded is the Code of a closed payment that was paid, and given back in full.
const CodeRefunded = "refunded"

// Refund reports whether the notice is about a refund.
func (k Kind) Refund() bool {
	switch k {
	case Refunded, RefundPending, RefundFailed, RefundAbnormal:
		return true
	}
	return false
}

// Notice is a verified statement of a gateway, in a callback or in the answer to a call.
type Notice struct {
	// ID is unique within the gateway, and the same in every repeat. In callbacks it is the gateway's own id; in
	// answers it is derived from call, state and number, so that polls with equal results are repeats. Up to 256 bytes.
	ID   string
	Kind Kind
	// OutTradeNo is our number of the payment. Refund notices of some gateways omit it: they have TransactionID.
	OutTradeNo    string
	TransactionID string // the gateway's number; empty: none yet
	// RefundNo is our number of the refund. Empty in a refund notice: the refund was made at the gateway, by hand.
	RefundNo        string
	GatewayRefundID string
	// Amount is in major units: of the payment, or of the refund. It is the total, including discounts that the
	// provider funds, not what the payer paid. Zero: not stated, as for payments that are not paid.
	Amount   amount.Decimal
	Currency string // ISO 4217, upper case; empty: not stated
	// Foreign is not empty if the notice names a merchant, seller, app or mode (live, test) that is not configured:
	// the field and its value, such as "seller_id 2088…". Such a notice must not move a payment.
	Foreign string
	At      time.Time // of the event, by the gateway's clock; zero: not stated
	// Code and Text are the reason of a decline or failure, without personal data: Code up to 64 bytes, Text up to 300.
	Code, Text string
}

// Errors of Gateway.Notice, and of calls about payments or refunds that the gateway does not have.
var (
	// ErrForged: the signature is missing, wrong, too old, or made with an unknown key.
	ErrForged = errors.New("gateway: not signed by the gateway")
	// ErrFormat: the signature is valid, and the content unreadable.
	ErrFormat = errors.New("gateway: not in the gateway's format")
	// ErrNoTrade: the gateway has no such payment or refund. This is only final if no Create or Refund is in flight.
	ErrNoTrade = errors.New("gateway: unknown to the gateway")
)

// Gateway is one account at a payment provider. Safe for concurrent use.
type Gateway interface {
	// Notice verifies and reads a callback. It returns ErrForged or ErrFormat, possibly wrapped. With an error, the
	// notice of a dialect is undefined; a configured gateway returns an Unreadable one with ErrFormat.
	Notice(header http.Header, body []byte, now time.Time) (Notice, error)
	// Acknowledge returns the response to a callback in the provider's form. ok: done; else the gateway redelivers it.
	Acknowledge(ok bool) Ack
	// Create starts a payment. The same number again returns the same payment. Credential is what the payer's client
	// needs. The notice is Pending, or says that the payment has ended already.
	Create(ctx context.Context, p *Payment) (Credential, Notice, error)
	// Query returns the state of a payment, or ErrNoTrade.
	Query(ctx context.Context, p *Payment) (Notice, error)
	// Close cancels a payment that has not been paid. The notice is Closed, or the state that prevents closing, such as
	// Paid. ErrNoTrade: there is nothing to close yet; a payer who has the credential may still pay at some gateways.
	Close(ctx context.Context, p *Payment) (Notice, error)
	// Refund requests a refund. The same number again returns the same refund.
	Refund(ctx context.Context, r *Refund) (Notice, error)
	// QueryRefund returns the state of a refund, or ErrNoTrade.
	QueryRefund(ctx context.Context, r *Refund) (Notice, error)
}

// Ack is the response to a callback.
type Ack struct {
	Status      int
	ContentType string // empty: no body
	Body        []byte
}

// Credential is what the payer's client needs to pay, by name, such as client_secret, code_url, form_url, or the
// parameters of an app. It is a secret of the payer: store it with care, and do not log it.
type Credential map[string]string

// Payment describes a payment. Equal numbers must come with equal descriptions: some gateways compare.
type Payment struct {
	OutTradeNo    string // our number; its form is checked by Dialect.Check
	TransactionID string // the gateway's number, as far as known
	PayType       string // one of the dialect's; empty: its first
	Amount        amount.Decimal
	Currency      string // ISO 4217, upper case
	Description   string // shown to the payer
	Payer         string // the payer's id at the gateway, such as an openid
	PayerIP       string // of the payer's device
	ReturnURL     string // where the payer goes after payment
	ExpiresAt     time.Time
}

// Refund describes a refund of a part of a payment, or all of it.
type Refund struct {
	RefundNo        string // our number
	GatewayRefundID string // as far as known
	OutTradeNo      string
	TransactionID   string         // as far as known
	Amount, Paid    amount.Decimal // Paid is the total of the payment
	Currency        string
	Reason          string // shown to the payer by some gateways
}

// Outcome classifies a failed call.
type Outcome int

const (
	// Unknown: the call may have had an effect. Ask with Query or QueryRefund, or repeat it with the same number.
	Unknown Outcome = iota
	// NotSent: the call certainly had no effect. Try again.
	NotSent
	// Refused: the gateway refuses for good, for example because of a bad parameter.
	Refused
)

func (o Outcome) String() string {
	return [...]string{"unknown", "not_sent", "refused"}[o]
}

// CallError is the error of a call, besides ErrNoTrade. Any other error counts as Unknown.
type CallError struct {
	Outcome    Outcome
	Code       string // such as timeout or alipay_ACQ.SYSTEM_ERROR: 1 to 64 bytes
	Text       string // for operators; contains no secret and no personal data
	RetryAfter time.Duration
}

func (e *CallError) Error() string { return fmt.Sprintf("%s (%s): %s", e.Code, e.Outcome, e.Text) }

// PayType is a way to pay at a gateway.
type PayType struct {
	Name string
	// Instant means that Create only signs, and makes no request.
	Instant bool
}

// Dialect is one kind of gateway, as settings name it. Its package exports it.
type Dialect struct {
	PayTypes []PayType // the first is the default
	// Check validates a payment before it is recorded: number, pay type, amount, currency, and the fields that the pay
	// type requires. Create checks again. Errors name the field in snake case, as in "out_trade_no: must be …".
	Check func(p *Payment) error
	// New builds a gateway without connecting to it.
	New func(a *Account) (Gateway, error)
	// Forged is the response to a callback that is not signed by the gateway; the zero Ack: 403.
	Forged Ack
}
