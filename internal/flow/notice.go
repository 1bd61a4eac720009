package flow

import (
	"context"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// ApplyNotice applies a notice of a gateway, whether it came in a callback, or in the answer to a query or another
// call. Its answer is a NoticeResult. Notices and transactions are stored under ids of the gateway, and refunds under
// their numbers, so repeats, and notices that arrive several ways at the same time, take effect once. A gateway that
// PutGateway has not created yet has no accounts: its money is flagged only.
type ApplyNotice struct {
	commit.Caller
	NoticeParams

	byKind Command     // that applies notices of this kind; nil before the first Need
	paid   *paidNotice // byKind, if it is one
}

// NoticeParams are a notice, and what earlier submissions of it found.
type NoticeParams struct {
	Gateway string
	payment.Received
	Credential gateway.Credential // of the answer to a submission
	// Refused is the fault with which an earlier submission could not pay the order: the money goes to suspense.
	Refused *fault.Fault
	// Unposted: the suspense account cannot take the money either, so it is flagged only.
	Unposted bool
}

// NoticeResult is the effect of a notice.
type NoticeResult struct {
	// Done: the gateway need not send the notice again.
	Done    bool
	Effect  payment.Effect
	Existed bool // the notice was recorded before
	// NeedsQuery: the gateway has to be queried. The notice is about a console refund, or about one that has ended, and
	// does not say how it ended.
	NeedsQuery bool
	// Submitted is the payment, if the notice is the answer to its submission; else nil.
	Submitted *payment.View
}

// Need names the rows that notices of this kind need.
func (c *ApplyNotice) Need(tx *Tx) {
	if c.byKind == nil {
		n := notice{Caller: c.Caller, NoticeParams: c.NoticeParams}
		switch {
		case c.Kind == gateway.Paid:
			c.paid = &paidNotice{notice: n}
			c.byKind = c.paid
		case c.Kind.Refund():
			c.byKind = &refundNotice{notice: n}
		default:
			c.byKind = &progressNotice{notice: n}
		}
	}
	c.byKind.Need(tx)
}

// Apply applies the notice. Returns faults of the order and the ledger, for which CommitNotice runs the command again
// with Refused, and then with Unposted.
func (c *ApplyNotice) Apply(tx *Tx) (any, error) {
	if c.paid != nil && c.paid.reusesID() {
		return nil, commit.ErrMoreRows
	}
	return c.byKind.Apply(tx)
}

// noticeRows is the approximate number of rows that a notice writes: itself, the payment, two instances with their
// history, the transfer, and a line of the order.
const noticeRows = 12

// CommitNotice applies a notice of a gateway, and commits its effect. If the order or the ledger refuses the money, the
// money goes to suspense; if the suspense account refuses it too, it is flagged only. So no verified notice is lost.
// Each try is a submission of its own: a refusal must not rest on an attempt that was rolled back.
func CommitNotice(ctx context.Context, e *Engine, k payment.GatewayKey, n payment.Received, cred gateway.Credential,
	requestID string) (NoticeResult, error) {
	caller := gatewayCaller(k, requestID)
	params := NoticeParams{Gateway: k.Gateway, Received: storable(n), Credential: cred}
	for {
		out, err := e.Do(ctx, Submission{Tenant: k.Tenant, RequestID: requestID, Rows: noticeRows,
			Bytes: 2048 + len(n.Body), Command: &ApplyNotice{Caller: caller, NoticeParams: params}})
		if err == nil {
			return out.Answer.(NoticeResult), nil
		}
		f := fault.Of(err)
		switch {
		case f == nil, f.Reason.Class == fault.System, f.Reason.Class == fault.Conflict,
			n.Kind != gateway.Paid && n.Kind != gateway.Refunded:
			return NoticeResult{}, err
		case params.Refused == nil:
			params.Refused = f
		case !params.Unposted:
			params.Unposted = true
		default:
			return NoticeResult{}, err
		}
	}
}

// gatewayCaller is the caller of commands that a gateway causes.
func gatewayCaller(k payment.GatewayKey, requestID string) commit.Caller {
	return commit.Caller{Tenant: k.Tenant, Principal: "gateway:" + k.Gateway, RequestID: requestID}
}

// storable returns the notice without its time if that time is outside the range of a Timestamp.
func storable(n payment.Received) payment.Received {
	if y := n.At.UTC().Year(); y < 1 || y > 9999 {
		n.At = time.Time{}
	}
	return n
}

// notice is the common part of the commands that apply notices, by kind.
type notice struct {
	commit.Caller
	NoticeParams
	consequences
	recorded *payment.NoticeRow // this notice, if it came before
	payment  *payment.Row
	creation machine.CreateCommand // of the instance of an unexpected payment
	order    *order.Row            // nil: not found yet
	accounts gatewayAccounts
}

// need names the rows that all kinds need. The order is found by the number of the payment, before rows are locked.
// Then found, if not nil, names the rows that the order needs.
func (c *notice) need(tx *Tx, found func(o *order.Order)) {
	g, payments := payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway}, tx.Payments()
	c.recorded = payments.Notices.Want(payment.NoticeKey{Tenant: g.Tenant, Gateway: g.Gateway, ID: c.Received.ID})
	c.payment = payments.Want(payment.Key{Tenant: c.Tenant, OutTradeNo: c.OutTradeNo})
	c.accounts.need(tx, g)
	c.creation.Caller, c.creation.CreateParams = c.Caller, machine.CreateParams{Machine: machine.PaymentMachine,
		Key: c.OutTradeNo}
	c.creation.Need(tx.Machines())
	tx.openParts()
	if c.Asset != "" && !tx.loaded {
		tx.Ledger().SeeAsset(c.Tenant, c.Asset)
	}
	c.order = nil
	tx.Orders().WantOfPayment(c.Tenant, c.OutTradeNo, func(o *order.Order) {
		c.order = tx.Orders().Wanted(o.Key)
		tx.Machines().Want(instanceOf(o))
		if found != nil {
			found(o)
		}
	})
	c.consequences.need(tx)
}

