package flow

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// console is what an earlier run found of a console refund.
type console struct {
	ids         []int64  // to which its names lead
	flag        int64    // last one about it; 0: none
	transaction string   // of which it gave money back: its number
	listed      string   // payment of which all transactions are named; empty: none
	guards      []string // other payments, whose instances guard the refund and its transaction
}

// need names the refund, its flag and the transaction, with the instance that guards that.
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

// takenOfPayment is taken for a notice without a transaction: the one that paid, or else the first under its number.
func (c *SettlePayment) takenOfPayment(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	paid := c.row.Value.TransactionID
	if c.row.Value.Gateway != c.Gateway {
		paid = ""
	}
	if c.console.listed != c.OutTradeNo || c.console.transaction != paid {
		c.console.listed, c.console.transaction = c.OutTradeNo, paid // the next run names it, and those of the payment
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

// taken returns the transaction of which money was given back, and its number. Empty: none is known.
func (c *SettlePayment) taken(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	if c.TransactionID == "" {
		return c.takenOfPayment(tx)
	}
	money, err = c.takenOf(tx, c.TransactionID)
	return money, c.TransactionID, err
}

// takenOf is taken for a transaction, which is not there yet if the gateway tells of the refund first. Nil: no number.
func (c *SettlePayment) takenOf(tx *Tx, id string) (*payment.TransactionRow, error) {
	if id == "" {
		return nil, nil
	}
	money := tx.Payments().KnownTransaction(payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: id})
	if money == nil {
		c.console.transaction = id // the next run names it
		return nil, commit.ErrMoreRows
	}
	if !money.Exists {
		return money, nil
	}
	return money, c.guard(tx, money.Value.OutTradeNo)
}

// guard asks for a run that locks the instance of a payment, if this one has not.
func (c *SettlePayment) guard(tx *Tx, number string) error {
	if tx.Machines().Known(paymentInstance(payment.Key{Tenant: c.Tenant, OutTradeNo: number})) != nil {
		return nil
	}
	c.console.guards = append(c.console.guards, number)
	return commit.ErrMoreRows
}

// takenBy returns the transactions of which a console refund that is known gave money back: one that it names, or those
// of its payment.
func (c *SettlePayment) takenBy(tx *Tx, x *payment.ConsoleRefund) (rows []*payment.TransactionRow, err error) {
	if err := c.guard(tx, x.OutTradeNo); err != nil {
		return nil, err
	}
	if x.TransactionID != "" {
		money, err := c.takenOf(tx, x.TransactionID)
		return []*payment.TransactionRow{money}, err
	}
	if c.console.listed != x.OutTradeNo {
		c.console.listed = x.OutTradeNo
		return nil, commit.ErrMoreRows
	}
	return tx.Payments().Money(payment.Key{Tenant: c.Tenant, OutTradeNo: x.OutTradeNo}), nil
}
