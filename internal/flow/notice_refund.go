package flow

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// refundNotice applies a notice about a refund. One that RefundPayment or ResolveFlag requested is handled here and in
// notice_refund_outcome.go, a console refund in notice_console.go.
type refundNotice struct {
	notice
	refund  refundRows
	hold    refundHold
	aliases refundAliases
	console consoleRows
}

// Need names the refund with its hold, the console refund that it may be, and the refunded transaction.
func (c *refundNotice) Need(tx *Tx) {
	g := payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway}
	c.need(tx, nil)
	if c.TransactionID != "" {
		tx.Payments().Transactions.Want(c.transactionKey(c.TransactionID))
	}
	c.refund.need(tx, payment.RefundKey{Tenant: c.Tenant, RefundNo: c.RefundNo})
	c.hold.need(tx, &c.notice)
	c.console.need(tx, g)
	c.aliases.need(tx, &c.NoticeParams, g)
}

// Apply applies the notice.
func (c *refundNotice) Apply(tx *Tx) (any, error) {
	if c.isRepeat() {
		s := c.repeated()
		s.NeedsQuery = c.needsQuery(tx)
		if c.Callback || c.RefundNo+c.GatewayRefundID == "" {
			return s, nil
		}
		_, err := c.apply(tx) // an answer may equal an earlier one although other notices came in between
		return s, err
	}
	if c.payment.Exists { // else the refund is of flagged money, or a console refund
		if err := c.mustHaveOrder(); err != nil {
			return nil, err
		}
	}
	return c.apply(tx)
}

// apply moves the refund, or records another outcome of one that has ended.
func (c *refundNotice) apply(tx *Tx) (any, error) {
	r := c.refund.row
	if r == nil || !r.Exists {
		return c.applyToConsole(tx)
	}
	if !r.Found || r.Value.Reflagged {
		return nil, commit.ErrLater // another command of this batch makes it, or has raised a flag about it
	}
	x := &r.Value
	if !c.concerns(x) {
		return c.applyToConsole(tx)
	}
	i, err := tx.instanceOfRow(refundInstance(x.RefundKey), c.Caller)
	if err != nil {
		return nil, err
	}
	foreign, err := c.namesOtherMerchant(tx, x)
	if err != nil {
		return nil, err
	}
	switch {
	case foreign && c.Kind != gateway.Refunded:
		return c.record(tx, payment.EffectKnown, "the notice names another "+c.Foreign), nil
	case foreign, i.State == machine.RefundSucceeded, i.State == machine.RefundFailed:
		return c.changeOutcome(tx, x, i.State, foreign)
	}
	to := map[gateway.Kind]string{gateway.Refunded: machine.RefundSucceeded, gateway.RefundFailed: machine.RefundFailed,
		gateway.RefundPending: machine.RefundSubmitted, gateway.RefundAbnormal: machine.RefundAbnormal}[c.Kind]
	if !tx.Machines().Allows(refundInstance(x.RefundKey), to, machine.ByFlow) {
		return c.record(tx, payment.EffectKnown, "the refund is "+i.State), nil
	}
	return c.moveRefund(tx, x, to)
}

// moveRefund moves the refund to a state, and ends it or schedules the next query.
func (c *refundNotice) moveRefund(tx *Tx, x *payment.Refund, to string) (any, error) {
	m := movePayment(c.Caller, refundInstance(x.RefundKey), to, c.cause())
	m.Need(tx.Machines())
	if _, err := c.consequences.run(tx, m.Apply); err != nil {
		return nil, err
	}
	changed := tx.Payments().Refunds.Change(c.refund.row)
	if c.GatewayRefundID != "" {
		changed.GatewayRefundID = c.GatewayRefundID
	}
	changed.FailureCode, changed.FailureText = c.Code, c.Text
	var s NoticeResult
	switch c.Kind {
	case gateway.RefundPending:
		tx.Payments().CallRefund(x.RefundKey, c.Gateway, payment.Query, pollAfter)
		s = c.record(tx, payment.EffectApplied, "")
	case gateway.RefundAbnormal:
		tx.Payments().CallRefund(x.RefundKey, c.Gateway, payment.Query, time.Hour)
		s = c.record(tx, payment.EffectApplied, "")
	default:
		if err := c.endRefund(tx, x); err != nil {
			return nil, err
		}
		s = c.recordOutcome(tx, x)
	}
	c.addAlias(tx)
	return s, nil
}

// applyToConsole applies the notice to a console refund, unless it does not say how the refund ended.
func (c *refundNotice) applyToConsole(tx *Tx) (any, error) {
	if !c.endsRefund() {
		s := c.record(tx, payment.EffectKnown, "there is no such refund")
		s.NeedsQuery = c.needsQuery(tx)
		return s, nil
	}
	console := consoleNotice{notice: &c.notice, own: c.refund.row, aliases: &c.aliases, rows: &c.console}
	return console.apply(tx)
}