// isRepeat reports whether the notice was recorded before, and need not wait for its payment.
func (c *notice) isRepeat() bool {
	return c.recorded.Exists && c.recorded.Value.Effect != payment.EffectUnmatched
}

// repeated is the result of a notice that was recorded before.
func (c *notice) repeated() NoticeResult {
	return NoticeResult{Done: true, Effect: c.recorded.Value.Effect, Existed: true}
}

// mustHaveOrder returns ErrLater or ErrMoreRows if the order of the payment has not been found.
func (c *notice) mustHaveOrder() error {
	switch {
	case c.order == nil && !c.payment.Found:
		return commit.ErrLater // another call of this batch makes the payment
	case c.order == nil:
		return commit.ErrMoreRows // another server has just made it
	}
	return nil
}

// foreign returns the merchant or the gateway of the notice if it is not that of the payment; otherwise "".
func (c *notice) foreign() string {
	if c.Foreign == "" && c.payment.Exists && c.payment.Value.Gateway != c.Gateway {
		return "gateway " + c.Gateway
	}
	return c.Foreign
}

// transactionKey is the key of a transaction of the gateway.
func (c *notice) transactionKey(id string) payment.TransactionKey {
	return payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: id}
}

// record stores the notice with its effect.
func (c *notice) record(tx *Tx, v payment.Effect, detail string) NoticeResult {
	if !c.recorded.Exists {
		tx.Payments().Record(c.recorded, &c.Received, v, detail, c.RequestID)
	}
	return NoticeResult{Done: v != payment.EffectUnmatched, Effect: v}
}

// keepCredential stores what the payer's client needs to pay.
func (c *notice) keepCredential(tx *Tx) {
	if c.Credential != nil {
		tx.Payments().Change(c.payment).Credential = c.Credential
	}
}

// state returns the state of the payment.
func (c *notice) state(tx *Tx) (string, error) {
	find := tx.Machines().StateOf // an instance may exist without a payment
	if c.payment.Exists {
		find = tx.instanceOfRow
	}
	i, err := find(paymentInstance(c.payment.Key), c.Caller)
	return i.State, err
}

