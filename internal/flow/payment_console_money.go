package flow

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// console is what an earlier run found of a console refund.
type console struct {
	ids         []int64 // to which its names lead
	flag        int64   // last one about it; 0: none
	transaction string  // of which it gave money back: its number
	owner       string  // its payment, if the notice names another one: the instance of that guards the transaction
	listed      bool    // the notice names none: those of the payment are named
}

// need names the refund, its flag and the transaction, with the instance that guards that.
func (c console) need(tx *Tx, k payment.GatewayKey, number string) {
	for _, id := range c.ids {
		tx.Payments().WantConsole(payment.ConsoleKey{Tenant: k.Tenant, ID: id})
	}
	if c.flag != 0 {
		tx.Payments().WantFlag(payment.FlagKey{Tenant: k.Tenant, ID: c.flag})
	}
	if c.listed {
		tx.Payments().WantMoney(payment.Key{Tenant: k.Tenant, OutTradeNo: number})
	}
	if c.transaction != "" {
		tx.Payments().WantTransaction(payment.TransactionKey{Tenant: k.Tenant, Gateway: k.Gateway, ID: c.transaction})
	}
	if c.owner != "" {
		tx.Machines().Want(paymentInstance(payment.Key{Tenant: k.Tenant, OutTradeNo: c.owner}))
	}
}

// takenOfPayment is taken for a notice without a transaction: the one that paid, or else the first under its number.
func (c *SettlePayment) takenOfPayment(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	paid := c.row.Value.TransactionID
	if c.row.Value.Gateway != c.Gateway {
		paid = ""
	}
	if !c.console.listed || c.console.transaction != paid {
		c.console.listed, c.console.transaction = true, paid // the next run names it, and the first ones of the payment
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
	owner := ""
	if money != nil && money.Exists && money.Value.OutTradeNo != c.OutTradeNo {
		owner = money.Value.OutTradeNo
	}
	if money == nil || owner != "" && (c.console.transaction != id || c.console.owner != owner) {
		c.console.transaction, c.console.owner = id, owner // the next run names them
		return nil, commit.ErrMoreRows
	}
	return money, nil
}