// needsQuery reports whether the gateway must be queried for the outcome of a refund: the notice does not say it, and
// no call at the gateway is due, because RefundPayment did not request the refund, or because it is decided.
func (c *refundNotice) needsQuery(tx *Tx) bool {
	r, vague := c.refund.row, c.Callback && c.Amount.Coef.IsZero()
	if c.Kind != gateway.RefundPending || r == nil {
		return false
	}
	if !r.Exists {
		return c.payment.Exists || vague
	}
	i, err := tx.instanceOfRow(refundInstance(r.Key), c.Caller)
	return vague && err == nil && (i.State == machine.RefundSucceeded || i.State == machine.RefundFailed)
}

// namesOtherMerchant reports whether the notice of a refund names another merchant than the money that is given back.
func (c *refundNotice) namesOtherMerchant(tx *Tx, x *payment.Refund) (bool, error) {
	if c.Foreign == "" || x.FlagID == 0 {
		return c.Foreign != "", nil
	}
	if err := c.refund.mustBeNamed(tx, x); err != nil {
		return false, err
	}
	return c.refund.flag.Value.Kind != payment.WrongMerchant, nil
}

// concerns reports whether the notice is about this refund, rather than another one with its number.
func (n *NoticeParams) concerns(x *payment.Refund) bool {
	return x.OutTradeNo == n.OutTradeNo && x.Gateway == n.Gateway &&
		(n.Kind != gateway.Refunded || n.Currency == "" || n.Currency == x.Currency)
}

// endsRefund reports whether the notice says how a refund ended.
func (n *NoticeParams) endsRefund() bool {
	return n.Kind == gateway.Refunded || n.Kind == gateway.RefundFailed
}

// endRefund posts the held money to the clearing account, or releases the hold, and moves the order that waits for the
// refund.
func (c *refundNotice) endRefund(tx *Tx, x *payment.Refund) error {
	if err := c.refund.mustBeNamed(tx, x); err != nil {
		return err
	}
	money := tx.Payments().Transactions.Wanted(x.Transaction())
	tx.Payments().EndRefundCalls(x.RefundKey)
	t := tx.Payments().Transactions.Change(money)
	t.Refunding, _ = t.Refunding.Sub(x.Amount)
	back := c.Kind == gateway.Refunded
	if back {
		t.Refunded, _ = t.Refunded.Add(x.Amount)
	}
	if x.Account != "" {
		if err := c.hold.end(tx, &c.notice, x); err != nil {
			return err
		}
	}
	if f := c.refund.flag; f != nil && !back && f.Exists && f.Value.RefundNo == x.RefundNo {
		tx.Payments().ReopenFlag(f)
	}
	if c.order == nil || back && !t.Refunding.IsZero() {
		return nil
	}
	return c.moveRefunding(tx, x, back && t.Remaining().IsZero())
}

// moveRefunding moves an order in state refunding: to refunded if its payment is given back in full (full), else back
// to its previous state.
func (c *refundNotice) moveRefunding(tx *Tx, x *payment.Refund, full bool) error {
	o := &c.order.Value
	v, err := tx.viewOrder(&c.consequences, c.order, c.Caller)
	if err != nil || o.Machine != machine.OrderMachine || v.State.State != orderRefunding || v.Cause == "" {
		return err
	}
	if v.Cause != x.RefundNo { // another refund, or a caller, has moved it
		if c.refund.mover != v.Cause {
			c.refund.mover = v.Cause
			return commit.ErrMoreRows
		}
		r := tx.Payments().Refunds.Want(payment.RefundKey{Tenant: c.Tenant, RefundNo: v.Cause})
		if !r.Exists || r.Value.Transaction() != x.Transaction() {
			return nil
		}
		x = &r.Value
	}
	if !x.MovesOrder {
		return nil
	}
	m := movePayment(c.Caller, instanceOf(o), orderRefunded, x.RefundNo)
	if !full {
		k, _ := tx.Machines().StateOf(instanceOf(o), c.Caller)
		m.To, m.From = k.CameFrom, orderRefunding
	}
	if !tx.Machines().Allows(instanceOf(o), m.To, machine.ByCaller, machine.ByFlow) {
		return nil // by the tenant's own version of the machine: a caller moves it
	}
	m.Need(tx.Machines())
	if _, err = c.consequences.run(tx, m.Apply); callerMustMove(err) {
		return nil // the refund has ended nevertheless
	}
	return err
}

// addAlias adds an alias to the recorded notice of one of our refunds, because a later notice about that refund may
// lack our number.
func (c *refundNotice) addAlias(tx *Tx) {
	if a := c.aliases.refund; c.Kind != gateway.RefundFailed && a != nil && !a.Exists {
		tx.Payments().AddName(a, c.recorded.Value.ID)
	}
}

// refundRows are the rows of a refund that a notice needs.
type refundRows struct {
	row   *payment.RefundRow // nil: the notice names no number
	flag  *payment.FlagRow   // whose money it gives back; nil: none, or not named
	found *payment.Refund    // as an earlier attempt found it
	mover string             // another refund, because of which the order is refunding, as an earlier attempt found it
}

