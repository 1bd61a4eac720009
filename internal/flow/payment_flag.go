package flow

import (
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// ResolveFlag ends a flag, and moves its money as a person has decided. Its answer is a payment.FlagView, or a
// commit.Repeat of one.
type ResolveFlag struct {
	commit.Caller
	ID         int64
	Resolution payment.Resolution
	Target     string // account that gets the money, of WriteOff
	RefundNo   string // of GiveBack
	Note       string

	flagAttempt
}

// flagAttempt has the rows of a ResolveFlag, and what earlier attempts found.
type flagAttempt struct {
	consequences
	row      *payment.FlagRow
	flag     *payment.Flag // as an earlier attempt found it
	money    *payment.TransactionRow
	gateway  *payment.GatewayRow
	transfer flagTransfer
	accepted acceptance
	refund   *RefundPayment
}

// flagTransfer is the transfer that moves the flagged money.
type flagTransfer struct {
	clearing string // of the gateway, as an earlier attempt found it
	command  *ledger.TransferCommand
}

// acceptance is the order that accepted money pays.
type acceptance struct {
	payment *payment.Row
	order   *order.Row // nil: not found
	others  orderPayments
	payee   string // account that the transfer names
}

// Need names the flag, and the rows that its resolution needs, once an earlier attempt has found the flag.
func (c *ResolveFlag) Need(tx *Tx) {
	payments := tx.Payments()
	c.row = payments.Flags.Want(payment.FlagKey{Tenant: c.Tenant, ID: c.ID})
	if c.flag == nil || tx.loaded {
		return
	}
	f, k := c.flag, payment.Key{Tenant: c.Tenant, OutTradeNo: c.flag.OutTradeNo}
	c.accepted.payment = payments.Want(k)
	c.gateway = payments.Gateways.Want(payment.GatewayKey{Tenant: c.Tenant, Gateway: f.Gateway})
	if c.money = nil; f.TransactionID != "" {
		c.money = payments.Transactions.Want(payment.TransactionKey{Tenant: c.Tenant, Gateway: f.Gateway,
			ID: f.TransactionID})
	}
	tx.Machines().Want(paymentInstance(k))
	tx.openParts()
	c.accepted.order, c.transfer.command = nil, nil
	switch c.Resolution {
	case payment.GiveBack:
		if c.refund == nil {
			c.refund = &RefundPayment{Caller: c.Caller, RefundKey: payment.RefundKey{RefundNo: c.RefundNo},
				OutTradeNo: f.OutTradeNo, Reason: c.Note, flagged: flaggedMoney{flagID: c.ID,
					transaction: payment.TransactionKey{Tenant: c.Tenant, Gateway: f.Gateway, ID: f.TransactionID}}}
			c.refund.hold.account = f.Account
		}
		c.refund.Need(tx)
		return
	case payment.WriteOff:
		c.needTransfer(tx, c.Target)
	case payment.Accept:
		tx.Orders().WantOfPayment(k.Tenant, k.OutTradeNo, func(o *order.Order) {
			c.accepted.order = tx.Orders().Wanted(o.Key)
			tx.Machines().Want(instanceOf(o))
			tx.nameParts(o)
			c.accepted.others.need(tx, payment.OrderKey(o.Key))
			c.expectOrder(o.Key)
			c.orders[o.Key] = *o // as in paidNotice
		})
		if c.accepted.payee != "" {
			c.needTransfer(tx, c.accepted.payee)
		}
	}
	c.consequences.need(tx)
}

// needTransfer names the accounts of the transfer that moves the money.
func (c *ResolveFlag) needTransfer(tx *Tx, to string) {
	f, from := c.flag, c.flag.Account
	if from == "" { // it was not posted: it comes from the gateway, or, given back, it goes there
		if from = c.transfer.clearing; f.Kind == payment.UnknownRefund {
			from, to = to, from
		}
	}
	if f.Asset == "" || f.Amount.IsZero() || from == "" || to == "" || from == to {
		return
	}
	c.transfer.command = &ledger.TransferCommand{Caller: c.Caller, TransferParams: ledger.TransferParams{
		BizNo: "flag/" + strconv.FormatInt(c.ID, 10), Type: paymentTransfer, Postings: []ledger.Posting{{From: from,
			To: to, Asset: f.Asset, Amount: amount.NewDecimal(f.Amount, f.Scale)}}}}
	c.transfer.command.Need(tx.Ledger())
}

// Apply resolves the flag. Returns faults FLAG_NOT_FOUND, FLAG_RESOLVED, ORDER_NOT_PAYABLE, GATEWAY_NOT_FOUND,
// FIELD_INVALID, and those of the ledger and of RefundPayment.
func (c *ResolveFlag) Apply(tx *Tx) (any, error) {
	if !c.row.Exists {
		return nil, payment.FlagNotFound.New("there is no flag %d", c.ID).With("flag_id", c.ID).
			WithField("flag_id", "must be the id of a flag that exists")
	}
	f := &c.row.Value
	if f.Resolution != "" {
		return c.repeat(f)
	}
	if f.Kind.OfRefund() && c.Resolution != payment.WriteOff {
		return nil, fault.InvalidField("resolution", "must be RESOLUTION_WRITE_OFF: the flag is of a refund")
	}
	if c.flag == nil {
		found := *f
		c.flag = &found
		return nil, commit.ErrMoreRows
	}
	var err error
	switch c.Resolution {
	case payment.GiveBack:
		err = c.giveBack(tx)
	case payment.WriteOff:
		err = c.writeOff(tx)
	case payment.Accept:
		err = c.accept(tx)
	}
	if err != nil {
		return nil, err
	}
	x := payment.Resolved{Resolution: c.Resolution, Target: c.Target, RefundNo: c.RefundNo, Note: c.Note,
		Principal: c.Principal, RequestID: c.RequestID}
	return payment.FlagView{ID: c.ID, Flag: *tx.Payments().ResolveFlag(c.row, x)}, nil
}

func (c *ResolveFlag) repeat(f *payment.Flag) (any, error) {
	if f.Resolution == c.Resolution && f.Target == c.Target && f.RefundNo == c.RefundNo {
		return commit.Repeat{First: payment.FlagView{ID: c.ID, Flag: *f}}, nil
	}
	return nil, payment.FlagResolved.New("flag %d is resolved already: %s", c.ID, f.Resolution).With("flag_id", c.ID).
		With("resolution", string(f.Resolution)).With("principal", f.Principal).
		With("first_time", f.At.Format(time.RFC3339Nano)).With("first_request_id", f.Resolved.RequestID)
}

// move moves the money to an account, if the ledger has its asset.
func (c *ResolveFlag) move(tx *Tx, to string) error {
	g, err := payment.GatewayMustExist(c.gateway)
	if err != nil {
		return err
	}
	if c.flag.Account == "" && c.transfer.clearing != g.Clearing {
		c.transfer.clearing = g.Clearing // the next attempt names the accounts
		return commit.ErrMoreRows
	}
	if c.transfer.command == nil {
		if c.nothingToMove() {
			return nil
		}
		if c.flag.Asset == "" {
			return fault.InvalidField("resolution",
				"must be RESOLUTION_REFUND: the ledger has no asset for its currency")
		}
		return fault.InvalidField("account", "must be another account: the transfer would debit and credit this one")
	}
	if _, err := c.transfer.command.Apply(tx.Ledger()); err != nil {
		return fault.Rename(err, func(string) string { return "account" })
	}
	if c.money != nil && c.money.Exists && !c.flag.Kind.OfRefund() {
		tx.Payments().Transactions.Change(c.money).Account = to
	}
	return nil
}

// nothingToMove reports whether a write-off has no money to move: the amount is 0, or a refund's currency has no asset.
func (c *ResolveFlag) nothingToMove() bool {
	f := c.flag
	return f.Amount.IsZero() || f.Asset == "" && f.Kind.OfRefund()
}

// giveBack requests the refund of the money.
func (c *ResolveFlag) giveBack(tx *Tx) error {
	if c.refund.refund.Exists {
		return c.refund.refund.Value.Differs([]string{"refund_no"})
	}
	_, err := c.refund.Apply(tx)
	return err
}

// writeOff moves the money to an account.
func (c *ResolveFlag) writeOff(tx *Tx) error {
	if c.Target == c.gateway.Value.Suspense {
		return fault.InvalidField("account", "must not be the suspense account: flagged money is on it")
	}
	return c.move(tx, c.Target)
}

// accept pays the order of the flag.
func (c *ResolveFlag) accept(tx *Tx) error {
	if !c.accepted.payment.Exists || c.accepted.order == nil {
		return payment.NotPayable.New("the flag has no order to pay").With("out_trade_no", c.flag.OutTradeNo).
			With("state", "")
	}
	o, p := &c.accepted.order.Value, &c.accepted.payment.Value
	v, err := tx.viewOrder(&c.consequences, c.accepted.order, c.Caller)
	if err != nil {
		return err
	}
	paid, err := c.accepted.others.paid(tx, payment.OrderKey(o.Key))
	if err != nil {
		return err
	}
	to := tx.payTarget(o)
	if paid != nil || to == "" || p.Gateway != c.flag.Gateway ||
		!tx.Machines().Allows(paymentInstance(p.Key), machine.PaymentSucceeded, machine.ByFlow) {
		return notPayable(&v)
	}
	if why := c.unacceptable(p); why != "" {
		return fault.InvalidField("resolution", "must not be RESOLUTION_ACCEPT: %s", why)
	}
	if c.accepted.payee != p.Payee {
		c.accepted.payee = p.Payee
		return commit.ErrMoreRows
	}
	for _, m := range []*machine.MoveCommand{
		movePayment(c.Caller, paymentInstance(p.Key), machine.PaymentSucceeded, c.flag.TransactionID),
		movePayment(c.Caller, instanceOf(o), to, p.OutTradeNo)} {
		m.Need(tx.Machines())
		if _, err := c.consequences.run(tx, m.Apply); err != nil {
			return err
		}
	}
	tx.Payments().Change(c.accepted.payment).TransactionID = c.flag.TransactionID
	return c.move(tx, p.Payee)
}

// unacceptable returns why the money cannot pay the order of the flag; empty: it can.
func (c *ResolveFlag) unacceptable(p *payment.Payment) string {
	switch {
	case c.flag.Amount.IsZero():
		return "the amount of the flag is 0"
	case c.flag.Account == p.Payee:
		return "the payee of the order is the suspense account"
	case c.money != nil && c.money.Exists && c.money.Value.Remaining().IsZero():
		return "the gateway has given the money back"
	}
	return ""
}
