package flow

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// amountGivenBack returns the amount that the gateway gave back, by the notice: if it names none, the requested one.
func (n *NoticeParams) amountGivenBack(x *payment.Refund) amount.Int {
	given := n.Amount.MinorUp(x.Scale)
	if n.Kind != gateway.Refunded || given.IsZero() {
		return x.Amount
	}
	return given
}

// recordOutcome records the amount that was given back by a refund that this notice has ended.
func (c *refundNotice) recordOutcome(tx *Tx, x *payment.Refund) NoticeResult {
	c.recordTime(tx, x)
	if c.Kind == gateway.RefundFailed {
		return c.applyOutcome(tx, x, outcome{countedBefore: x.Amount, detail: "refund " + c.RefundNo + " failed"})
	}
	g := outcome{given: c.amountGivenBack(x), booked: x.Amount, countedBefore: x.Amount, counted: x.Amount}
	g.detail = "the gateway gave back " + amount.Format(g.given, x.Scale) + " for refund " + c.RefundNo +
		", which requested " + amount.Format(x.Amount, x.Scale)
	if c.Refused != nil && x.Account != "" {
		g.booked = amount.Int{}
		g.detail = "the hold of refund " + c.RefundNo + " cannot be captured: " + c.Refused.Reason.Name + ": " +
			c.Refused.Message
	}
	return c.applyOutcome(tx, x, g)
}

// changeOutcome applies a notice about a refund that has ended, or one that names another merchant. The latest notice
// counts, by the gateway's clock; the state of the refund stays.
func (c *refundNotice) changeOutcome(tx *Tx, x *payment.Refund, state string, foreign bool) (any, error) {
	g := outcome{given: c.amountGivenBack(x), booked: x.Booked}
	switch {
	case c.Kind == gateway.RefundFailed:
		g.given = amount.Int{}
	case c.Kind != gateway.Refunded, !x.GivenBack.IsZero() && c.Amount.Coef.IsZero(): // it names no amount
		g.given = x.GivenBack
	}
	if c.Callback && !c.At.IsZero() && c.At.Before(x.NoticedAt) {
		return c.record(tx, payment.EffectKnown, "the notice is older than the latest one"), nil
	}
	if g.given == x.GivenBack {
		if c.endsRefund() && !foreign {
			c.recordTime(tx, x)
		}
		s := c.record(tx, payment.EffectKnown, "the refund is "+state)
		s.NeedsQuery = c.needsQuery(tx)
		return s, nil
	}
	if err := c.refund.mustBeNamed(tx, x); err != nil {
		return nil, err
	}
	switch {
	case g.given.IsZero():
		g.detail = "refund " + c.RefundNo + " failed after it had succeeded"
	case foreign:
		g.detail = "the gateway gave back " + amount.Format(g.given, x.Scale) + " for refund " + c.RefundNo +
			", and names another " + c.Foreign
	case !x.GivenBack.IsZero():
		g.detail = fmt.Sprintf("the gateway gave back %s for refund %s after reporting %s",
			amount.Format(g.given, x.Scale), c.RefundNo, amount.Format(x.GivenBack, x.Scale))
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
		c.recordTime(tx, x)
	}
	s := c.applyOutcome(tx, x, g)
	c.addAlias(tx)
	return s, nil
}

// outcome is the outcome of a refund, by a notice.
type outcome struct {
	given, booked          amount.Int // as in payment.Refund, after the notice
	countedBefore, counted amount.Int // the refund's part of the transaction's refunded amount, before and after
	detail                 string     // of a flag about the difference
}

// applyOutcome records the amount given back by a refund. If it differs from the amount that the ledger has given back,
// a flag has the difference since the last flag that a person has resolved; an open flag is withdrawn. If a refund has
// succeeded and nothing was given back, a flag of 0 says that the payer has not got the money.
func (c *refundNotice) applyOutcome(tx *Tx, x *payment.Refund, g outcome) NoticeResult {
	n, _ := g.given.Sub(x.GivenBack)
	n, _ = n.Sub(excess(g.booked, x.Booked))
	withdrawn := false
	if last := tx.Payments().Flags.Wanted(payment.FlagKey{Tenant: c.Tenant, ID: x.OutcomeFlagID}); last != nil &&
		last.Value.Resolution == "" {
		n, _ = n.Add(last.Value.TooMuch())
		tx.Payments().ResolveFlag(last, payment.Resolved{Resolution: payment.Withdrawn, Note: g.detail,
			Principal: c.Principal, RequestID: c.RequestID})
		withdrawn = true
	}
	t := tx.Payments().Transactions.Change(tx.Payments().Transactions.Wanted(x.Transaction()))
	t.ExtraRefunded, _ = t.ExtraRefunded.Sub(excess(x.GivenBack, g.countedBefore))
	t.AddExtra(excess(g.given, g.counted))
	nothing := g.given.IsZero() && g.booked.IsZero() && !g.counted.IsZero()
	changed := tx.Payments().Refunds.Change(c.refund.row)
	changed.GivenBack, changed.Booked = g.given, g.booked
	switch {
	case !n.IsZero() || nothing:
		return c.flagRefund(tx, x, n, g.detail)
	case withdrawn:
		return c.record(tx, payment.EffectApplied, g.detail)
	}
	return c.record(tx, payment.EffectApplied, "")
}

// maxAhead is the most by which the clock of a gateway may be ahead of the database's. Later times are cut to it:
// otherwise, all notices sent after the clock was corrected would count as old.
const maxAhead = time.Minute

// recordTime records the time of the notice, even if the notice changes nothing: a later notice with an earlier time
// does not count.
func (c *refundNotice) recordTime(tx *Tx, x *payment.Refund) {
	if at := c.latestTime(tx, x.NoticedAt); !at.Equal(x.NoticedAt) {
		tx.Payments().Refunds.Change(c.refund.row).NoticedAt = at
	}
}

// latestTime returns the later of the time of this notice and an earlier notice's. The clock of another merchant's
// gateway account does not count.
func (c *notice) latestTime(tx *Tx, before time.Time) time.Time {
	at := earlier(c.At, tx.Payments().Now.Add(maxAhead)).Truncate(time.Microsecond)
	if c.Foreign != "" || at.Before(before) {
		return before
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// excess returns a - b, or 0 if b is greater.
func excess(a, b amount.Int) amount.Int {
	n, _ := a.Sub(b)
	return amount.Greater(n, amount.Int{})
}

// flagRefund raises a flag about a refund. n is the surplus that the gateway gave back or, if negative, the shortfall.
func (c *refundNotice) flagRefund(tx *Tx, x *payment.Refund, n amount.Int, detail string) NoticeResult {
	kind := payment.UnknownRefund
	if n.Sign() <= 0 {
		kind, n = payment.RefundReturned, n.Neg()
	}
	s := c.record(tx, payment.EffectFlagged, detail)
	changed := tx.Payments().Refunds.Change(c.refund.row)
	changed.OutcomeFlagID = tx.Payments().Raise(c.Tenant, payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway,
		TransactionID: x.TransactionID, OutTradeNo: x.OutTradeNo, OrderNo: c.payment.Value.OrderNo,
		Currency: x.Currency, Asset: x.Asset, Scale: x.Scale, Amount: n, AboutRefund: x.RefundNo,
		RequestID: c.RequestID})
	changed.Reflagged = true
	return s
}
