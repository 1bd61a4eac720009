package flow

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// declined notes a decline: the payer may try again, with the submit token too.
func (c *ApplyNotice) declined(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if state == machine.PaymentDeclined || !payment.IsOpen(state) {
		return c.record(tx, payment.VerdictKnown, "the payment is "+state), nil
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
	return c.record(tx, payment.VerdictApplied, ""), nil
}

func (c *ApplyNotice) failure(tx *Tx) {
	p := tx.Payments().Change(c.row)
	p.FailureCode, p.FailureText = c.Code, c.Text
}

// closed notes that the payment cannot be paid any more.
func (c *ApplyNotice) closed(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if !payment.IsOpen(state) {
		if state == machine.PaymentClosed && c.Code != "" {
			c.failure(tx)
		}
		c.endCalls(tx) // the gateway may have been asked to close it again
		return c.record(tx, payment.VerdictKnown, "the payment is "+state), nil
	}
	if err := c.move(tx, machine.PaymentClosed); err != nil {
		return nil, err
	}
	if c.Code != "" {
		c.failure(tx)
	}
	tx.Payments().Change(c.row).Decided = true
	c.endCalls(tx)
	return c.record(tx, payment.VerdictApplied, ""), nil
}

// paidElsewhere ends the calls about a payment of which its gateway says that a known transaction has paid it: it would
// say that for ever. One that is open is closed, since the transaction is of another payment.
func (c *ApplyNotice) paidElsewhere(tx *Tx) error {
	state, err := c.state(tx)
	if err != nil || state == machine.PaymentSucceeded || c.row.Value.Gateway != c.Gateway {
		return err
	}
	if payment.IsOpen(state) {
		if err := c.move(tx, machine.PaymentClosed); err != nil {
			return err
		}
		p := tx.Payments().Change(c.row)
		p.FailureCode, p.FailureText = "transaction_known", fmt.Sprintf("the gateway says that transaction %s has "+
			"paid it, which is of payment %s", c.TransactionID, c.money.Value.OutTradeNo)
		p.Decided = true
	}
	c.endCalls(tx)
	return nil
}

// pending notes that the gateway knows the payment.
func (c *ApplyNotice) pending(tx *Tx) (any, error) {
	state, err := c.state(tx)
	if err != nil {
		return nil, err
	}
	if state == machine.PaymentClosed { // the submission was on its way when the payment was closed
		tx.Payments().CallPayment(c.row.Key, c.Gateway, payment.Close, 0)
	}
	if state != machine.PaymentCreated && state != machine.PaymentDeclined {
		return c.record(tx, payment.VerdictKnown, "the payment is "+state), nil
	}
	if _, err := tx.viewOrder(&c.consequences, c.order, c.Caller); err != nil {
		return nil, err
	}
	if err := c.move(tx, machine.PaymentSubmitted); err != nil {
		return nil, err
	}
	p := tx.Payments().Change(c.row)
	p.FailureCode, p.FailureText = "", "" // of a decline
	if p.TransactionID == "" {
		p.TransactionID = c.TransactionID
	}
	call, after := payment.Query, pollAfter
	if tx.payTarget(&c.order.Value) == "" {
		call, after = payment.Close, 0 // the order has ended meanwhile
	}
	tx.Payments().CallPayment(c.row.Key, c.Gateway, call, after)
	s := c.record(tx, payment.VerdictApplied, "")
	if c.Credential != nil {
		v, err := tx.viewPayment(c.row.Key)
		if err != nil {
			return nil, err
		}
		s.Submitted = &v
	}
	return s, nil
}
