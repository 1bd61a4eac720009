package order

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// MaxLife is the longest time to pay of an order that reserves or holds.
const MaxLife = 400 * 24 * time.Hour

// Key identifies an order.
type Key struct {
	Tenant  int32
	OrderNo string
}

// Facts is the order as requested. It never changes.
type Facts struct {
	Machine   string
	Subject   string
	Asset     string
	Amount    amount.Decimal
	Lines     []Line
	Payee     string        // empty: none
	PayWithin time.Duration // 0: as the machine says
	Reserve   bool
	Balance   *Balance
	Purchase  *Purchase
	Coupon    string // code; empty: none
	Sale      *Sale
	Metadata  map[string]string
}

// Sale is where an order was won.
type Sale struct {
	Sale string
	Unit int32 // of the buyer, from 1
	Once bool  // the buyer cannot win this unit again
}

// Line is one line of an order.
type Line struct {
	Item        string `json:"item"`
	Quantity    int64  `json:"quantity"`
	Amount      string `json:"amount,omitempty"` // canonical decimal; empty: none
	Description string `json:"description,omitempty"`
}

// Balance is the amount that an account of the ledger pays. It is never zero.
type Balance struct {
	Account string
	Amount  amount.Decimal
}

// Purchase identifies a purchase: within Life, an order with equal Parts is the same one.
type Purchase struct {
	Parts  []string
	Life   time.Duration
	Refuse bool // not recorded: it concerns one call only
}

// Order is a stored order.
type Order struct {
	Key
	ID int64 // that of its instance too
	Facts
	Scale uint8         // decimals of the asset
	Life  time.Duration // how long it may stay unpaid; 0: for ever
	// ExpiryMessages are the ids of the messages that are due at the end of the time to pay.
	ExpiryMessages []int64
	SubmitToken    []byte // SHA-256 of the submit token of the call; nil: none
	Principal      string
	RequestID      string
	CreatedAt      time.Time
}

// Numbers of the parts of an order. Those of two orders do not collide: each is the order_no plus a suffix, which
// begins with the last slash.

// LineNo is the number of the reservation of line n, from 0.
func (k Key) LineNo(n int) string { return k.OrderNo + "/" + strconv.Itoa(n+1) }

// HoldNo is the biz_no of the hold.
func (k Key) HoldNo() string { return k.OrderNo + "/hold" }

// PayNo is the biz_no of the transfer, or of the capture of the hold.
func (k Key) PayNo() string { return k.OrderNo + "/pay" }

// MessageNo is the biz_no of message n, from 0: those that are sent with the creation, then those of the expiry.
func (k Key) MessageNo(n int) string { return k.OrderNo + "/message/" + strconv.Itoa(n+1) }

// Holds reports whether the balance pays only a part of the amount, so that it is held.
func (f *Facts) Holds() bool { return f.Balance != nil && f.Balance.Amount != f.Amount }

// PaidAtOnce reports whether nothing remains to be paid.
func (f *Facts) PaidAtOnce() bool {
	return f.Amount.Coef.IsZero() || f.Balance != nil && f.Balance.Amount == f.Amount
}

// differences are the names of the fields in which a request differs from a stored order.
func (f *Facts) differences(o *Order) (fields []string) {
	differs := func(name string, differs bool) {
		if differs {
			fields = append(fields, name)
		}
	}
	differs("machine", f.Machine != o.Machine)
	differs("subject", f.Subject != o.Subject)
	differs("asset", f.Asset != o.Asset)
	differs("amount", f.Amount != o.Amount)
	differs("lines", !slices.Equal(f.Lines, o.Lines))
	differs("payee", f.Payee != o.Payee)
	differs("pay_within", f.PayWithin != o.PayWithin)
	differs("reserve", f.Reserve != o.Reserve)
	differs("balance", !same(f.Balance, o.Balance, func(a, b *Balance) bool { return *a == *b }))
	differs("purchase", !same(f.Purchase, o.Purchase, func(a, b *Purchase) bool {
		return a.Life == b.Life && slices.Equal(a.Parts, b.Parts)
	}))
	differs("coupon", f.Coupon != o.Coupon)
	differs("sale", !same(f.Sale, o.Sale, func(a, b *Sale) bool { return *a == *b }))
	differs("metadata", !maps.Equal(f.Metadata, o.Metadata))
	return fields
}

// same compares optional values.
func same[T any](a, b *T, equal func(a, b *T) bool) bool {
	return a == nil && b == nil || a != nil && b != nil && equal(a, b)
}
