package payment

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
)

// Key identifies a payment.
type Key struct {
	Tenant     int32
	OutTradeNo string
}

// Payment is a stored payment.
type Payment struct {
	Key
	ID      int64 // also the id of its instance
	OrderNo string
	Gateway string
	PayType string // empty: the gateway's default
	Attempt int16  // from 1, per order, gateway and pay type
	Asset   string
	Scale   uint8 // decimals of the asset
	Amount  amount.Int
	Payee   string
	Details
	ExpiresAt time.Time // zero: the order does not expire
	TokenHash []byte    // of the submit token that the call spent; nil: none
	Early     bool      // a notice came before the payment was created
	Messages  []byte    // to send in the commit that pays the order; not read back. Nil: none
	Principal string
	RequestID string
	CreatedAt time.Time
	Progress
}

// Details describe a payment to its gateway.
type Details struct{ Description, Payer, PayerIP, ReturnURL string }

// IsNew reports whether the gateway has not answered yet about a payment in a state of the shipped machine.
func IsNew(state string) bool { return state == "created" }

// IsOpen reports whether a payment in a state of the shipped machine is not decided.
func IsOpen(state string) bool { return IsNew(state) || state == "submitted" || state == "declined" }

// Progress has the fields of a payment that change, besides its state.
type Progress struct {
	TransactionID            string // empty: not known
	PaidAt                   time.Time
	Credential               gateway.Credential // nil: the gateway does not know the payment yet
	FailureCode, FailureText string             // of the last decline or refusal
	Decided                  bool               // by a command of the batch: deletes its messages
}

// GatewayKey identifies a gateway of a tenant.
type GatewayKey struct {
	Tenant  int32
	Gateway string
}

// Gateway has the accounts of a gateway. It is encoded in the audit log.
type Gateway struct {
	Clearing string `json:"clearing"`
	Suspense string `json:"suspense,omitempty"` // empty: money that fits no order is flagged only
	Payee    string `json:"payee,omitempty"`    // of orders without one; empty: none
}

// TransactionKey identifies a transaction.
type TransactionKey struct {
	Tenant  int32
	Gateway string
	ID      string
}

// BizNo is the number of the transfer that posts the transaction.
func (k TransactionKey) BizNo() string { return "pay/" + k.Gateway + "/" + k.ID }

// Transaction is money that came through a gateway.
type Transaction struct {
	OutTradeNo string
	NoticeID   int64
	Currency   string
	Asset      string // empty: none for the currency
	Scale      uint8  // decimals of the amounts
	Amount     amount.Int
	Account    string // to which it was posted; empty: not posted
	Refunding  amount.Int
	Refunded   amount.Int // by refunds that have succeeded
	// ExtraRefunded is the amount given back beyond Refunded, by refunds and console refunds. Nothing limits
	// it. It is not stored: see the view payment_money.
	ExtraRefunded amount.Int
}

// Remaining is the amount that can still be refunded: not negative.
func (t *Transaction) Remaining() amount.Int {
	gone, ok := amount.Sum(t.Refunding, t.Refunded, t.ExtraRefunded)
	n, _ := t.Amount.Sub(gone)
	if !ok || n.Sign() < 0 {
		return amount.Int{}
	}
	return n
}

// GivenBack is the total amount given back: Refunded and ExtraRefunded.
func (t *Transaction) GivenBack() amount.Int {
	n, ok := t.Refunded.Add(t.ExtraRefunded)
	if !ok {
		return t.ExtraRefunded
	}
	return n
}

// AddExtra adds to the amount given back beyond refunds.
func (t *Transaction) AddExtra(n amount.Int) {
	sum, ok := t.ExtraRefunded.Add(n)
	if !ok {
		sum = amount.Max
	}
	t.ExtraRefunded = sum
}

// RefundKey identifies a refund.
type RefundKey struct {
	Tenant   int32
	RefundNo string
}

// HoldNo is the biz_no of the hold on the money until the gateway has decided.
func (k RefundKey) HoldNo() string { return "refund/" + k.RefundNo }

// PayNo is the biz_no of the transfer that gives the money back.
func (k RefundKey) PayNo() string { return "refund/" + k.RefundNo + "/paid" }

// Refund is a stored refund of a transaction.
type Refund struct {
	RefundKey
	ID              int64 // also the id of its instance
	OutTradeNo      string
	Gateway         string
	TransactionID   string
	Currency        string
	Asset           string // empty: none for the currency
	Scale           uint8
	Amount          amount.Int
	Account         string // on which the money is held; empty: it was not posted
	MovesOrder      bool   // the refund has moved the order to refunding
	FlagID          int64  // flag whose money it gives back; 0: none
	Reason          string
	Principal       string
	RequestID       string
	CreatedAt       time.Time
	GatewayRefundID string
	FailureCode     string
	FailureText     string
	GivenBack       amount.Int // amount that the gateway gave back, by its last notice; 0: none, or not decided
	Booked          amount.Int // part of GivenBack that is posted; 0: none, or its hold could not be captured
	NoticedAt       time.Time  // time of the last notice of the outcome, by the gateway's clock; zero: not stated
	OutcomeFlagID   int64      // last flag about a difference between GivenBack and the state; 0: none
	Reflagged       bool       // a command of the batch has raised that flag
}

