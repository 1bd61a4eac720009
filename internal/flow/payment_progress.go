package flow

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// declined notes a decline: the payer may try again, with the submit token too.
func (c *SettlePayment) declined(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if state == machine.PaymentDeclined || !payment.IsOpen(state) {
		return c.record(tx, payment.Known, "the payment is "+state), nil
	}
	if hash := c.row.Value.TokenHash; hash != nil && c.token == nil {
		c.spent = hash
		return nil, commit.ErrMoreRows
	}
	if err := c.move(tx, machine.PaymentDeclined); err != nil {
		return nil, err
	}
	if c.token != nil {
		tx.Tokens().Reopen(c.token)
	}
	c.failure(tx)
	tx.Payments().CallPayment(c.row.Key, c.Gateway, payment.Query, 4*pollAfter)
	return c.record(tx, payment.Applied, ""), nil
}

func (c *SettlePayment) failure(tx *Tx) {
	p := tx.Payments().Change(c.row)
	p.FailureCode, p.FailureText = c.Code, c.Text
}

// closed notes that the payment cannot be paid any more.
func (c *SettlePayment) closed(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if !payment.IsOpen(state) {
		c.endCalls(tx) // the gateway may have been asked to close it again
		return c.record(tx, payment.Known, "the payment is "+state), nil
	}
	if err := c.move(tx, machine.PaymentClosed); err != nil {
		return nil, err
	}
	if c.Code != "" {
		c.failure(tx)
	}
	tx.Payments().Change(c.row).Decided = true
	c.endCalls(tx)
	return c.record(tx, payment.Applied, ""), nil
}

// pending notes that the gateway knows the payment.
func (c *SettlePayment) pending(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if state == machine.PaymentClosed { // the submission was on its way when the payment was closed
		tx.Payments().CallPayment(c.row.Key, c.Gateway, payment.Close, 0)
	}
	if state != machine.PaymentCreated && state != machine.PaymentDeclined {
		return c.record(tx, payment.Known, "the payment is "+state), nil
	}
	if _, err := tx.viewOrder(&c.entailed, c.order, c.Caller); err != nil {
		return nil, err
	}
	if err := c.move(tx, machine.PaymentSubmitted); err != nil {
		return nil, err
	}
	p := tx.Payments().Change(c.row)
	if p.TransactionID == "" {
		p.TransactionID = c.TransactionID
	}
	call, after := payment.Query, pollAfter
	if tx.payTarget(&c.order.Value) == "" {
		call, after = payment.Close, 0 // the order has ended meanwhile
	}
	tx.Payments().CallPayment(c.row.Key, c.Gateway, call, after)
	s := c.record(tx, payment.Applied, "")
	if c.Credential != nil {
		v, err := tx.viewPayment(c.row.Key)
		if err != nil {
			return nil, err
		}
		s.Submitted = &v
	}
	return s, nil
}