// move moves the payment and publishes the event.
func (c *notice) move(tx *Tx, to string) error {
	m := movePayment(c.Caller, paymentInstance(c.payment.Key), to, c.cause())
	m.Need(tx.Machines())
	_, err := c.consequences.run(tx, m.Apply)
	return err
}

// cause is the cause of the moves that a notice makes.
func (n *NoticeParams) cause() string {
	if n.TransactionID != "" {
		return n.TransactionID
	}
	return httpsend.Cut(n.Received.ID, machine.MaxCause)
}

// endCalls ends the calls about the payment. If notices came before the payment was created, they may name other
// transactions: FlagUnknown flags their money.
func (c *notice) endCalls(tx *Tx) {
	if p := &c.payment.Value; p.Early {
		tx.Payments().CallPayment(c.payment.Key, p.Gateway, payment.FlagUnknown, 0)
		return
	}
	tx.Payments().EndCalls(c.payment.Key)
}

// amount returns the amount with its unit: in minor units of its asset, or, if the ledger has no such asset or the
// amount has more decimals than it, as the notice states it.
func (c *notice) amount(tx *Tx) (payment.Unit, amount.Int) {
	u := payment.Unit{Currency: c.Currency, Scale: c.Amount.Scale}
	if c.Asset != "" {
		if scale, err := tx.Ledger().Decimals(c.Tenant, c.Asset); err == nil {
			if n, err := c.Amount.Minor(scale); err == nil {
				u.Asset, u.Scale = c.Asset, scale
				return u, n
			}
		}
	}
	return u, c.Amount.Coef
}

// gatewayAccounts are the accounts of a gateway. Need has to name them before the batch reads the gateway.
type gatewayAccounts struct {
	row *payment.GatewayRow
	// expected are the accounts as an earlier attempt, or else this server, has read them; nil: unknown.
	expected *payment.Gateway
}

func (a *gatewayAccounts) need(tx *Tx, k payment.GatewayKey) {
	if g, ok := tx.Payments().Known.Last(k); ok && a.expected == nil {
		a.expected = &g
	}
	a.row = tx.Payments().Gateways.Want(k)
}

// asExpected reports whether the batch has read the accounts that Need expected. If not, the next attempt expects those
// that it has read.
func (a *gatewayAccounts) asExpected() bool {
	g := a.row.Value
	if a.expected != nil && *a.expected == g {
		return true
	}
	a.expected = &g
	return false
}

// KeepNotice stores a notice of a gateway that is about no known payment. It moves no money. Its answer is a
// NoticeResult.
type KeepNotice struct {
	commit.Caller
	Gateway string
	payment.Received
	Effect payment.Effect
	Detail string

	recorded *payment.NoticeRow
}

// Need names the notice.
func (c *KeepNotice) Need(tx *Tx) {
	c.recorded = tx.Payments().Notices.Want(payment.NoticeKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: c.Received.ID})
}

// Apply stores the notice, once.
func (c *KeepNotice) Apply(tx *Tx) (any, error) {
	if c.recorded.Exists {
		return NoticeResult{Done: true, Effect: c.recorded.Value.Effect, Existed: true}, nil
	}
	tx.Payments().Record(c.recorded, &c.Received, c.Effect, c.Detail, c.RequestID)
	return NoticeResult{Done: true, Effect: c.Effect}, nil
}

// Keep commits a notice of a gateway that is about no known payment.
func Keep(ctx context.Context, e *Engine, k payment.GatewayKey, n payment.Received, v payment.Effect, detail,
	requestID string) (NoticeResult, error) {
	out, err := e.Do(ctx, Submission{Tenant: k.Tenant, RequestID: requestID, Rows: 2, Bytes: 2048 + len(n.Body),
		Command: &KeepNotice{Caller: gatewayCaller(k, requestID), Gateway: k.Gateway, Received: storable(n), Effect: v,
			Detail: detail}})
	if err != nil {
		return NoticeResult{}, err
	}
	return out.Answer.(NoticeResult), nil
}