func (r *refundRows) need(tx *Tx, k payment.RefundKey) {
	if r.row, r.flag = nil, nil; k.RefundNo == "" {
		return
	}
	payments := tx.Payments()
	r.row = payments.Refunds.Want(k)
	tx.Machines().Want(refundInstance(k))
	if x := r.found; x != nil {
		payments.Transactions.Want(x.Transaction())
		if x.OutcomeFlagID != 0 {
			payments.Flags.Want(payment.FlagKey{Tenant: k.Tenant, ID: x.OutcomeFlagID})
		}
		if x.FlagID != 0 {
			r.flag = payments.Flags.Want(payment.FlagKey{Tenant: k.Tenant, ID: x.FlagID})
		}
	}
	if r.mover != "" {
		payments.Refunds.Want(payment.RefundKey{Tenant: k.Tenant, RefundNo: r.mover})
	}
}

// mustBeNamed returns ErrMoreRows if this attempt has not named the transaction and the flags of a refund.
func (r *refundRows) mustBeNamed(tx *Tx, x *payment.Refund) error {
	outcome := payment.FlagKey{Tenant: x.Tenant, ID: x.OutcomeFlagID}
	if tx.Payments().Transactions.Wanted(x.Transaction()) == nil || x.FlagID != 0 && r.flag == nil ||
		x.OutcomeFlagID != 0 && tx.Payments().Flags.Wanted(outcome) == nil {
		found := *x
		r.found = &found
		return commit.ErrMoreRows
	}
	return nil
}

// refundHold has the command that ends the hold of a refund.
type refundHold struct {
	capture  *ledger.CaptureCommand
	release  *ledger.ReleaseCommand
	clearing string // account that the capture names; empty: none
}

// need names the hold of a refund, and the account that gets its money, for a notice that may end the refund.
func (h *refundHold) need(tx *Tx, c *notice) {
	k, g := payment.RefundKey{Tenant: c.Tenant, RefundNo: c.RefundNo}, c.accounts.expected
	if h.capture, h.release = nil, nil; c.RefundNo == "" || g == nil || !c.endsRefund() {
		return
	}
	h.clearing = g.Clearing
	if c.Kind == gateway.Refunded && c.Refused == nil {
		h.capture = &ledger.CaptureCommand{Caller: c.Caller, CaptureParams: ledger.CaptureOf(0, k.HoldNo())}
		h.capture.BizNo, h.capture.Type, h.capture.To = k.PayNo(), refundTransfer, g.Clearing
		h.capture.Need(tx.Ledger())
		return
	}
	h.release = ledger.ReleaseOf(c.Caller, 0, k.HoldNo())
	h.release.Need(tx.Ledger())
}

// end captures the hold of a refund for the clearing account if it gave money back, or else releases it.
func (h *refundHold) end(tx *Tx, c *notice, x *payment.Refund) error {
	if expected := c.accounts.asExpected(); !expected || h.clearing != c.accounts.row.Value.Clearing {
		return commit.ErrMoreRows
	}
	if c.Kind == gateway.Refunded && c.Refused == nil {
		n := x.Given()
		h.capture.Amount = &n // fails if a caller has captured a part: the whole amount is flagged
		_, err := h.capture.Apply(tx.Ledger())
		return err
	}
	_, err := h.release.Apply(tx.Ledger())
	if fault.Is(err, ledger.HoldNotHeld) || fault.Is(err, ledger.HoldExpired) {
		return nil // it was released before; if the money went back, that is flagged
	}
	return err
}

// refundAliases are other names under which notices of a refund are recorded.
type refundAliases struct {
	refund   *payment.NoticeRow // by the gateway's id, or else by the number; nil: the notice has neither
	number   *payment.NoticeRow // by the number; nil: the notice has none, or does not say how the refund ended
	currency *payment.NoticeRow // by number and currency, of a console refund whose number one of our refunds uses
}

func (a *refundAliases) need(tx *Tx, n *NoticeParams, g payment.GatewayKey) {
	a.number, a.currency = nil, nil
	if n.endsRefund() && n.RefundNo != "" {
		k := numberAlias(g, n.OutTradeNo, n.RefundNo)
		a.number = tx.Payments().Notices.Want(k)
		k.ID = httpsend.Cut(k.ID+"/"+n.Currency, 256)
		a.currency = tx.Payments().Notices.Want(k)
	}
	if a.refund = a.number; n.GatewayRefundID != "" && (n.endsRefund() || n.Kind == gateway.RefundPending) {
		a.refund = tx.Payments().Notices.Want(payment.RefundName(g, n.GatewayRefundID))
	}
}

// numberAlias is the alias of a refund's notices by our number.
func numberAlias(g payment.GatewayKey, outTradeNo, refundNo string) payment.NoticeKey {
	return payment.RefundName(g, outTradeNo+"/"+refundNo)
}