// Transaction is the key of the refunded transaction.
func (r *Refund) Transaction() TransactionKey {
	return TransactionKey{r.Tenant, r.Gateway, r.TransactionID}
}

// FlagKind is the reason of a flag.
type FlagKind string

// Kinds of flags.
const (
	UnknownNumber     FlagKind = "unknown_number"
	WrongAmount       FlagKind = "wrong_amount"
	WrongAsset        FlagKind = "wrong_asset"
	WrongMerchant     FlagKind = "wrong_merchant"
	Late              FlagKind = "late"
	SecondTransaction FlagKind = "second_transaction"
	OrderRefused      FlagKind = "order_refused"
	UnknownRefund     FlagKind = "unknown_refund"
	RefundReturned    FlagKind = "refund_returned"
)

// OfRefund reports whether flags of the kind are about refunds, not about whole transactions.
func (k FlagKind) OfRefund() bool { return k == UnknownRefund || k == RefundReturned }

// Resolution is the way in which a flag was resolved.
type Resolution string

// Resolutions.
const (
	Accept   Resolution = "accept"
	GiveBack Resolution = "refund"
	WriteOff Resolution = "write_off"
	// Withdrawn: a later notice contradicts the flag, so that nothing is left to decide. Callers cannot choose it.
	Withdrawn Resolution = "withdrawn"
)

// FlagKey identifies a flag.
type FlagKey struct {
	Tenant int32
	ID     int64
}

// Flag is flagged money.
type Flag struct {
	Kind          FlagKind
	Detail        string
	Gateway       string
	TransactionID string
	OutTradeNo    string
	OrderNo       string // empty: unknown
	Currency      string
	Asset         string // empty: none for the currency
	Scale         uint8
	Amount        amount.Int
	Account       string // to which the money was posted; empty: not posted
	AboutRefund   string // refund whose GivenBack differs from its state; empty: none
	AboutConsole  int64  // console refund; 0: none
	RequestID     string
	CreatedAt     time.Time
	Resolved
}

// TooMuch is the surplus given back, for a flag about a refund; negative: a shortfall.
func (f *Flag) TooMuch() amount.Int {
	if f.Kind == RefundReturned {
		return f.Amount.Neg()
	}
	return f.Amount
}

// Resolved is how a flag ended. Its zero value is that of an open flag.
type Resolved struct {
	Resolution Resolution
	Target     string // account to which it was written off
	RefundNo   string
	Note       string
	Principal  string
	RequestID  string
	At         time.Time
}

// Effect is the effect of a notice.
type Effect string

// Effects.
const (
	EffectApplied   Effect = "applied" // it took effect
	EffectKnown     Effect = "known"   // it changed nothing
	EffectFlagged   Effect = "flagged"
	EffectUnmatched Effect = "unmatched" // its payment does not exist yet
)

// MaxUnknown limits the notices that are read together of those that came before their payment.
const MaxUnknown = 20

// NoticeKey identifies a notice by the gateway's own id.
type NoticeKey struct {
	Tenant  int32
	Gateway string
	ID      string
}

// RefundName is an additional name of notices about a refund: name is the gateway's refund id or another alias.
func RefundName(k GatewayKey, name string) NoticeKey {
	return NoticeKey{Tenant: k.Tenant, Gateway: k.Gateway, ID: httpsend.Cut("unknown_refund/"+name, gateway.MaxID)}
}

// Received is a notice with its origin.
type Received struct {
	gateway.Notice
	Asset    string // of the currency, by the settings; empty: none
	Callback bool   // false: an answer to a call
	Header   map[string]string
	Body     []byte
}

// Report is what a notice reports. A gateway that uses an id twice, for two reports, has sent two notices.
type Report struct {
	Kind                      gateway.Kind
	OutTradeNo, TransactionID string
	Amount                    string // decimal; empty: none
	Currency                  string
}

// Report returns what the notice reports.
func (r *Received) Report() Report {
	return Report{r.Kind, r.OutTradeNo, r.TransactionID, r.amountText(), r.Currency}
}

func (r *Received) amountText() string {
	if r.Amount == (amount.Decimal{}) {
		return ""
	}
	return r.Amount.String()
}

// Recorded is a notice in the database.
type Recorded struct {
	ID       int64
	Effect   Effect
	Report   Report
	received *Received // of a notice that the batch records; nil: recorded before
	detail   string
	request  string
}

// CallKind is a kind of call at a gateway.
type CallKind string

// Calls.
const (
	Submit CallKind = "submit"
	Query  CallKind = "query"
	Close  CallKind = "close"
	// FlagUnknown is no call at the gateway: the scheduler flags the money of a payment that was not created in time.
	FlagUnknown CallKind = "flag"
)

// Subject is the kind of object that a call is about.
type Subject string

// Subjects of calls.
const (
	OfPayment Subject = "payment"
	OfRefund  Subject = "refund"
)

// Due is the amount of a payment in major units.
func (p *Payment) Due() amount.Decimal { return amount.NewDecimal(p.Amount, p.Scale) }

// Given is the amount of a refund in major units.
func (r *Refund) Given() amount.Decimal { return amount.NewDecimal(r.Amount, r.Scale) }
