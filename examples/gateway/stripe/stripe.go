// Package stripe simulates the part of Stripe's API that payments need: payment intents, refunds, and signed events.
//
// Amounts are Stripe's minor units: currencies without decimals are whole, ISK and UGX have two decimals although ISO
// has none, and of three decimals the last must be 0.
package stripe

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/examples/gateway/book"
)

const (
	name       = "stripe"
	apiVersion = "2025-09-30.clover"
	// numberAt is the metadata key of the merchant's number.
	numberAt = "out_trade_no"
	// otherAccount is the account in events of another merchant.
	otherAccount = "acct_1OtherOtherOther"
)

// Keys of the account.
type Keys struct {
	Secret  string   `json:"secret_key"`     // of the API
	Signing []string `json:"signing_secret"` // secrets of events; all of them sign, as during a rotation
}

// NewKeys generates keys of the test mode.
func NewKeys() Keys {
	return Keys{Secret: "sk_test_" + book.Alnum(48), Signing: []string{"whsec_" + book.Alnum(32)}}
}

// Gateway is the simulated vendor.
type Gateway struct {
	Keys Keys
	Book *book.Book

	mu      sync.Mutex
	answers map[string]recorded // by Idempotency-Key
}

type recorded struct {
	request string
	answer  book.Answer // Status 0: the first request is still running
}

var _ book.Dialect = (*Gateway)(nil)

func (*Gateway) Name() string { return name }

// TransactionID returns the id of a payment intent: the payment's own, or a new one for a second transaction.
func (*Gateway) TransactionID(p *book.Payment) string {
	if p.First() == nil {
		return p.Key
	}
	return "pi_" + book.Alnum(24)
}

// scale returns the number of decimals of amounts in a currency.
func scale(currency string) int {
	switch strings.ToUpper(currency) {
	case "ISK", "UGX":
		return 2
	case "MGA":
		return 0
	}
	return min(book.Decimals(strings.ToUpper(currency)), 3)
}

type object map[string]any

// stored is the content of a notice.
type stored struct {
	Type     string `json:"type"`
	Created  int64  `json:"created"`
	Live     bool   `json:"live"`
	Account  string `json:"account,omitempty"`
	Object   object `json:"object"`
	Previous object `json:"previous,omitempty"`
}

// Compose writes events. As at Stripe, a refund causes several: two if it succeeds at once, three if it was pending.
func (g *Gateway) Compose(e *book.Event) []book.Content {
	var all []book.Content
	add := func(kind string, o, previous object) {
		s := stored{Type: kind, Created: e.At.Unix(), Object: o, Previous: previous}
		if e.Transaction != nil {
			s.Live = e.Transaction.OtherMode
			if e.Transaction.Seller != "" || e.Transaction.App != "" {
				s.Account = otherAccount
			}
		}
		all = append(all, book.Content{ID: "evt_" + book.Alnum(24), Type: kind, Body: s})
	}
	switch e.Kind {
	case book.EventPaid:
		add("payment_intent.succeeded", g.intent(e.Payment, e.Transaction, false), nil)
		add("charge.succeeded", g.charge(e), nil)
	case book.EventProcessing:
		add("payment_intent.processing", g.intent(e.Payment, nil, false), nil)
	case book.EventDeclined:
		add("payment_intent.payment_failed", g.intent(e.Payment, nil, false), nil)
	case book.EventClosed:
		add("payment_intent.canceled", g.intent(e.Payment, nil, false), nil)
	case book.EventRefund:
		r := refund(e.Refund)
		switch e.Refund.Status {
		case book.RefundProcessing:
			add("refund.created", r, nil)
		case book.RefundSucceeded:
			if e.Refund.CreatedAt.Equal(e.At) {
				add("refund.created", r, nil)
			} else {
				add("refund.updated", r, object{"status": "pending"})
			}
			add("charge.refunded", g.charge(e), nil)
		case book.RefundFailed:
			add("refund.failed", r, nil)
			add("refund.updated", r, object{"status": "pending"})
		case book.RefundAbnormal: // Stripe has no such status: the refund waits for the payer
			add("refund.updated", r, object{"status": "pending"})
		}
	case book.EventFinished:
	}
	return all
}

