package flow

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// given is what the gateway says that it gave back for a refund.
func (c *SettlePayment) given(x *payment.Refund) amount.Int {
	n := c.Amount.MinorUp(x.Scale)
	if c.Kind != gateway.Refunded || n.IsZero() {
		return x.Amount // it does not say
	}
	return n
}

// ownsRefund asks for a run that names what belongs to a refund, if this one has not.
func (c *SettlePayment) ownsRefund(tx *Tx, x *payment.Refund) error {
	turn := payment.FlagKey{Tenant: c.Tenant, ID: x.TurnFlagID}
	if tx.Payments().KnownTransaction(x.Transaction()) == nil || x.FlagID != 0 && c.refund.flag == nil ||
		x.TurnFlagID != 0 && tx.Payments().KnownFlag(turn) == nil {
		found := *x
		c.refund.found = &found
		return commit.ErrMoreRows
	}
	return nil
}

// decided notes what the gateway gave back for a refund that the notice has just decided.
func (c *SettlePayment) decided(tx *Tx, x *payment.Refund) Settled {
	c.noteTime(tx, x)
	if c.Kind == gateway.RefundFailed {
		return c.gives(tx, x, gift{countedBefore: x.Amount, detail: "refund " + c.RefundNo + " failed"})
	}
	g := gift{given: c.given(x), booked: x.Amount, countedBefore: x.Amount, counted: x.Amount}
	g.detail = "the gateway gave back " + amount.Format(g.given, x.Scale) + " for refund " + c.RefundNo +
		", which asked for " + amount.Format(x.Amount, x.Scale)
	if c.Refused != nil && x.Account != "" {
		g.booked = amount.Int{}
		g.detail = "the hold of refund " + c.RefundNo + " cannot be captured: " + c.Refused.Reason.Name + ": " +
			c.Refused.Message
	}
	return c.gives(tx, x, g)
}

// turned takes what the gateway says of a refund that is decided, or says with the name of another merchant. What it
// said last counts, by its clock; the state stays.
func (c *SettlePayment) turned(tx *Tx, x *payment.Refund, state string, foreign bool) (any, error) {
	g := gift{given: c.given(x), booked: x.Booked}
	switch {
	case c.Kind == gateway.RefundFailed:
		g.given = amount.Int{}
	case c.Kind != gateway.Refunded, !x.GivenBack.IsZero() && c.Amount.Coef.IsZero(): // it does not say
		g.given = x.GivenBack
	}
	if c.Callback && !c.At.IsZero() && c.At.Before(x.GivenAt) {
		return c.record(tx, payment.Known, "the gateway has said something later"), nil
	}
	if g.given == x.GivenBack {
		if ends := c.Kind == gateway.Refunded || c.Kind == gateway.RefundFailed; ends && !foreign {
			c.noteTime(tx, x)
		}
		s := c.record(tx, payment.Known, "the refund is "+state)
		s.NeedsQuery = c.needsQuery(tx)
		return s, nil
	}
	if err := c.ownsRefund(tx, x); err != nil {
		return nil, err
	}
	switch {
	case g.given.IsZero():
		g.detail = "refund " + c.RefundNo + " failed after it had succeeded"
	case foreign:
		g.detail = "the gateway gave back " + amount.Format(g.given, x.Scale) + " for refund " + c.RefundNo +
			", and names another " + c.Foreign
	case !x.GivenBack.IsZero():
		g.detail = fmt.Sprintf("the gateway gave back %s for refund %s, and had said %s", amount.Format(g.given, x.Scale),
			c.RefundNo, amount.Format(x.GivenBack, x.Scale))
	default:
		g.detail = "refund " + c.RefundNo + " succeeded after it had failed"
	}
	if c.Code != "" {
		g.detail += ": " + c.Code
	}
	if state != machine.RefundFailed {
		g.countedBefore, g.counted = x.Amount, x.Amount
	}
	if !foreign {
		c.noteTime(tx, x)
	}
	s := c.gives(tx, x, g)
	c.nameRefund(tx)
	return s, nil
}

// gift is what a gateway gave back for a refund, by a notice.
type gift struct {
	given, booked          amount.Int // as in payment.Refund, after the notice
	countedBefore, counted amount.Int // of the transaction, as given back by the refund, before the notice and after it
	detail                 string     // why that may differ
}

// gives notes what the gateway gave back for a refund. A flag has what that is more, or less, than what the ledger has
// given back for it, since the last flag that a person has resolved: an open one is withdrawn. If a refund has
// succeeded and neither has given anything back, a flag of nothing tells that the payer has not got his money.
func (c *SettlePayment) gives(tx *Tx, x *payment.Refund, g gift) Settled {
	n, _ := g.given.Sub(x.GivenBack)
	n, _ = n.Sub(over(g.booked, x.Booked))
	withdrawn := false
	if last := tx.Payments().KnownFlag(payment.FlagKey{Tenant: c.Tenant, ID: x.TurnFlagID}); last != nil &&
		last.Value.Resolution == "" {
		n, _ = n.Add(last.Value.TooMuch())
		tx.Payments().ResolveFlag(last, payment.Resolved{Resolution: payment.Withdrawn, Note: g.detail,
			Principal: c.Principal, RequestID: c.RequestID})
		withdrawn = true
	}
	t := tx.Payments().ChangeMoney(tx.Payments().KnownTransaction(x.Transaction()))
	t.ExtraRefunded, _ = t.ExtraRefunded.Sub(over(x.GivenBack, g.countedBefore))
	t.AddExtra(over(g.given, g.counted))
	nothing := g.given.IsZero() && g.booked.IsZero() && !g.counted.IsZero()
	changed := tx.Payments().ChangeRefund(c.refund.row)
	changed.GivenBack, changed.Booked = g.given, g.booked
	switch {
	case !n.IsZero() || nothing:
		return c.doubt(tx, x, n, g.detail)
	case withdrawn:
		return c.record(tx, payment.Applied, g.detail)
	}
	return c.record(tx, payment.Applied, "")
}

// maxAhead is how far the clock of a gateway may be ahead of the database's. Later times are cut to it: otherwise all
// that the gateway says after its clock was corrected would count as old.
const maxAhead = time.Minute

// noteTime notes when the gateway said so, also if it repeats what it had said before: what it said in between does not
// count, if it comes later.
func (c *SettlePayment) noteTime(tx *Tx, x *payment.Refund) {
	if at := c.toldAt(tx, x.GivenAt); !at.Equal(x.GivenAt) {
		tx.Payments().ChangeRefund(c.refund.row).GivenAt = at
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// over is what a is more than b.
func over(a, b amount.Int) amount.Int {
	n, _ := a.Sub(b)
	return amount.Greater(n, amount.Int{})
}

// doubt raises a flag about a refund: n is what its gateway gave back too much or, negative, too little.
func (c *SettlePayment) doubt(tx *Tx, x *payment.Refund, n amount.Int, detail string) Settled {
	kind := payment.UnknownRefund
	if n.Sign() <= 0 {
		kind, n = payment.RefundReturned, n.Neg()
	}
	s := c.record(tx, payment.Flagged, detail)
	changed := tx.Payments().ChangeRefund(c.refund.row)
	changed.TurnFlagID = tx.Payments().Raise(c.Tenant, payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway,
		TransactionID: x.TransactionID, OutTradeNo: x.OutTradeNo, OrderNo: c.row.Value.OrderNo, Currency: x.Currency,
		Asset: x.Asset, Scale: x.Scale, Amount: n, AboutRefund: x.RefundNo, RequestID: c.RequestID})
	changed.Turned = true
	return s
}
