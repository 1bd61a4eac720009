package flow

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// needNames names the second names of a notice that a refund succeeded, or will.
func (c *SettlePayment) needNames(tx *Tx) {
	c.alias, c.number, c.uncounted = nil, nil, nil
	if c.Kind != gateway.Refunded && c.Kind != gateway.RefundPending {
		return
	}
	g := payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway}
	name := c.OutTradeNo + "/" + c.RefundNo
	if c.Kind == gateway.Refunded && c.RefundNo != "" {
		c.number = tx.Payments().WantNotice(secondName(g, name))
	}
	if c.alias = c.number; c.GatewayRefundID != "" {
		name = c.GatewayRefundID
		c.alias = tx.Payments().WantNotice(secondName(g, name))
	}
	if c.alias != nil && c.Kind == gateway.Refunded {
		c.uncounted = tx.Payments().WantNotice(secondName(g, name+"/uncounted/"+c.Currency))
	}
}

// numberName is the second name of a notice about a refund by our number.
func numberName(g payment.GatewayKey, outTradeNo, refundNo string) payment.NoticeKey {
	return secondName(g, outTradeNo+"/"+refundNo)
}

func secondName(g payment.GatewayKey, name string) payment.NoticeKey {
	return payment.NoticeKey{Tenant: g.Tenant, Gateway: g.Gateway, ID: httpsend.Cut("unknown_refund/"+name, 256)}
}

// nameRefund gives the recorded notice its second name: another notice of the same refund may not have our number.
func (c *SettlePayment) nameRefund(tx *Tx) {
	if c.alias != nil && !c.alias.Exists {
		tx.Payments().AddAlias(c.alias, c.notice)
	}
}

// nameUnasked gives the recorded notice of a refund that no call asked for all its names: its number, too, which
// RefundPayment does not use then.
func (c *SettlePayment) nameUnasked(tx *Tx) {
	c.nameRefund(tx)
	if c.number != nil && !c.number.Exists {
		tx.Payments().AddAlias(c.number, c.notice)
	}
}

// needsQuery reports whether the gateway has to be asked how a refund ended: the notice does not say it, and no call at
// the gateway is due, because RefundPayment did not ask for the refund, or because it is decided.
func (c *SettlePayment) needsQuery(tx *Tx) bool {
	r, vague := c.refund.row, c.Callback && c.Amount.Coef.IsZero()
	if c.Kind != gateway.RefundPending || r == nil {
		return false
	}
	if !r.Exists {
		return c.row.Exists || vague
	}
	i, err := tx.instanceOfRow(refundInstance(r.Key), c.Caller)
	return vague && err == nil && (i.State == machine.RefundSucceeded || i.State == machine.RefundFailed)
}

// unknownRefund flags money that the gateway gave back though no refund asked for it, or not for as much.
func (c *SettlePayment) unknownRefund(tx *Tx) (any, error) {
	if c.Kind != gateway.Refunded {
		s := c.record(tx, payment.Known, "there is no such refund")
		s.NeedsQuery = c.needsQuery(tx)
		return s, nil
	}
	ours := c.refund.row != nil && c.refund.row.Exists
	if c.alias != nil && c.alias.Exists || !ours && c.number != nil && c.number.Exists {
		s := c.record(tx, payment.Known, "the refund is known")
		c.nameUnasked(tx) // it may be known under one name only
		return s, nil
	}
	money, id, err := c.taken(tx)
	if err != nil {
		return nil, err
	}
	n, scale := c.minor(tx)
	detail := "the gateway gave it back, and no refund asked for it"
	if r := c.refund.row; ours {
		detail = "the gateway gave it back for refund " + c.RefundNo + ", which is of payment " + r.Value.OutTradeNo
		if x := &r.Value; c.Currency != "" && c.Currency != x.Currency {
			detail = "the gateway gave back " + c.Currency + " for refund " + c.RefundNo + ", which asked for " +
				x.Currency
		}
	}
	known, counts := money != nil && money.Exists, ours || c.counts(money)
	if !counts && c.uncounted != nil && c.uncounted.Exists {
		return c.record(tx, payment.Known, "the refund is known, but not how much of the money is gone"), nil
	}
	s := c.record(tx, payment.Flagged, detail)
	if counts {
		c.nameUnasked(tx)
	} else if c.uncounted != nil {
		tx.Payments().AddAlias(c.uncounted, c.notice)
	}
	c.raise(tx, payment.UnknownRefund, detail, id, &payment.Transaction{Scale: scale, Amount: n})
	if known {
		t := tx.Payments().ChangeMoney(money)
		t.AddExtra(t.Extra(c.Amount, c.Currency))
	}
	return s, nil
}

// counts reports whether the notice says how much of the money is gone that no refund asked for. If not, a notice that
// does may follow.
func (c *SettlePayment) counts(money *payment.TransactionRow) bool {
	if money != nil && money.Exists {
		return !money.Value.Extra(c.Amount, c.Currency).IsZero()
	}
	return !c.Amount.Coef.IsZero() && (c.Asset == c.row.Value.Asset || !c.row.Exists)
}

// console is a transaction of which money was given back that no refund asked for, as an earlier run found it.
type console struct {
	transaction string // its number
	owner       string // its payment, if the notice names another one: the instance of that guards the transaction
	listed      bool   // the notice names none: those of the payment are named
}

// need names the transaction, and the instance that guards it.
func (c console) need(tx *Tx, k payment.GatewayKey, number string) {
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

// taken returns the transaction of which money was given back, and its number. Empty: none is known. It is not there
// yet if the gateway tells of the refund first.
func (c *SettlePayment) taken(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	if id = c.TransactionID; id == "" {
		return c.takenOfPayment(tx)
	}
	money = tx.Payments().KnownTransaction(payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: id})
	owner := ""
	if money != nil && money.Exists && money.Value.OutTradeNo != c.OutTradeNo {
		owner = money.Value.OutTradeNo
	}
	if found := (console{id, owner, c.console.listed}); money == nil || owner != "" && found != c.console {
		c.console = found // the next run names them
		return nil, "", commit.ErrMoreRows
	}
	return money, id, nil
}
