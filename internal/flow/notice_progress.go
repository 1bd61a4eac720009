package flow

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/token"
)

// pollAfter is the wait before the first query of a pending payment or refund.
const pollAfter = 15 * time.Second

// progressNotice applies a notice about a payment that brings no money: it is pending, declined or closed.
type progressNotice struct {
	notice
	spent []byte // hash of the submit token of a declined payment, as an earlier attempt found it
	token *token.Row
}

// Need names the payment, its order, and the submit token that a decline opens again.
func (c *progressNotice) Need(tx *Tx) {
	if c.token = nil; c.spent != nil {
		c.token = tx.Tokens().WantHash(c.Tenant, c.spent)
	}
	c.need(tx, nil)
}

// Apply moves the payment, and schedules the next call about it.
func (c *progressNotice) Apply(tx *Tx) (any, error) {
	if c.isRepeat() {
		return c.repeated(), c.repeat(tx)
	}
	if !c.payment.Exists {
		return c.record(tx, payment.EffectKnown, "there is no such payment"), nil
	}
	if err := c.mustHaveOrder(); err != nil {
		return nil, err
	}
	if who := c.foreign(); who != "" {
		return c.record(tx, payment.EffectKnown, "the notice names another "+who), nil
	}
	c.keepCredential(tx)
	switch c.Kind {
	case gateway.Declined:
		return c.declined(tx)
	case gateway.Closed:
		return c.closed(tx)
	case gateway.Pending:
		return c.pending(tx)
	}
	return c.record(tx, payment.EffectKnown, "ledgerd does not handle such notices"), nil
}

// repeat applies a notice that was recorded before. Most change nothing.
func (c *progressNotice) repeat(tx *Tx) (err error) {
	answer := !c.Callback
	if !c.payment.Exists || c.foreign() != "" {
		return nil
	}
	switch {
	case c.Kind == gateway.Closed:
		_, err = c.closed(tx) // the payment was created since, or the gateway was asked to close it again
	case c.Kind == gateway.Declined && answer:
		_, err = c.declined(tx) // a second decline: the answer to the query equals that after the first one
	case c.Kind == gateway.Pending && answer && c.order != nil:
		c.keepCredential(tx) // the earlier answer may have had no credential, or that of another merchant
		_, err = c.pending(tx)
	}
	return err
}

// declined records a decline: the payer may try again, with the submit token too.
func (c *progressNotice) declined(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if state == machine.PaymentDeclined || !payment.IsOpen(state) {
		return c.record(tx, payment.EffectKnown, "the payment is "+state), nil
	}
	if hash := c.payment.Value.TokenHash; hash != nil && c.token == nil {
		c.spent = hash
		return nil, commit.ErrMoreRows
	}
	if err := c.move(tx, machine.PaymentDeclined); err != nil {
		return nil, err
	}
	if c.token != nil {
		tx.Tokens().Reopen(c.token)
	}
	c.recordFailure(tx)
	tx.Payments().CallPayment(c.payment.Key, c.Gateway, payment.Query, 4*pollAfter)
	return c.record(tx, payment.EffectApplied, ""), nil
}

func (c *progressNotice) recordFailure(tx *Tx) {
	p := tx.Payments().Change(c.payment)
	p.FailureCode, p.FailureText = c.Code, c.Text
}

// closed records that the payment cannot be paid any more.
func (c *progressNotice) closed(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if !payment.IsOpen(state) {
		if state == machine.PaymentClosed && c.Code != "" {
			c.recordFailure(tx)
		}
		c.endCalls(tx) // the gateway may have been asked to close it again
		return c.record(tx, payment.EffectKnown, "the payment is "+state), nil
	}
	if err := c.move(tx, machine.PaymentClosed); err != nil {
		return nil, err
	}
	if c.Code != "" {
		c.recordFailure(tx)
	}
	tx.Payments().Change(c.payment).Decided = true
	c.endCalls(tx)
	return c.record(tx, payment.EffectApplied, ""), nil
}

// pending records that the gateway knows the payment.
func (c *progressNotice) pending(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if state == machine.PaymentClosed { // the submission was under way when the payment was closed
		tx.Payments().CallPayment(c.payment.Key, c.Gateway, payment.Close, 0)
	}
	if state != machine.PaymentCreated && state != machine.PaymentDeclined {
		return c.record(tx, payment.EffectKnown, "the payment is "+state), nil
	}
	if _, err := tx.viewOrder(&c.consequences, c.order, c.Caller); err != nil {
		return nil, err
	}
	if err := c.move(tx, machine.PaymentSubmitted); err != nil {
		return nil, err
	}
	p := tx.Payments().Change(c.payment)
	p.FailureCode, p.FailureText = "", "" // of a decline
	if p.TransactionID == "" {
		p.TransactionID = c.TransactionID
	}
	call, after := payment.Query, pollAfter
	if tx.payTarget(&c.order.Value) == "" {
		call, after = payment.Close, 0 // the order has ended meanwhile
	}
	tx.Payments().CallPayment(c.payment.Key, c.Gateway, call, after)
	s := c.record(tx, payment.EffectApplied, "")
	if c.Credential != nil {
		v, err := tx.viewPayment(c.payment.Key)
		if err != nil {
			return nil, err
		}
		s.Submitted = &v
	}
	return s, nil
}
