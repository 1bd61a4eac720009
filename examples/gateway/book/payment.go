package book

import (
	"slices"
	"time"
)

// Status of a payment.
type Status string

const (
	// Unopened: the gateway's API does not know the payment until the payer opens it.
	Unopened   Status = "unopened"
	Payable    Status = "payable"
	Processing Status = "processing"
	Declined   Status = "declined" // the payer may try again
	Paid       Status = "paid"
	Closed     Status = "closed"
)

// Payment is a payment at a gateway.
type Payment struct {
	Gateway string `json:"gateway"`
	Key     string `json:"key"`    // unique within the gateway: the merchant's number, or the gateway's own
	Number  string `json:"number"` // the merchant's number
	ID      string `json:"id"`     // the gateway's number
	PayType string `json:"pay_type,omitempty"`

	Amount   int64  `json:"amount"` // minor units
	Scale    int    `json:"scale"`  // decimals of Amount
	Currency string `json:"currency"`

	Status       Status        `json:"status"`
	Transactions []Transaction `json:"transactions,omitempty"`
	Failure      string        `json:"failure,omitempty"` // code of the last decline
	CreatedAt    time.Time     `json:"created_at"`
	ExpiresAt    time.Time     `json:"expires_at,omitzero"` // an unpaid payment is closed then
	ClosedAt     time.Time     `json:"closed_at,omitzero"`

	Description string            `json:"description,omitempty"`
	Payer       string            `json:"payer,omitempty"`
	Secret      string            `json:"secret,omitempty"` // part of the credential
	NotifyURL   string            `json:"notify_url,omitempty"`
	ReturnURL   string            `json:"return_url,omitempty"`
	Details     map[string]string `json:"details,omitempty"` // for the dialect alone

	Script []string  `json:"script,omitempty"` // next acts of the payer
	NextAt time.Time `json:"next_at,omitzero"` // time of the next act
}

// Transaction is money that was paid. Seller and App are empty, or belong to another merchant.
type Transaction struct {
	ID         string    `json:"id"`
	Amount     int64     `json:"amount"`
	Scale      int       `json:"scale"`
	Currency   string    `json:"currency"`
	Seller     string    `json:"seller,omitempty"`
	App        string    `json:"app,omitempty"`
	OtherMode  bool      `json:"other_mode,omitempty"` // live instead of test
	At         time.Time `json:"at"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
}

// Foreign reports whether the money belongs to another merchant, application or mode.
func (t *Transaction) Foreign() bool { return t.Seller != "" || t.App != "" || t.OtherMode }

// First returns the transaction that the gateway shows for the payment's number, or nil.
func (p *Payment) First() *Transaction {
	if len(p.Transactions) == 0 {
		return nil
	}
	return &p.Transactions[0]
}

// Transaction returns a transaction by its id, or nil.
func (p *Payment) Transaction(id string) *Transaction {
	for i := range p.Transactions {
		if p.Transactions[i].ID == id {
			return &p.Transactions[i]
		}
	}
	return nil
}

func (p *Payment) clone() *Payment {
	c := *p
	c.Transactions = slices.Clone(p.Transactions)
	c.Script = slices.Clone(p.Script)
	return &c
}

// expire closes an expired payment, and reports whether it did.
func (p *Payment) expire(now time.Time) bool {
	switch p.Status {
	case Unopened, Payable, Declined:
		if !p.ExpiresAt.IsZero() && !now.Before(p.ExpiresAt) {
			p.Status, p.ClosedAt, p.Script = Closed, p.ExpiresAt, nil
			return true
		}
	case Processing, Paid, Closed:
	}
	return false
}

// RefundStatus is the status of a refund.
type RefundStatus string

const (
	RefundProcessing RefundStatus = "processing"
	RefundSucceeded  RefundStatus = "succeeded"
	RefundFailed     RefundStatus = "failed"
	RefundAbnormal   RefundStatus = "abnormal" // the payer's account cannot take the money: a person decides
)

// Refund is a refund of a transaction.
type Refund struct {
	Gateway     string `json:"gateway"`
	Key         string `json:"key"`    // unique within the gateway
	Number      string `json:"number"` // the merchant's number
	ID          string `json:"id"`
	Payment     string `json:"payment"` // its key
	Transaction string `json:"transaction"`

	Amount   int64        `json:"amount"`
	Scale    int          `json:"scale"`
	Currency string       `json:"currency"`
	Status   RefundStatus `json:"status"`
	Code     string       `json:"code,omitempty"`
	Reason   string       `json:"reason,omitempty"`

	NotifyURL string            `json:"notify_url,omitempty"`
	CreatedAt time.Time         `json:"created_at"`
	EndedAt   time.Time         `json:"ended_at,omitzero"`
	Details   map[string]string `json:"details,omitempty"`

	Script []RefundStatus `json:"script,omitempty"`
	NextAt time.Time      `json:"next_at,omitzero"`
}

func (r *Refund) clone() *Refund {
	c := *r
	c.Script = slices.Clone(r.Script)
	return &c
}

// holds reports whether the amount is pending or given back, so that it cannot be refunded again.
func (r *Refund) holds() bool { return r.Status != RefundFailed }