// intent returns a payment intent; t is the transaction in it, nil: the first one.
func (g *Gateway) intent(p *book.Payment, t *book.Transaction, secret bool) object {
	if t == nil {
		t = p.First()
	}
	o := object{"id": p.Key, "object": "payment_intent", "amount": p.Amount,
		"amount_capturable": 0, "amount_received": 0,
		"automatic_payment_methods": object{"allow_redirects": "always", "enabled": true}, "canceled_at": nil,
		"cancellation_reason": nil, "capture_method": "automatic_async", "confirmation_method": "automatic",
		"created": p.CreatedAt.Unix(), "currency": strings.ToLower(p.Currency), "description": orNull(p.Description),
		"last_payment_error": nil, "latest_charge": nil, "livemode": false, "metadata": metadata(p.Details),
		"next_action": nil, "payment_method": nil, "payment_method_types": []string{"card"}, "receipt_email": nil}
	if secret {
		o["client_secret"] = p.Secret
	}
	switch p.Status {
	case book.Unopened, book.Payable:
		o["status"] = "requires_payment_method"
	case book.Processing:
		o["status"] = "processing"
	case book.Declined:
		o["status"] = "requires_payment_method"
		o["last_payment_error"] = object{"type": "card_error", "code": p.Failure, "decline_code": "generic_decline",
			"message": "Your card was declined."}
	case book.Closed:
		o["status"], o["canceled_at"] = "canceled", p.ClosedAt.Unix()
	case book.Paid:
		o["status"], o["id"], o["currency"] = "succeeded", t.ID, strings.ToLower(t.Currency)
		o["amount_received"], o["latest_charge"], o["payment_method"] = t.Amount, chargeID(t.ID), "pm_card_visa"
		o["livemode"] = t.OtherMode
	}
	return o
}

func (g *Gateway) charge(e *book.Event) object {
	t := e.Transaction
	return object{"id": chargeID(t.ID), "object": "charge", "amount": t.Amount, "amount_captured": t.Amount,
		"amount_refunded": e.GivenBack, "captured": true, "created": t.At.Unix(),
		"currency": strings.ToLower(t.Currency), "livemode": t.OtherMode, "metadata": metadata(e.Payment.Details),
		"paid": true, "payment_intent": t.ID, "refunded": e.GivenBack >= t.Amount, "status": "succeeded"}
}

func chargeID(intent string) string { return "ch_" + strings.TrimPrefix(intent, "pi_") }

func refund(r *book.Refund) object {
	o := object{"id": r.Key, "object": "refund", "amount": r.Amount, "charge": chargeID(r.Transaction),
		"created": r.CreatedAt.Unix(), "currency": strings.ToLower(r.Currency), "metadata": metadata(r.Details),
		"payment_intent": r.Transaction, "reason": orNull(r.Reason), "status": "pending"}
	switch r.Status {
	case book.RefundSucceeded:
		o["status"] = "succeeded"
	case book.RefundFailed:
		o["status"], o["failure_reason"] = "failed", r.Code
	case book.RefundAbnormal:
		o["status"] = "requires_action"
	case book.RefundProcessing:
	}
	return o
}

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}

func metadata(details map[string]string) object {
	m := object{}
	for k, v := range details {
		if key, ok := strings.CutPrefix(k, "metadata."); ok {
			m[key] = v
		}
	}
	return m
}

// Request signs an event with the present time, by each secret.
func (g *Gateway) Request(n *book.Notice, url string, now time.Time, f book.Forgery) *http.Request {
	var s stored
	if json.Unmarshal(n.Content, &s) != nil {
		return nil
	}
	data := object{"object": s.Object}
	if s.Previous != nil {
		data["previous_attributes"] = s.Previous
	}
	event := object{"id": n.ID, "object": "event", "api_version": apiVersion, "created": s.Created, "data": data,
		"livemode": s.Live, "pending_webhooks": 1, "request": object{"id": nil, "idempotency_key": nil}, "type": s.Type}
	if s.Account != "" {
		event["account"] = s.Account
	}
	body, err := json.MarshalIndent(event, "", "  ")
	if err != nil {
		return nil
	}
	secrets := g.Keys.Signing
	switch f {
	case book.Old:
		now = now.Add(-10 * time.Minute)
	case book.Future:
		now = now.Add(10 * time.Minute)
	case book.Key, book.Probe, book.Serial:
		secrets = []string{"whsec_" + book.Alnum(32)}
	}
	signature := Signature(body, now, secrets)
	if f == book.Tampered {
		body = []byte(strings.Replace(string(body), `"amount": `, `"amount": 1`, 1))
	}
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(string(body)))
	if err != nil {
		return nil
	}
	r.Header.Set("Content-Type", "application/json; charset=utf-8")
	r.Header.Set("User-Agent", "Stripe/1.0 (+https://stripe.com/docs/webhooks)")
	if f != book.None {
		r.Header.Set("Stripe-Signature", signature)
	}
	return r
}

// Signature returns the header Stripe-Signature. It includes a v0 signature, which proves nothing, as in test events.
func Signature(body []byte, at time.Time, secrets []string) string {
	stamp := strconv.FormatInt(at.Unix(), 10)
	parts := []string{"t=" + stamp}
	for _, secret := range secrets {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(stamp + "."))
		mac.Write(body)
		parts = append(parts, "v1="+hex.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(slices.Concat(parts, []string{"v0=" + strings.Repeat("0", 64)}), ",")
}

// Acknowledged reports whether the status is 2xx.
func (*Gateway) Acknowledged(status int, _ []byte) bool { return status >= 200 && status < 300 }

// Schedule has growing waits over three days; Stripe does not document its own.
func (*Gateway) Schedule() []time.Duration {
	waits := []time.Duration{5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour, 10 * time.Hour}
	return append(waits, slices.Repeat([]time.Duration{12 * time.Hour}, 4)...)
}

func (*Gateway) Patience() time.Duration { return 10 * time.Second }
