package flow

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// console has the rows of a console refund that an earlier attempt found to be needed.
type console struct {
	ids         []int64  // of console refunds that have one of its names
	flag        int64    // the latest flag about it; 0: none
	transaction string   // number of the refunded transaction
	listed      string   // payment whose transactions are all needed; empty: none
	guards      []string // other payments: the lock on their instances covers the refund and its transaction
}

// need names the refund, its flag, the transaction, and the instances that are locked for them.
func (c console) need(tx *Tx, k payment.GatewayKey) {
	for _, id := range c.ids {
		tx.Payments().WantConsole(payment.ConsoleKey{Tenant: k.Tenant, ID: id})
	}
	if c.flag != 0 {
		tx.Payments().WantFlag(payment.FlagKey{Tenant: k.Tenant, ID: c.flag})
	}
	if c.listed != "" {
		tx.Payments().WantMoney(payment.Key{Tenant: k.Tenant, OutTradeNo: c.listed})
	}
	if c.transaction != "" {
		tx.Payments().WantTransaction(payment.TransactionKey{Tenant: k.Tenant, Gateway: k.Gateway, ID: c.transaction})
	}
	for _, number := range c.guards {
		tx.Machines().Want(paymentInstance(payment.Key{Tenant: k.Tenant, OutTradeNo: number}))
	}
}

// transactionOfPayment returns the refunded transaction if the notice does not name it: the one that paid, or else the
// first of the payment.
func (c *ApplyNotice) transactionOfPayment(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	paid := c.row.Value.TransactionID
	if c.row.Value.Gateway != c.Gateway {
		paid = ""
	}
	if c.console.listed != c.OutTradeNo || c.console.transaction != paid {
		c.console.listed, c.console.transaction = c.OutTradeNo, paid // the next attempt names both
		return nil, "", commit.ErrMoreRows
	}
	if paid != "" {
		k := payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: paid}
		if r := tx.Payments().KnownTransaction(k); r.Exists && r.Value.OutTradeNo == c.OutTradeNo {
			return r, paid, nil
		}
	}
	for _, r := range tx.Payments().Money(c.row.Key) {
		if r.Key.Gateway == c.Gateway {
			return r, r.Key.ID, nil
		}
	}
	return nil, "", nil
}

// refundedTransaction returns the transaction that the notice refunds, and its number; empty: none is known.
func (c *ApplyNotice) refundedTransaction(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	if c.TransactionID == "" {
		return c.transactionOfPayment(tx)
	}
	money, err = c.transactionByID(tx, c.TransactionID)
	return money, c.TransactionID, err
}

// transactionByID returns a transaction and locks its payment; nil: the number is empty. The transaction may not exist
// yet: a gateway may report the refund first.
func (c *ApplyNotice) transactionByID(tx *Tx, id string) (*payment.TransactionRow, error) {
	if id == "" {
		return nil, nil
	}
	money := tx.Payments().KnownTransaction(payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: id})
	if money == nil {
		c.console.transaction = id // the next attempt names it
		return nil, commit.ErrMoreRows
	}
	if !money.Exists {
		return money, nil
	}
	return money, c.lockPayment(tx, money.Value.OutTradeNo)
}

// lockPayment asks for a run that locks the instance of a payment, if this one has not.
func (c *ApplyNotice) lockPayment(tx *Tx, number string) error {
	if tx.Machines().Known(paymentInstance(payment.Key{Tenant: c.Tenant, OutTradeNo: number})) != nil {
		return nil
	}
	c.console.guards = append(c.console.guards, number)
	return commit.ErrMoreRows
}

// transactionsOf returns the transactions that a recorded console refund may refund: the one that it names, or all of
// its payment.
func (c *ApplyNotice) transactionsOf(tx *Tx, x *payment.ConsoleRefund) (rows []*payment.TransactionRow, err error) {
	if err := c.lockPayment(tx, x.OutTradeNo); err != nil {
		return nil, err
	}
	if x.TransactionID != "" {
		money, err := c.transactionByID(tx, x.TransactionID)
		return []*payment.TransactionRow{money}, err
	}
	if c.console.listed != x.OutTradeNo {
		c.console.listed = x.OutTradeNo
		return nil, commit.ErrMoreRows
	}
	return tx.Payments().Money(payment.Key{Tenant: c.Tenant, OutTradeNo: x.OutTradeNo}), nil
}
