package flow

import (
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// given is what the gateway says that it gave back for a refund.
func (c *SettlePayment) given(x *payment.Refund) amount.Int {
	n, err := c.Amount.Minor(x.Scale)
	if c.Kind != gateway.Refunded || err != nil || n.IsZero() {
		return x.Amount // it does not say
	}
	return n
}

// difference flags what the gateway gave back too much, or too little. The ledger has given back what was asked for.
func (c *SettlePayment) difference(tx *Tx, x *payment.Refund, given amount.Int) Settled {
	kind := payment.UnknownRefund
	n, _ := given.Sub(x.Amount)
	if n.Sign() < 0 {
		kind, n = payment.RefundReturned, n.Neg()
	}
	detail := "the gateway gave back " + amount.Format(given, x.Scale) + " for refund " + c.RefundNo +
		", which asked for " + amount.Format(x.Amount, x.Scale)
	s, _ := c.doubt(tx, x, kind, n, detail)
	return s
}

// doubt raises a flag about a refund, and returns its id.
func (c *SettlePayment) doubt(tx *Tx, x *payment.Refund, kind payment.FlagKind, n amount.Int, detail string) (Settled,
	int64) {
	s := c.record(tx, payment.Flagged, detail)
	return s, tx.Payments().Raise(c.Tenant, payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway,
		TransactionID: x.TransactionID, OutTradeNo: x.OutTradeNo, OrderNo: c.row.Value.OrderNo, Currency: x.Currency,
		Asset: x.Asset, Scale: x.Scale, Amount: n, RequestID: c.RequestID})
}

// turned takes what the gateway says of a refund that is decided. What it said last counts. A flag has the difference
// from the state, which stays: it is withdrawn if the gateway returns to what it said before, or, if a person has
// resolved it, another flag is raised, of the contrary.
func (c *SettlePayment) turned(tx *Tx, x *payment.Refund, state string) (any, error) {
	back := state == machine.RefundSucceeded // as it said last
	var last *payment.FlagRow
	if x.Turned {
		return nil, commit.ErrLater // another call of this batch has raised the flag
	}
	if x.TurnFlagID != 0 {
		if last = tx.Payments().KnownFlag(payment.FlagKey{Tenant: c.Tenant, ID: x.TurnFlagID}); last == nil {
			found := *x
			c.refund.found = &found // the next run names it
			return nil, commit.ErrMoreRows
		}
		back = (last.Value.Kind == payment.UnknownRefund) != (last.Value.Resolution == payment.Withdrawn)
	}
	if c.Kind != gateway.Refunded && c.Kind != gateway.RefundFailed || back == (c.Kind == gateway.Refunded) {
		return c.record(tx, payment.Known, "the refund is "+state), nil
	}
	kind, detail := payment.UnknownRefund, "refund "+c.RefundNo+" succeeded after it had failed"
	if back {
		kind, detail = payment.RefundReturned, "refund "+c.RefundNo+" failed after it had succeeded"
	}
	if c.Code != "" {
		detail += ": " + c.Code
	}
	if last != nil && last.Value.Resolution == "" {
		tx.Payments().ResolveFlag(last, payment.Resolved{Resolution: payment.Withdrawn, Note: detail,
			Principal: c.Principal, RequestID: c.RequestID})
		return c.record(tx, payment.Applied, detail), nil
	}
	s, id := c.doubt(tx, x, kind, c.given(x), detail)
	changed := tx.Payments().ChangeRefund(c.refund.row)
	changed.TurnFlagID, changed.Turned = id, true
	return s, nil
}

// needsQuery reports whether the notice is about a refund that no call asked for, and does not say how that ended.
func (c *SettlePayment) needsQuery() bool {
	return c.Kind == gateway.RefundPending && c.row.Exists && c.refund.row != nil && !c.refund.row.Exists
}

// unknownRefund flags money that the gateway gave back though no refund asked for it, or not for as much.
func (c *SettlePayment) unknownRefund(tx *Tx) (any, error) {
	if c.Kind != gateway.Refunded {
		s := c.record(tx, payment.Known, "there is no such refund")
		s.NeedsQuery = c.needsQuery()
		return s, nil
	}
	if c.alias != nil && c.alias.Exists {
		return c.record(tx, payment.Known, "the refund is known"), nil
	}
	n, scale := c.minor(tx)
	detail := "the gateway gave it back, and no refund asked for it"
	if r := c.refund.row; r != nil && r.Exists {
		detail = "the gateway gave it back for refund " + c.RefundNo + ", which is of payment " + r.Value.OutTradeNo
		if c.Foreign != "" {
			detail = "the gateway gave it back for refund " + c.RefundNo + ", and names another " + c.Foreign
		}
	}
	s := c.record(tx, payment.Flagged, detail)
	if c.alias != nil {
		tx.Payments().AddAlias(c.alias, c.notice)
	}
	c.raise(tx, payment.UnknownRefund, detail, &payment.Transaction{Scale: scale, Amount: n})
	return s, nil
}
