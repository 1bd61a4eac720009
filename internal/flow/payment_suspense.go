package flow

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// unknownTTL is how long money for an unknown payment waits for CreatePayment.
const unknownTTL = 24 * time.Hour

// toSuspense flags money that does not pay the order, and posts it to the suspense account.
func (c *ApplyNotice) toSuspense(tx *Tx, kind payment.FlagKind, detail string) (any, error) {
	account := ""
	if g := &c.gateway.Value; g.Suspense != "" && c.Asset != "" && !c.Unposted {
		if seen := c.seesAccounts(); !c.suspend || !seen {
			c.suspend = true // the next attempt names the account
			return nil, commit.ErrMoreRows
		}
		if c.transfer != nil {
			if _, err := c.transfer.Apply(tx.Ledger()); err != nil {
				return nil, err
			}
			account = g.Suspense
		}
	}
	if err := c.moveUnpaid(tx, kind); err != nil {
		return nil, err
	}
	s := c.record(tx, payment.VerdictFlagged, detail)
	t := c.transaction(tx, account)
	tx.Payments().RecordTransaction(c.money, t)
	c.flagMoney(tx, kind, detail, c.TransactionID, &t)
	return s, nil
}

// moveUnpaid moves the payment to the state for money that does not pay its order. A payment that has paid stays.
func (c *ApplyNotice) moveUnpaid(tx *Tx, kind payment.FlagKind) error {
	if c.row.Exists && c.row.Value.Gateway != c.Gateway {
		return nil // its own gateway decides
	}
	to := machine.PaymentSuspended
	if kind == payment.Late || kind == payment.SecondTransaction || kind == payment.UnknownNumber {
		to = machine.PaymentLate
	}
	if !tx.Machines().Allows(paymentInstance(c.row.Key), to, machine.ByFlow) {
		return nil
	}
	if err := c.move(tx, to); err != nil || !c.row.Exists {
		return err
	}
	c.ended(tx)
	return nil
}

// flagMoney raises a flag about a transaction.
func (c *ApplyNotice) flagMoney(tx *Tx, kind payment.FlagKind, detail, id string, t *payment.Transaction) {
	f := payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway, TransactionID: id,
		OutTradeNo: c.OutTradeNo, Currency: c.Currency, Asset: c.knownAsset(tx), Scale: t.Scale, Amount: t.Amount,
		Account: t.Account, RequestID: c.RequestID}
	if c.row.Exists {
		f.OrderNo = c.row.Value.OrderNo
	}
	tx.Payments().Raise(c.Tenant, f)
}

// unknownPayment records a notice about a payment that does not exist, and may be created later.
func (c *ApplyNotice) unknownPayment(tx *Tx) (any, error) {
	if c.Kind.Refund() {
		return c.unknownRefund(tx)
	}
	if c.Kind != gateway.Paid || c.money == nil {
		return c.record(tx, payment.VerdictKnown, "there is no such payment"), nil
	}
	if c.money.Exists {
		return c.record(tx, payment.VerdictKnown, "the transaction is known"), nil
	}
	k := paymentInstance(c.row.Key)
	if !tx.Machines().Known(k).Exists {
		if _, err := c.run(tx, c.birth.Apply); err != nil {
			return nil, err
		}
		if err := c.move(tx, machine.PaymentUnexpected); err != nil {
			return nil, err
		}
		tx.Payments().CallPayment(c.row.Key, c.Gateway, payment.FlagUnknown, unknownTTL)
		return c.record(tx, payment.VerdictUnknown, "there is no such payment"), nil
	}
	state, err := c.state(tx)
	switch {
	case err != nil:
		return nil, err
	case state == machine.PaymentUnexpected && c.notice.Exists:
		return NoticeResult{Verdict: payment.VerdictUnknown, Existed: true}, nil
	case state == machine.PaymentUnexpected:
		return c.record(tx, payment.VerdictUnknown, "there is no such payment"), nil
	}
	return c.toSuspense(tx, payment.UnknownNumber, "there is no such payment") // its time is over
}

// causeUnknown is the cause of the move of a payment that was not created in time, and has no money of its own.
const causeUnknown = "unknown_number"

// FlagUnknown flags the money of notices that came before their payment was created: when the time to create it is
// over, or when the payment has ended without that money. Its answer reports whether there was any.
type FlagUnknown struct {
	commit.Caller
	Key payment.Key

	consequences
	row   *payment.Row
	parts []*ApplyNotice // of its notices, as an earlier attempt found them
	// unposted: the suspense account cannot take the money, as an earlier attempt found, so that it is only flagged.
	unposted bool
}

// Need names the payment and its notices.
func (c *FlagUnknown) Need(tx *Tx) {
	c.row = tx.Payments().Want(c.Key)
	tx.Machines().Want(paymentInstance(c.Key))
	tx.Payments().WantUnknown(c.Key)
	for _, p := range c.parts {
		p.Need(tx)
	}
	c.need(tx)
}

// Apply flags the money of each notice.
func (c *FlagUnknown) Apply(tx *Tx) (any, error) {
	if r := tx.Machines().Known(paymentInstance(c.Key)); !r.Exists {
		return false, nil
	}
	i, err := tx.Machines().StateOf(paymentInstance(c.Key), c.Caller)
	if err != nil || c.row.Exists && payment.IsOpen(i.State) {
		return false, err // its call applies them
	}
	if c.parts == nil {
		for _, s := range tx.Payments().Unknown(c.Key) {
			c.parts = append(c.parts, &ApplyNotice{Caller: c.Caller, Gateway: s.Gateway, Received: s.Received,
				suspend: true})
		}
		if c.parts != nil {
			return nil, commit.ErrMoreRows
		}
		if i.State != machine.PaymentUnexpected {
			tx.Payments().EndFlagUnknown(c.Key)
			return false, nil
		}
		// The transaction was flagged under another out_trade_no. The next attempt flags the notices that this batch
		// records.
		m := movePayment(c.Caller, paymentInstance(c.Key), machine.PaymentLate, causeUnknown)
		m.Need(tx.Machines())
		_, err := c.run(tx, m.Apply)
		return false, err
	}
	for _, p := range c.parts {
		if p.money == nil || p.money.Exists {
			continue
		}
		err := c.flag(tx, p)
		f := fault.Of(err)
		if f != nil && !c.unposted && (f.Reason.Class == fault.Refusal || f.Reason.Class == fault.BadRequest) {
			c.unposted = true
			return nil, commit.ErrMoreRows
		}
		if err != nil {
			return nil, err
		}
	}
	return true, nil // notices may have come since the read: the scheduler repeats until there are none
}

// flag flags the money of a notice.
func (c *FlagUnknown) flag(tx *Tx, p *ApplyNotice) error {
	if p.Unposted = c.unposted; p.Unposted {
		p.suspend = false
	}
	kind, detail := payment.UnknownNumber, "it was not created within 24 hours"
	if c.row.Exists {
		var err error
		if kind, detail, err = p.problem(tx); err != nil {
			return err
		}
		if kind == "" {
			kind, detail = payment.Late, "it came before the payment, which was closed then"
		}
	}
	_, err := p.toSuspense(tx, kind, detail)
	return err
}
