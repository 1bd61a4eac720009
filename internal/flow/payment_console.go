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

// needsQuery reports whether the gateway has to be asked how a refund ended: the notice does not say it, and no call at
// the gateway is due, because RefundPayment did not ask for the refund, or because it is decided.
func (c *ApplyNotice) needsQuery(tx *Tx) bool {
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

// unknownRefund applies a notice about a refund that no call requested: a console refund.
func (c *ApplyNotice) unknownRefund(tx *Tx) (any, error) {
	failed := c.Kind == gateway.RefundFailed
	if !failed && c.Kind != gateway.Refunded {
		s := c.record(tx, payment.VerdictKnown, "there is no such refund")
		s.NeedsQuery = c.needsQuery(tx)
		return s, nil
	}
	r, err := c.consoleRefund(tx)
	switch {
	case err != nil:
		return nil, err
	case failed && c.Foreign != "":
		return c.record(tx, payment.VerdictKnown, "the notice names another "+c.Foreign), nil
	case r != nil:
		return c.updateConsoleRefund(tx, r)
	case c.RefundNo == "" && c.alias != nil && c.alias.Exists: // it is the gateway's id of a refund of ours
		return c.record(tx, payment.VerdictKnown, "the refund is known"), nil
	case failed && c.alias == nil:
		return c.record(tx, payment.VerdictKnown, "there is no such refund"), nil
	}
	return c.addConsoleRefund(tx)
}

// consoleRefund returns the recorded console refund that the notice names, or nil if there is none yet.
func (c *ApplyNotice) consoleRefund(tx *Tx) (*payment.ConsoleRow, error) {
	var ids []int64
	for _, name := range c.consoleNames() {
		switch {
		case name == nil || !name.Exists:
		case !name.Found:
			return nil, commit.ErrLater // another command of this batch records it
		default:
			ids = append(ids, name.Value.ID)
		}
	}
	for _, id := range ids {
		r := tx.Payments().KnownConsole(payment.ConsoleKey{Tenant: c.Tenant, ID: id})
		if r == nil {
			c.console.ids = ids
			return nil, commit.ErrMoreRows
		}
		if r.Exists {
			return r, nil
		}
	}
	return nil, nil // no name, or that of a refund of ours
}

// addConsoleRefund records a new console refund and flags its amount.
func (c *ApplyNotice) addConsoleRefund(tx *Tx) (any, error) {
	money, id, err := c.refundedTransaction(tx)
	if err != nil {
		return nil, err
	}
	x := payment.ConsoleRefund{Gateway: c.Gateway, RefundNo: c.RefundNo, GatewayRefundID: c.GatewayRefundID,
		OutTradeNo: c.OutTradeNo, TransactionID: id, Failed: c.Kind == gateway.RefundFailed}
	x.Unit, x.Amount = c.unit(tx)
	x.NoticedAt = c.latestTime(tx, time.Time{})
	var s NoticeResult
	if x.Failed {
		s = c.record(tx, payment.VerdictKnown, "there is no such refund")
	} else {
		detail := c.describeConsoleRefund()
		s = c.record(tx, payment.VerdictFlagged, detail)
		x.FlagID = c.flagConsole(tx, c.notice.Value.ID, &x, x.Amount, detail)
	}
	tx.Payments().AddConsole(c.notice, x)
	c.nameConsole(tx, c.notice.Value.ID)
	if money != nil && money.Exists {
		t := tx.Payments().ChangeMoney(money)
		t.AddExtra(x.Of(t))
	}
	return s, nil
}

// describeConsoleRefund returns the detail of the flag of a new console refund.
func (c *ApplyNotice) describeConsoleRefund() string {
	r := c.refund.row
	if r == nil || !r.Exists {
		return "the gateway gave it back, and no refund asked for it"
	}
	if x := &r.Value; c.Currency != "" && c.Currency != x.Currency {
		return "the gateway gave back " + c.Currency + " for refund " + c.RefundNo + ", which asked for " + x.Currency
	}
	return "the gateway gave it back for refund " + c.RefundNo + ", which is of payment " + r.Value.OutTradeNo
}

// unit returns the unit and the amount of the notice.
func (c *ApplyNotice) unit(tx *Tx) (payment.Unit, amount.Int) {
	n, scale := c.minor(tx)
	return payment.Unit{Currency: c.Currency, Asset: c.knownAsset(tx), Scale: scale}, n
}

// latestTime returns the later of the time of this notice and an earlier notice's. The clock of another merchant's
// gateway account does not count.
func (c *ApplyNotice) latestTime(tx *Tx, before time.Time) time.Time {
	at := earlier(c.At, tx.Payments().Now.Add(maxAhead)).Truncate(time.Microsecond)
	if c.Foreign != "" || at.Before(before) {
		return before
	}
	return at
}

// updateConsoleRefund applies a notice about a known console refund. The latest notice counts, by the gateway's clock.
func (c *ApplyNotice) updateConsoleRefund(tx *Tx, r *payment.ConsoleRow) (any, error) {
	x := &r.Value
	if c.Callback && !c.At.IsZero() && c.At.Before(x.NoticedAt) {
		s := c.record(tx, payment.VerdictKnown, "the gateway has said something later")
		c.nameConsole(tx, r.Key.ID)
		return s, nil
	}
	next := *x
	next.NoticedAt = c.latestTime(tx, x.NoticedAt)
	if next.Failed = c.Kind == gateway.RefundFailed; !next.Failed && !c.Amount.Coef.IsZero() {
		if c.Currency != "" && c.Currency != x.Currency {
			next.Unit, next.Amount = c.unit(tx)
		} else {
			next.Amount = c.Amount.MinorUp(x.Scale)
		}
	}
	if next.Failed == x.Failed && next.Unit == x.Unit && next.Amount == x.Amount {
		if !next.NoticedAt.Equal(x.NoticedAt) {
			tx.Payments().ChangeConsole(r).NoticedAt = next.NoticedAt
		}
		s := c.record(tx, payment.VerdictKnown, "the refund is known")
		c.nameConsole(tx, r.Key.ID)
		return s, nil
	}
	if x.Reflagged {
		return nil, commit.ErrLater // another call of this batch has raised a flag about it
	}
	if flag := (payment.FlagKey{Tenant: c.Tenant, ID: x.FlagID}); flag.ID != 0 && tx.Payments().KnownFlag(flag) == nil {
		c.console.flag = flag.ID
		return nil, commit.ErrMoreRows
	}
	money, err := c.transactionsOf(tx, x)
	if err != nil {
		return nil, err
	}
	return c.changeConsoleRefund(tx, r, next, money), nil
}

// changeConsoleRefund records a new outcome or amount of a console refund. The sum of its flags is the amount given
// back: an open flag is withdrawn, and a new flag has the difference to the flags that a person has resolved.
func (c *ApplyNotice) changeConsoleRefund(tx *Tx, r *payment.ConsoleRow, next payment.ConsoleRefund,
	money []*payment.TransactionRow) NoticeResult {
	was, detail := r.Value, c.describeChange(&r.Value, &next)
	resolved := was.GivenBack()
	last := tx.Payments().KnownFlag(payment.FlagKey{Tenant: c.Tenant, ID: was.FlagID})
	if last != nil && last.Value.Resolution == "" {
		resolved, _ = resolved.Sub(last.Value.TooMuch())
		tx.Payments().ResolveFlag(last, payment.Resolved{Resolution: payment.Withdrawn, Note: detail,
			Principal: c.Principal, RequestID: c.RequestID})
	}
	flagged := false
	if next.Unit != was.Unit && !resolved.IsZero() { // the amount flagged in the other unit was not given back
		c.flagConsole(tx, r.Key.ID, &was, resolved.Neg(), detail)
		resolved, flagged = amount.Int{}, true
	}
	unknown := !next.Failed && next.Amount.IsZero()
	if n, _ := next.GivenBack().Sub(resolved); !n.IsZero() || unknown {
		next.FlagID, flagged = c.flagConsole(tx, r.Key.ID, &next, n, detail), true
	}
	next.Reflagged = true
	*tx.Payments().ChangeConsole(r) = next
	verdict := payment.VerdictApplied
	if flagged {
		verdict = payment.VerdictFlagged
	}
	s := c.record(tx, verdict, detail)
	c.nameConsole(tx, r.Key.ID)
	for _, row := range money {
		if row.Exists && row.Key.Gateway == c.Gateway {
			t := tx.Payments().ChangeMoney(row)
			t.ExtraRefunded = excess(t.ExtraRefunded, was.Of(t))
			t.AddExtra(next.Of(t))
		}
	}
	return s
}

// describeChange returns the detail of the flag of a changed console refund.
func (c *ApplyNotice) describeChange(was, next *payment.ConsoleRefund) string {
	detail := "the refund, which no call asked for, "
	switch {
	case next.Failed:
		detail += "failed after it had succeeded"
	case was.Failed:
		detail += "succeeded after it had failed"
	default:
		detail = fmt.Sprintf("the gateway gave back %s %s, and had said %s %s", amount.Format(next.Amount, next.Scale),
			next.Currency, amount.Format(was.Amount, was.Scale), was.Currency)
	}
	if c.Code != "" {
		detail += ": " + c.Code
	}
	return detail
}

// flagConsole raises a flag about a console refund and returns its id. n is the surplus that the gateway gave back or,
// if negative, the shortfall.
func (c *ApplyNotice) flagConsole(tx *Tx, id int64, x *payment.ConsoleRefund, n amount.Int, detail string) int64 {
	kind := payment.UnknownRefund
	if n.Sign() < 0 {
		kind, n = payment.RefundReturned, n.Neg()
	}
	f := payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway, TransactionID: x.TransactionID,
		OutTradeNo: x.OutTradeNo, Currency: x.Currency, Asset: x.Asset, Scale: x.Scale, Amount: n, AboutConsole: id,
		RequestID: c.RequestID}
	if x.OutTradeNo == c.OutTradeNo { // else the notice names another payment
		f.OrderNo = c.row.Value.OrderNo
	}
	return tx.Payments().Raise(c.Tenant, f)
}
