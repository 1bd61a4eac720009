package flow

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// unknownTTL is how long money for an unknown payment waits for CreatePayment.
const unknownTTL = 24 * time.Hour

// toSuspense flags money that does not pay the order, and posts it to the suspense account.
func (c *paidNotice) toSuspense(tx *Tx, kind payment.FlagKind, detail string) (any, error) {
	account, x := "", &c.posting
	if g := &c.accounts.row.Value; g.Suspense != "" && c.Asset != "" && !c.Unposted {
		if expected := c.accounts.asExpected(); !x.suspend || !expected {
			x.suspend = true // the next attempt names the account
			return nil, commit.ErrMoreRows
		}
		if x.transfer != nil {
			if _, err := x.transfer.Apply(tx.Ledger()); err != nil {
				return nil, err
			}
			account = g.Suspense
		}
	}
	if err := c.moveUnpaid(tx, kind); err != nil {
		return nil, err
	}
	s := c.record(tx, payment.EffectFlagged, detail)
	t := c.transaction(tx, account)
	tx.Payments().RecordTransaction(c.money, t)
	f := payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway, TransactionID: c.TransactionID,
		OutTradeNo: c.OutTradeNo, Currency: t.Currency, Asset: t.Asset, Scale: t.Scale, Amount: t.Amount,
		Account: t.Account, RequestID: c.RequestID}
	if c.payment.Exists {
		f.OrderNo = c.payment.Value.OrderNo
	}
	tx.Payments().Raise(c.Tenant, f)
	return s, nil
}

// moveUnpaid moves the payment to the state for money that does not pay its order. A payment that has paid its order
// does not move.
func (c *paidNotice) moveUnpaid(tx *Tx, kind payment.FlagKind) error {
	if c.payment.Exists && c.payment.Value.Gateway != c.Gateway {
		return nil // only notices of its own gateway move it
	}
	to := machine.PaymentSuspended
	if kind == payment.Late || kind == payment.SecondTransaction || kind == payment.UnknownNumber {
		to = machine.PaymentLate
	}
	if !tx.Machines().Allows(paymentInstance(c.payment.Key), to, machine.ByFlow) {
		return nil
	}
	if err := c.move(tx, to); err != nil || !c.payment.Exists {
		return err
	}
	c.recordPaid(tx)
	return nil
}

// unknownPayment records a notice about a payment that does not exist, and may be created later. Its money waits for
// CreatePayment.
func (c *paidNotice) unknownPayment(tx *Tx) (any, error) {
	const detail = "there is no such payment"
	if c.money == nil {
		return c.record(tx, payment.EffectKnown, detail), nil
	}
	if c.money.Exists {
		return c.record(tx, payment.EffectKnown, "the transaction is known"), nil
	}
	if !tx.Machines().Wanted(paymentInstance(c.payment.Key)).Exists {
		if _, err := c.consequences.run(tx, c.creation.Apply); err != nil {
			return nil, err
		}
		if err := c.move(tx, machine.PaymentUnexpected); err != nil {
			return nil, err
		}
		tx.Payments().CallPayment(c.payment.Key, c.Gateway, payment.FlagUnknown, unknownTTL)
		return c.record(tx, payment.EffectUnmatched, detail), nil
	}
	state, err := c.state(tx)
	switch {
	case err != nil:
		return nil, err
	case state == machine.PaymentUnexpected && c.recorded.Exists:
		return NoticeResult{Effect: payment.EffectUnmatched, Existed: true}, nil
	case state == machine.PaymentUnexpected:
		return c.record(tx, payment.EffectUnmatched, detail), nil
	}
	return c.toSuspense(tx, payment.UnknownNumber, detail) // the time to create it is over
}

// causeUnknown is the cause of the move of a payment that was not created in time, and has no money of its own.
const causeUnknown = "unknown_number"

// FlagUnknown flags the money of notices that came before their payment was created: when the time to create it is
// over, or when the payment has ended without that money. Its answer reports whether there was any.
type FlagUnknown struct {
	commit.Caller
	Key payment.Key

	consequences
	payment *payment.Row
	notices []*paidNotice // of the payment, as an earlier attempt found them
	// unposted: the suspense account cannot take the money, as an earlier attempt found, so that it is only flagged.
	unposted bool
}

// FlagUnknowns returns the submissions that flag the money of payments that were not created in time.
func FlagUnknowns(due []payment.DueFlag, requestID string) (commands []Submission) {
	for _, d := range due {
		caller := commit.Caller{Tenant: d.Tenant, Principal: requestID, RequestID: requestID}
		commands = append(commands, Submission{Tenant: d.Tenant, Rows: noticeRows,
			Command: &FlagUnknown{Caller: caller, Key: d.Key}})
	}
	return commands
}

// Need names the payment and its notices.
func (c *FlagUnknown) Need(tx *Tx) {
	c.payment = tx.Payments().Want(c.Key)
	tx.Machines().Want(paymentInstance(c.Key))
	tx.Payments().WantUnknown(c.Key)
	for _, n := range c.notices {
		n.Need(tx)
	}
	c.consequences.need(tx)
}

// Apply flags the money of each notice.
func (c *FlagUnknown) Apply(tx *Tx) (any, error) {
	if r := tx.Machines().Wanted(paymentInstance(c.Key)); !r.Exists {
		return false, nil
	}
	i, err := tx.Machines().StateOf(paymentInstance(c.Key), c.Caller)
	if err != nil || c.payment.Exists && payment.IsOpen(i.State) {
		return false, err // the payment's own calls apply the notices
	}
	if c.notices == nil {
		return c.findNotices(tx, i.State)
	}
	for _, n := range c.notices {
		if n.money == nil || n.money.Exists {
			continue
		}
		err := c.flag(tx, n)
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

// findNotices returns ErrMoreRows if there are notices: the next attempt flags their money. If there are none, it ends
// the task.
func (c *FlagUnknown) findNotices(tx *Tx, state string) (any, error) {
	for _, s := range tx.Payments().Unknown(c.Key) {
		c.notices = append(c.notices, &paidNotice{posting: posting{suspend: true}, notice: notice{Caller: c.Caller,
			NoticeParams: NoticeParams{Gateway: s.Gateway, Received: s.Received}}})
	}
	if c.notices != nil {
		return nil, commit.ErrMoreRows
	}
	if state != machine.PaymentUnexpected {
		tx.Payments().EndFlagUnknown(c.Key)
		return false, nil
	}
	// The transaction was flagged under another out_trade_no. The next attempt flags the notices that this batch
	// records.
	m := movePayment(c.Caller, paymentInstance(c.Key), machine.PaymentLate, causeUnknown)
	m.Need(tx.Machines())
	_, err := c.consequences.run(tx, m.Apply)
	return false, err
}

// flag flags the money of a notice.
func (c *FlagUnknown) flag(tx *Tx, n *paidNotice) error {
	if n.Unposted = c.unposted; n.Unposted {
		n.posting.suspend = false
	}
	kind, detail := payment.UnknownNumber, "it was not created within 24 hours"
	if c.payment.Exists {
		err := n.mustHaveOrder() // the payment may be newer than the look-up of its order
		if err != nil {
			return err
		}
		if kind, detail, err = n.mismatch(tx); err != nil {
			return err
		}
		if kind == "" {
			kind, detail = payment.Late, "it came before the payment, which was closed then"
		}
	}
	_, err := n.toSuspense(tx, kind, detail)
	return err
}
