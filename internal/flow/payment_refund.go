package flow

import (
	"cmp"
	"errors"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// States of the shipped machine of orders that refunds of everything lead to.
const (
	orderRefunding = "refunding"
	orderRefunded  = "refunded"
)

// refundLife is how long the money of a refund is held: the longest life of a hold.
const refundLife = 400 * 24 * time.Hour

// RefundPayment asks for a refund. Its answer is a payment.RefundView, or a commit.Repeat of one.
type RefundPayment struct {
	commit.Caller
	payment.RefundKey
	OutTradeNo string
	Amount     *amount.Decimal // nil: all that remains
	Reason     string
	Lease      func(gateway string) time.Duration // as in CreatePayment
	// Transaction is the one to refund, at Gateway, of the flag FlagID. Empty: the one that paid the order.
	Transaction, Gateway string
	FlagID               int64

	consequences
	row     *payment.Row
	refund  *payment.RefundRow
	birth   machine.CreateCommand
	order   *order.Row
	account string // on which the money is held, as an earlier attempt found it
	asset   string // of the money, as an earlier attempt found it
	hold    *ledger.HoldCommand
	// named is the transaction to refund: that of Transaction, or the one that paid, as an earlier attempt found it.
	named *payment.TransactionRow
	paid  payment.TransactionKey
	told  *payment.NoticeRow // name of a console refund with the number
}

// Need names the refund, the payment with its money, and its order.
func (c *RefundPayment) Need(tx *Tx) {
	c.RefundKey.Tenant = c.Caller.Tenant
	k := payment.Key{Tenant: c.Caller.Tenant, OutTradeNo: c.OutTradeNo}
	payments := tx.Payments()
	c.row, c.refund = payments.Want(k), payments.WantRefund(c.RefundKey)
	if c.Transaction != "" {
		c.paid = payment.TransactionKey{Tenant: k.Tenant, Gateway: c.Gateway, ID: c.Transaction}
	}
	if c.named, c.told = nil, nil; c.paid.ID != "" {
		c.named = payments.WantTransaction(c.paid)
		c.told = payments.WantNotice(numberName(payment.GatewayKey{Tenant: k.Tenant, Gateway: c.paid.Gateway},
			c.OutTradeNo, c.RefundNo))
	}
	tx.Machines().Want(paymentInstance(k))
	c.birth.Caller, c.birth.CreateParams = c.Caller, machine.CreateParams{Machine: machine.RefundMachine,
		Key: c.RefundNo, Owner: c.OutTradeNo}
	c.birth.Need(tx.Machines())
	tx.Ledger()
	tx.Stock()
	tx.Claims()
	tx.Coupons()
	c.order, c.hold = nil, nil
	if tx.loaded {
		return
	}
	c.needHold(tx, c.account, c.asset)
	tx.Orders().WantOfPayment(k.Tenant, k.OutTradeNo, func(o *order.Order) {
		c.order = tx.Orders().Known(o.Key)
		tx.Machines().Want(instanceOf(o))
		if c.hold == nil {
			c.needHold(tx, cmp.Or(c.account, o.Payee), o.Asset)
		}
	})
	c.need(tx)
}

// needHold names the hold on the money.
func (c *RefundPayment) needHold(tx *Tx, account, asset string) {
	if account == "" || asset == "" {
		return
	}
	c.hold = &ledger.HoldCommand{Caller: c.Caller, HoldParams: ledger.HoldParams{BizNo: c.HoldNo(), From: account,
		Asset: asset, Life: refundLife}}
	c.hold.Need(tx.Ledger())
}

// Apply asks for the refund. Returns faults PAYMENT_NOT_FOUND, PAYMENT_NOT_PAID, REFUND_EXISTS_DIFFERENT,
// REFUND_EXCEEDS_PAID, and those of the hold.
func (c *RefundPayment) Apply(tx *Tx) (any, error) {
	if c.refund.Exists {
		return c.repeat(tx)
	}
	p, err := payment.MustExist(c.row)
	if err != nil && c.Transaction != "" { // flagged money, whose payment may be unknown
		p, err = &payment.Payment{Key: c.row.Key}, nil
	}
	if err != nil {
		return nil, err
	}
	money, err := c.money(p)
	if err == nil && c.Transaction == "" {
		err = c.mustBePaid(tx, p, money)
	}
	if err != nil {
		return nil, err
	}
	if money == nil {
		return nil, payment.NotPaid.New("there is no transaction %s of payment %s", c.Transaction, c.OutTradeNo).
			With("out_trade_no", c.OutTradeNo).With("state", "")
	}
	if !money.Found {
		return nil, commit.ErrLater // another call of this batch records it, and what was given back of it before
	}
	if c.told.Exists {
		return nil, payment.IsConsoleRefund(c.RefundNo)
	}
	n, err := c.amount(&money.Value)
	if err != nil {
		return nil, err
	}
	t := &money.Value
	if t.Account != "" && (c.hold == nil || c.hold.From != t.Account || c.hold.Asset != t.Asset) {
		c.account, c.asset = t.Account, t.Asset
		return nil, commit.ErrMoreRows
	}
	answer, err := c.run(tx, c.birth.Apply)
	if err != nil {
		return nil, err
	}
	i := answer.(machine.Instance)
	if t.Account != "" {
		c.hold.Amount = amount.NewDecimal(n, t.Scale)
		if err := makePart(order.Key{Tenant: p.Tenant, OrderNo: p.OrderNo}, "hold", c.hold.BizNo, c.hold,
			tx.Ledger()); err != nil {
			return nil, inFields(err, func(string) string { return "amount" })
		}
	}
	changed := tx.Payments().ChangeMoney(money)
	changed.Refunding, _ = changed.Refunding.Add(n)
	x := payment.Refund{ID: i.ID, OutTradeNo: c.OutTradeNo, Gateway: money.Key.Gateway,
		TransactionID: money.Key.ID, Currency: t.Currency, Asset: t.Asset, Scale: t.Scale, Amount: n,
		Account: t.Account, FlagID: c.FlagID, Reason: c.Reason, Principal: c.Principal, RequestID: c.RequestID}
	if x.MovesOrder, err = c.moveOrder(tx, p, money); err != nil {
		return nil, err
	}
	stored := tx.Payments().CreateRefund(c.refund, x)
	tx.Payments().CallRefund(c.RefundKey, x.Gateway, payment.Submit, 0)
	return payment.RefundView{Refund: *stored, State: stateOf(i), Lease: leaseLast(tx, c.Lease, x.Gateway)}, nil
}

func stateOf(i machine.Instance) payment.State {
	return payment.State{State: i.State, Revision: i.Revision, ChangedAt: i.ChangedAt}
}

// mustBePaid refuses a payment that has not paid its order. Money that is flagged is given back by ResolveFlag.
func (c *RefundPayment) mustBePaid(tx *Tx, p *payment.Payment, money *payment.TransactionRow) error {
	i, err := tx.instanceOfRow(paymentInstance(p.Key), c.Caller)
	if err != nil || money != nil && i.State == machine.PaymentSucceeded {
		return err
	}
	f := payment.NotPaid.New("payment %s is %s: nothing can be given back", c.OutTradeNo, i.State)
	if money != nil {
		f = payment.NotPaid.New("payment %s is %s: its money is flagged, and ResolveFlag gives it back", c.OutTradeNo, i.State)
	}
	return f.With("out_trade_no", c.OutTradeNo).With("state", i.State)
}

// money returns the transaction to refund, or nil if there is none.
func (c *RefundPayment) money(p *payment.Payment) (*payment.TransactionRow, error) {
	k := payment.TransactionKey{Tenant: p.Tenant, Gateway: p.Gateway, ID: p.TransactionID}
	switch {
	case c.Transaction == "" && k.ID == "":
		return nil, nil
	case c.Transaction == "" && c.paid != k:
		c.paid = k // the next attempt names it
		return nil, commit.ErrMoreRows
	case !c.named.Exists:
		return nil, nil
	}
	return c.named, nil
}

// amount returns what is given back, in the minor units of the transaction.
func (c *RefundPayment) amount(t *payment.Transaction) (amount.Int, error) {
	rest := t.Remaining()
	n := rest
	if c.Amount != nil {
		var err error
		if n, err = c.Amount.Minor(t.Scale); err != nil {
			problem := "must not have more decimals than the payment"
			if errors.Is(err, amount.ErrOverflow) {
				problem = "must not be of so many digits"
			}
			return n, fault.FieldInvalid.New("amount: %s", problem).WithField("amount", problem)
		}
	}
	if n.Cmp(rest) > 0 || n.Sign() <= 0 {
		return n, payment.RefundExceedsPaid.New("of payment %s only %s %s can still be given back", c.OutTradeNo,
			amount.Format(rest, t.Scale), t.Currency).With("out_trade_no", c.OutTradeNo).
			With("remaining", amount.Format(rest, t.Scale))
	}
	return n, nil
}

// moveOrder moves an order of the shipped machine of which everything is given back.
func (c *RefundPayment) moveOrder(tx *Tx, p *payment.Payment, money *payment.TransactionRow) (bool, error) {
	o := c.order
	if c.FlagID != 0 || o == nil || o.Value.Machine != machine.OrderMachine || money.Key.ID != p.TransactionID ||
		!money.Value.Remaining().IsZero() || money.Value.Account != p.Payee {
		return false, nil
	}
	k := instanceOf(&o.Value)
	if _, err := tx.viewOrder(&c.consequences, o, c.Caller); err != nil {
		return false, err
	}
	if !tx.Machines().Allows(k, orderRefunding, machine.ByCaller, machine.ByFlow) {
		return false, nil
	}
	m := movePayment(c.Caller, k, orderRefunding, c.RefundNo)
	m.Need(tx.Machines())
	_, err := c.run(tx, m.Apply)
	if staysBehind(err) {
		return false, nil
	}
	return err == nil, err
}

// staysBehind reports whether the tenant's own version of a machine does not let its order move with the money, by
// itself: a caller moves it.
func staysBehind(err error) bool {
	return fault.Is(err, machine.NotYours) || fault.Is(err, machine.InputMissing) || fault.Is(err, machine.TooEarly)
}

// repeat answers with the refund that there is.
func (c *RefundPayment) repeat(tx *Tx) (any, error) {
	x := &c.refund.Value
	var differs []string
	if x.OutTradeNo != c.OutTradeNo || x.FlagID != c.FlagID {
		differs = append(differs, "out_trade_no")
	}
	if c.Amount != nil {
		if n, err := c.Amount.Minor(x.Scale); err != nil || n != x.Amount {
			differs = append(differs, "amount")
		}
	}
	if x.Reason != c.Reason {
		differs = append(differs, "reason")
	}
	if len(differs) > 0 {
		return nil, x.Differs(differs)
	}
	i, err := tx.instanceOfRow(refundInstance(x.RefundKey), c.Caller)
	if err != nil {
		return nil, err
	}
	return commit.Repeat{First: payment.RefundView{Refund: *x, State: stateOf(i)}}, nil
}

// refundRows are the rows that a notice about a refund needs.
type refundRows struct {
	row     *payment.RefundRow
	capture *ledger.CaptureCommand
	release *ledger.ReleaseCommand
	found   *payment.Refund // as an earlier attempt found it
	mover   string          // another refund, because of which the order is refunding, as an earlier attempt found it
	flag    *payment.FlagRow
}

func (r *refundRows) need(tx *Tx, k payment.RefundKey) {
	if r.row, r.capture, r.release, r.flag = nil, nil, nil, nil; k.RefundNo == "" {
		return
	}
	payments := tx.Payments()
	r.row = payments.WantRefund(k)
	tx.Machines().Want(refundInstance(k))
	if x := r.found; x != nil {
		payments.WantTransaction(x.Transaction())
		if x.OutcomeFlagID != 0 {
			payments.WantFlag(payment.FlagKey{Tenant: k.Tenant, ID: x.OutcomeFlagID})
		}
		if x.FlagID != 0 {
			r.flag = payments.WantFlag(payment.FlagKey{Tenant: k.Tenant, ID: x.FlagID})
		}
	}
	if r.mover != "" {
		payments.WantRefund(payment.RefundKey{Tenant: k.Tenant, RefundNo: r.mover})
	}
}

// needHold names the hold of a refund, and the account that gets its money. A notice that may end the refund names them
// at once.
func (c *ApplyNotice) needHold(tx *Tx) {
	k := payment.RefundKey{Tenant: c.Tenant, RefundNo: c.RefundNo}
	g := c.accounts
	if c.RefundNo == "" || g == nil || c.Kind != gateway.Refunded && c.Kind != gateway.RefundFailed {
		return
	}
	c.heldFor = g.Clearing
	if c.Kind == gateway.Refunded && c.Refused == nil {
		c.refund.capture = &ledger.CaptureCommand{Caller: c.Caller, CaptureParams: ledger.CaptureOf(0, k.HoldNo())}
		c.refund.capture.BizNo, c.refund.capture.Type, c.refund.capture.To = k.PayNo(), refundTransfer, g.Clearing
		c.refund.capture.Need(tx.Ledger())
		return
	}
	c.refund.release = ledger.ReleaseOf(c.Caller, 0, k.HoldNo())
	c.refund.release.Need(tx.Ledger())
}

// refunded applies a notice about a refund.
func (c *ApplyNotice) refunded(tx *Tx) (any, error) {
	r := c.refund.row
	if r == nil || !r.Exists {
		return c.unknownRefund(tx)
	}
	if !r.Found || r.Value.Reflagged {
		return nil, commit.ErrLater // another command of this batch makes it, or has raised a flag about it
	}
	x := &r.Value
	if !c.concerns(x) {
		return c.unknownRefund(tx)
	}
	i, err := tx.instanceOfRow(refundInstance(x.RefundKey), c.Caller)
	if err != nil {
		return nil, err
	}
	to := map[gateway.Kind]string{gateway.Refunded: machine.RefundSucceeded, gateway.RefundFailed: machine.RefundFailed,
		gateway.RefundPending: machine.RefundSubmitted, gateway.RefundAbnormal: machine.RefundAbnormal}[c.Kind]
	foreign, err := c.namesOtherMerchant(tx, x)
	if err != nil {
		return nil, err
	}
	switch {
	case foreign && c.Kind != gateway.Refunded:
		return c.record(tx, payment.VerdictKnown, "the notice names another "+c.Foreign), nil
	case foreign, i.State == machine.RefundSucceeded, i.State == machine.RefundFailed:
		return c.changeOutcome(tx, x, i.State, foreign)
	}
	if !tx.Machines().Allows(refundInstance(x.RefundKey), to, machine.ByFlow) {
		return c.record(tx, payment.VerdictKnown, "the refund is "+i.State), nil
	}
	m := movePayment(c.Caller, refundInstance(x.RefundKey), to, causeOf(&c.Received))
	m.Need(tx.Machines())
	if _, err := c.run(tx, m.Apply); err != nil {
		return nil, err
	}
	changed := tx.Payments().ChangeRefund(r)
	if c.GatewayRefundID != "" {
		changed.GatewayRefundID = c.GatewayRefundID
	}
	changed.FailureCode, changed.FailureText = c.Code, c.Text
	switch c.Kind {
	case gateway.RefundPending:
		tx.Payments().CallRefund(r.Key, c.Gateway, payment.Query, pollAfter)
	case gateway.RefundAbnormal:
		tx.Payments().CallRefund(r.Key, c.Gateway, payment.Query, time.Hour)
	default:
		if err := c.endRefund(tx, x); err != nil {
			return nil, err
		}
	}
	s := NoticeResult{}
	if c.Kind == gateway.Refunded || c.Kind == gateway.RefundFailed {
		s = c.recordOutcome(tx, x)
	} else {
		s = c.record(tx, payment.VerdictApplied, "")
	}
	c.nameRefund(tx)
	return s, nil
}

// namesOtherMerchant reports whether the notice of a refund names another merchant than the money that is given back.
func (c *ApplyNotice) namesOtherMerchant(tx *Tx, x *payment.Refund) (bool, error) {
	if c.Foreign == "" || x.FlagID == 0 {
		return c.Foreign != "", nil
	}
	if err := c.needRefundRows(tx, x); err != nil {
		return false, err
	}
	return c.refund.flag.Value.Kind != payment.WrongMerchant, nil
}

// concerns reports whether the notice is about this refund, rather than another one with its number.
func (c *ApplyNotice) concerns(x *payment.Refund) bool {
	return x.OutTradeNo == c.OutTradeNo && x.Gateway == c.Gateway &&
		(c.Kind != gateway.Refunded || c.Currency == "" || c.Currency == x.Currency)
}

// endRefund gives the held money back to the gateway, or frees it, and moves the order that waits for it.
func (c *ApplyNotice) endRefund(tx *Tx, x *payment.Refund) error {
	if err := c.needRefundRows(tx, x); err != nil {
		return err
	}
	money := tx.Payments().KnownTransaction(x.Transaction())
	tx.Payments().EndRefundCalls(x.RefundKey)
	t := tx.Payments().ChangeMoney(money)
	t.Refunding, _ = t.Refunding.Sub(x.Amount)
	back := c.Kind == gateway.Refunded
	if back {
		t.Refunded, _ = t.Refunded.Add(x.Amount)
	}
	if x.Account != "" {
		if err := c.endHold(tx, x, back); err != nil {
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

// moveRefunding moves an order that waits until everything of its payment has been given back: on, since it has, or
// back, since a part of it has not.
func (c *ApplyNotice) moveRefunding(tx *Tx, x *payment.Refund, done bool) error {
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
		r := tx.Payments().WantRefund(payment.RefundKey{Tenant: c.Tenant, RefundNo: v.Cause})
		if !r.Exists || r.Value.Transaction() != x.Transaction() {
			return nil
		}
		x = &r.Value
	}
	if !x.MovesOrder {
		return nil
	}
	m := movePayment(c.Caller, instanceOf(o), orderRefunded, x.RefundNo)
	if !done {
		k, _ := tx.Machines().StateOf(instanceOf(o), c.Caller)
		m.To, m.From = k.CameFrom, orderRefunding
	}
	if !tx.Machines().Allows(instanceOf(o), m.To, machine.ByCaller, machine.ByFlow) {
		return nil // by the tenant's own version of the machine: a caller moves it
	}
	m.Need(tx.Machines())
	if _, err = c.run(tx, m.Apply); staysBehind(err) {
		return nil // the refund has ended all the same
	}
	return err
}

// endHold captures the hold of a refund for the clearing account, or releases it.
func (c *ApplyNotice) endHold(tx *Tx, x *payment.Refund, back bool) error {
	if seen := c.seesAccounts(); !seen || c.heldFor != c.gateway.Value.Clearing {
		return commit.ErrMoreRows
	}
	if back && c.Refused == nil {
		n := x.Given()
		c.refund.capture.Amount = &n // less may be left: a part that a caller has captured did not go to the gateway
		_, err := c.refund.capture.Apply(tx.Ledger())
		return err
	}
	_, err := c.refund.release.Apply(tx.Ledger())
	if fault.Is(err, ledger.HoldNotHeld) || fault.Is(err, ledger.HoldExpired) {
		return nil // it was freed before; if the money went back, that is flagged
	}
	return err
}
