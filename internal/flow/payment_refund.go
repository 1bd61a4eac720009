package flow

import (
	"cmp"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// States of the shipped machine of orders whose payment is refunded in full.
const (
	orderRefunding = "refunding"
	orderRefunded  = "refunded"
)

// refundLife is how long the money of a refund is held: the longest life of a hold.
const refundLife = 400 * 24 * time.Hour

// RefundPayment requests a refund. Its answer is a payment.RefundView, or a commit.Repeat of one.
type RefundPayment struct {
	commit.Caller
	payment.RefundKey
	OutTradeNo string
	Amount     *amount.Decimal // nil: all that remains
	Reason     string
	Lease      func(gateway string) time.Duration // as in CreatePayment

	flagged flaggedMoney
	refundAttempt
}

// flaggedMoney is the transaction that a refund of ResolveFlag gives back. Its zero value: the one that paid the order.
type flaggedMoney struct {
	flagID      int64
	transaction payment.TransactionKey
}

// refundAttempt has the rows of a RefundPayment, and what earlier attempts found.
type refundAttempt struct {
	consequences
	payment      *payment.Row
	refund       *payment.RefundRow
	creation     machine.CreateCommand // of the instance of the refund
	order        *order.Row            // nil: not found
	money        refundedMoney
	hold         moneyHold
	consoleAlias *payment.NoticeRow // alias under which a console refund with this number is recorded
}

// refundedMoney is the transaction to refund.
type refundedMoney struct {
	key payment.TransactionKey  // of the flagged one, or of the one that paid, as an earlier attempt found it
	row *payment.TransactionRow // nil: the key is not known
}

// moneyHold is the hold on the money.
type moneyHold struct {
	account, asset string // of the money, as an earlier attempt found it
	command        *ledger.HoldCommand
}

// Need names the refund, the payment with its money, and its order.
func (c *RefundPayment) Need(tx *Tx) {
	c.RefundKey.Tenant = c.Caller.Tenant
	k := payment.Key{Tenant: c.Caller.Tenant, OutTradeNo: c.OutTradeNo}
	payments := tx.Payments()
	c.payment, c.refund = payments.Want(k), payments.Refunds.Want(c.RefundKey)
	if c.flagged.transaction.ID != "" {
		c.money.key = c.flagged.transaction
	}
	if c.money.row, c.consoleAlias = nil, nil; c.money.key.ID != "" {
		c.money.row = payments.Transactions.Want(c.money.key)
		c.consoleAlias = payments.Notices.Want(numberAlias(payment.GatewayKey{Tenant: k.Tenant,
			Gateway: c.money.key.Gateway}, c.OutTradeNo, c.RefundNo))
	}
	tx.Machines().Want(paymentInstance(k))
	c.creation.Caller, c.creation.CreateParams = c.Caller, machine.CreateParams{Machine: machine.RefundMachine,
		Key: c.RefundNo, Owner: c.OutTradeNo}
	c.creation.Need(tx.Machines())
	tx.Ledger() // for the hold: Discover finds its account with the order, and cannot open the domain any more
	c.order, c.hold.command = nil, nil
	if tx.loaded {
		return
	}
	c.needHold(tx, c.hold.account, c.hold.asset)
	tx.Orders().WantOfPayment(k.Tenant, k.OutTradeNo, func(o *order.Order) {
		c.order = tx.Orders().Wanted(o.Key)
		tx.Machines().Want(instanceOf(o))
		if c.hold.command == nil {
			c.needHold(tx, cmp.Or(c.hold.account, o.Payee), o.Asset)
		}
	})
	c.consequences.need(tx)
}

// needHold names the hold on the money.
func (c *RefundPayment) needHold(tx *Tx, account, asset string) {
	if account == "" || asset == "" {
		return
	}
	c.hold.command = &ledger.HoldCommand{Caller: c.Caller, HoldParams: ledger.HoldParams{BizNo: c.HoldNo(),
		From: account, Asset: asset, Life: refundLife}}
	c.hold.command.Need(tx.Ledger())
}

// Apply requests the refund. Returns faults PAYMENT_NOT_FOUND, PAYMENT_NOT_PAID, REFUND_EXISTS_DIFFERENT,
// REFUND_EXCEEDS_PAID, and those of the hold.
func (c *RefundPayment) Apply(tx *Tx) (any, error) {
	if c.refund.Exists {
		return c.repeat(tx)
	}
	p, err := payment.MustExist(c.payment)
	if err != nil && c.flagged.transaction.ID != "" { // the payment of flagged money may be unknown
		p, err = &payment.Payment{Key: c.payment.Key}, nil
	}
	if err != nil {
		return nil, err
	}
	money, err := c.transaction(tx, p)
	if err != nil {
		return nil, err
	}
	if !money.Found {
		return nil, commit.ErrLater // another call of this batch records the transaction, and earlier refunds of it
	}
	if c.consoleAlias.Exists {
		return nil, payment.IsConsoleRefund(c.RefundNo)
	}
	n, err := c.amount(&money.Value)
	if err != nil {
		return nil, err
	}
	t, hold := &money.Value, c.hold.command
	if t.Account != "" && (hold == nil || hold.From != t.Account || hold.Asset != t.Asset) {
		c.hold.account, c.hold.asset = t.Account, t.Asset
		return nil, commit.ErrMoreRows
	}
	answer, err := c.consequences.run(tx, c.creation.Apply)
	if err != nil {
		return nil, err
	}
	i := answer.(machine.Instance)
	if t.Account != "" {
		hold.Amount = amount.NewDecimal(n, t.Scale)
		if err := makePart(order.Key{Tenant: p.Tenant, OrderNo: p.OrderNo}, "hold", hold.BizNo, hold,
			tx.Ledger()); err != nil {
			return nil, fault.Rename(err, func(string) string { return "amount" })
		}
	}
	changed := tx.Payments().Transactions.Change(money)
	changed.Refunding, _ = changed.Refunding.Add(n)
	x := payment.Refund{ID: i.ID, OutTradeNo: c.OutTradeNo, Gateway: money.Key.Gateway,
		TransactionID: money.Key.ID, Currency: t.Currency, Asset: t.Asset, Scale: t.Scale, Amount: n,
		Account: t.Account, FlagID: c.flagged.flagID, Reason: c.Reason, Principal: c.Principal, RequestID: c.RequestID}
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

// transaction returns the transaction to refund. Returns fault PAYMENT_NOT_PAID if there is none.
func (c *RefundPayment) transaction(tx *Tx, p *payment.Payment) (*payment.TransactionRow, error) {
	k := payment.TransactionKey{Tenant: p.Tenant, Gateway: p.Gateway, ID: p.TransactionID}
	flagged := c.flagged.transaction.ID != ""
	if !flagged && k.ID != "" && c.money.key != k {
		c.money.key = k // the next attempt names it
		return nil, commit.ErrMoreRows
	}
	var money *payment.TransactionRow
	if (flagged || k.ID != "") && c.money.row.Exists {
		money = c.money.row
	}
	if !flagged {
		return money, c.mustBePaid(tx, p, money)
	}
	if money == nil {
		return nil, payment.NotPaid.New("there is no transaction %s of payment %s", c.flagged.transaction.ID,
			c.OutTradeNo).With("out_trade_no", c.OutTradeNo).With("state", "")
	}
	return money, nil
}

// mustBePaid refuses a payment that has not paid its order. ResolveFlag refunds flagged money.
func (c *RefundPayment) mustBePaid(tx *Tx, p *payment.Payment, money *payment.TransactionRow) error {
	i, err := tx.instanceOfRow(paymentInstance(p.Key), c.Caller)
	if err != nil || money != nil && i.State == machine.PaymentSucceeded {
		return err
	}
	f := payment.NotPaid.New("payment %s is %s: nothing can be refunded", c.OutTradeNo, i.State)
	if money != nil {
		f = payment.NotPaid.New("payment %s is %s: its money is flagged, refund it with ResolveFlag",
			c.OutTradeNo, i.State)
	}
	return f.With("out_trade_no", c.OutTradeNo).With("state", i.State)
}

// amount returns the amount to refund, in the minor units of the transaction.
func (c *RefundPayment) amount(t *payment.Transaction) (amount.Int, error) {
	rest := t.Remaining()
	n := rest
	if c.Amount != nil {
		var err error
		if n, err = c.Amount.Minor(t.Scale); err != nil {
			f := amount.Refused(err, *c.Amount, t.Currency, t.Scale)
			return n, f.WithField("amount", f.Message)
		}
	}
	if n.Cmp(rest) > 0 || n.Sign() <= 0 {
		return n, payment.RefundExceedsPaid.New("payment %s: only %s %s can still be refunded", c.OutTradeNo,
			amount.Format(rest, t.Scale), t.Currency).With("out_trade_no", c.OutTradeNo).
			With("remaining", amount.Format(rest, t.Scale))
	}
	return n, nil
}

// moveOrder moves an order of the shipped machine whose payment is refunded in full. It reports whether it did.
func (c *RefundPayment) moveOrder(tx *Tx, p *payment.Payment, money *payment.TransactionRow) (bool, error) {
	o := c.order
	if c.flagged.flagID != 0 || o == nil || o.Value.Machine != machine.OrderMachine ||
		money.Key.ID != p.TransactionID || !money.Value.Remaining().IsZero() || money.Value.Account != p.Payee {
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
	_, err := c.consequences.run(tx, m.Apply)
	if callerMustMove(err) {
		return false, nil
	}
	return err == nil, err
}

// callerMustMove reports whether the tenant's own version of the machine refuses the automatic move, because of its
// principals, its inputs or its shortest stay: a caller moves the order.
func callerMustMove(err error) bool {
	return fault.Is(err, machine.NotYours) || fault.Is(err, machine.InputMissing) || fault.Is(err, machine.TooEarly)
}

// repeat returns the existing refund, if the call asks for the same.
func (c *RefundPayment) repeat(tx *Tx) (any, error) {
	x := &c.refund.Value
	var differs []string
	if x.OutTradeNo != c.OutTradeNo || x.FlagID != c.flagged.flagID {
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
	return commit.Repeat{First: payment.RefundView{Refund: *x, State: stateOf(i)},
		PresentState: true}, nil
}
