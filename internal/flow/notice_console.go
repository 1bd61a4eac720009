package flow

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// consoleNotice applies a notice with the outcome of a refund that no call requested: a console refund.
type consoleNotice struct {
	*notice
	own     *payment.RefundRow // the refund of ours that uses the number with other content; nil or not existing: none
	aliases *refundAliases
	rows    *consoleRows
}

// apply records the console refund, or what the notice changes about it.
func (c *consoleNotice) apply(tx *Tx) (any, error) {
	failed, alias := c.Kind == gateway.RefundFailed, c.aliases.refund
	r, err := c.find(tx)
	switch {
	case err != nil:
		return nil, err
	case failed && c.Foreign != "":
		return c.record(tx, payment.EffectKnown, "the notice names another "+c.Foreign), nil
	case r != nil:
		return c.update(tx, r)
	case c.RefundNo == "" && alias != nil && alias.Exists: // the gateway's id is of a refund of ours
		return c.record(tx, payment.EffectKnown, "the refund is known"), nil
	case failed && alias == nil:
		return c.record(tx, payment.EffectKnown, "there is no such refund"), nil
	}
	return c.add(tx)
}

// consoleAliases are the aliases of the console refund: by the gateway's id and by the number. If one of our refunds
// uses the number with other content, the console refund is found by number and currency instead.
func (c *consoleNotice) consoleAliases() []*payment.NoticeRow {
	if c.own != nil && c.own.Exists {
		return []*payment.NoticeRow{c.aliases.currency}
	}
	return []*payment.NoticeRow{c.aliases.refund, c.aliases.number}
}

// addAliases adds all aliases of a console refund, by which it is found. Its number is one of them, so RefundPayment
// cannot use that number. first is the id of its first notice.
func (c *consoleNotice) addAliases(tx *Tx, first int64) {
	for _, a := range c.consoleAliases() {
		if a != nil && !a.Exists {
			tx.Payments().AddName(a, first)
		}
	}
}

// find returns the recorded console refund that the notice names, or nil if there is none yet.
func (c *consoleNotice) find(tx *Tx) (*payment.ConsoleRow, error) {
	var ids []int64
	for _, a := range c.consoleAliases() {
		switch {
		case a == nil || !a.Exists:
		case !a.Found:
			return nil, commit.ErrLater // another command of this batch records it
		default:
			ids = append(ids, a.Value.ID)
		}
	}
	for _, id := range ids {
		r := tx.Payments().Consoles.Wanted(payment.ConsoleKey{Tenant: c.Tenant, ID: id})
		if r == nil {
			c.rows.ids = ids
			return nil, commit.ErrMoreRows
		}
		if r.Exists {
			return r, nil
		}
	}
	return nil, nil // no alias, or that of a refund of ours
}

// add records a new console refund and flags its amount.
func (c *consoleNotice) add(tx *Tx) (any, error) {
	money, id, err := c.refundedTransaction(tx)
	if err != nil {
		return nil, err
	}
	x := payment.ConsoleRefund{Gateway: c.Gateway, RefundNo: c.RefundNo, GatewayRefundID: c.GatewayRefundID,
		OutTradeNo: c.OutTradeNo, TransactionID: id, Failed: c.Kind == gateway.RefundFailed}
	x.Unit, x.Amount = c.amount(tx)
	x.NoticedAt = c.latestTime(tx, time.Time{})
	var s NoticeResult
	if x.Failed {
		s = c.record(tx, payment.EffectKnown, "there is no such refund")
	} else {
		detail := c.describe()
		s = c.record(tx, payment.EffectFlagged, detail)
		x.FlagID = c.flag(tx, c.recorded.Value.ID, &x, x.Amount, detail)
	}
	tx.Payments().AddConsole(c.recorded, x)
	c.addAliases(tx, c.recorded.Value.ID)
	if money != nil && money.Exists {
		t := tx.Payments().Transactions.Change(money)
		t.AddExtra(x.Of(t))
	}
	return s, nil
}

// describe returns the detail of the flag of a new console refund.
func (c *consoleNotice) describe() string {
	if c.own == nil || !c.own.Exists {
		return "the gateway gave it back, and no refund requested it"
	}
	x := &c.own.Value
	if c.Currency != "" && c.Currency != x.Currency {
		return "the gateway gave back " + c.Currency + " for refund " + c.RefundNo + ", which requested " + x.Currency
	}
	return "the gateway gave it back for refund " + c.RefundNo + ", which is of payment " + x.OutTradeNo
}

// update applies a notice about a known console refund. The latest notice counts, by the gateway's clock.
func (c *consoleNotice) update(tx *Tx, r *payment.ConsoleRow) (any, error) {
	x := &r.Value
	if c.Callback && !c.At.IsZero() && c.At.Before(x.NoticedAt) {
		s := c.record(tx, payment.EffectKnown, "the notice is older than the latest one")
		c.addAliases(tx, r.Key.ID)
		return s, nil
	}
	next := *x
	next.NoticedAt = c.latestTime(tx, x.NoticedAt)
	if next.Failed = c.Kind == gateway.RefundFailed; !next.Failed && !c.Amount.Coef.IsZero() {
		if c.Currency != "" && c.Currency != x.Currency {
			next.Unit, next.Amount = c.amount(tx)
		} else {
			next.Amount = c.Amount.MinorUp(x.Scale)
		}
	}
	if next.Failed == x.Failed && next.Unit == x.Unit && next.Amount == x.Amount {
		if !next.NoticedAt.Equal(x.NoticedAt) {
			tx.Payments().Consoles.Change(r).NoticedAt = next.NoticedAt
		}
		s := c.record(tx, payment.EffectKnown, "the refund is known")
		c.addAliases(tx, r.Key.ID)
		return s, nil
	}
	if x.Reflagged {
		return nil, commit.ErrLater // another call of this batch has raised a flag about it
	}
	flag := payment.FlagKey{Tenant: c.Tenant, ID: x.FlagID}
	if flag.ID != 0 && tx.Payments().Flags.Wanted(flag) == nil {
		c.rows.flag = flag.ID
		return nil, commit.ErrMoreRows
	}
	money, err := c.transactionsOf(tx, x)
	if err != nil {
		return nil, err
	}
	return c.change(tx, r, next, money), nil
}

// change records a new outcome or amount of a console refund. The sum of its flags is the amount given
// back: an open flag is withdrawn, and a new flag has the difference to the flags that a person has resolved.
func (c *consoleNotice) change(tx *Tx, r *payment.ConsoleRow, next payment.ConsoleRefund,
	money []*payment.TransactionRow) NoticeResult {
	was, detail := r.Value, c.describeChange(&r.Value, &next)
	resolved := was.GivenBack()
	last := tx.Payments().Flags.Wanted(payment.FlagKey{Tenant: c.Tenant, ID: was.FlagID})
	if last != nil && last.Value.Resolution == "" {
		resolved, _ = resolved.Sub(last.Value.TooMuch())
		tx.Payments().ResolveFlag(last, payment.Resolved{Resolution: payment.Withdrawn, Note: detail,
			Principal: c.Principal, RequestID: c.RequestID})
	}
	flagged := false
	if next.Unit != was.Unit && !resolved.IsZero() { // the amount flagged in the other unit was not given back
		c.flag(tx, r.Key.ID, &was, resolved.Neg(), detail)
		resolved, flagged = amount.Int{}, true
	}
	unknown := !next.Failed && next.Amount.IsZero()
	if n, _ := next.GivenBack().Sub(resolved); !n.IsZero() || unknown {
		next.FlagID, flagged = c.flag(tx, r.Key.ID, &next, n, detail), true
	}
	next.Reflagged = true
	*tx.Payments().Consoles.Change(r) = next
	effect := payment.EffectApplied
	if flagged {
		effect = payment.EffectFlagged
	}
	s := c.record(tx, effect, detail)
	c.addAliases(tx, r.Key.ID)
	for _, row := range money {
		if row.Exists && row.Key.Gateway == c.Gateway {
			t := tx.Payments().Transactions.Change(row)
			t.ExtraRefunded = excess(t.ExtraRefunded, was.Of(t))
			t.AddExtra(next.Of(t))
		}
	}
	return s
}

// describeChange returns the detail of the flag of a changed console refund.
func (c *consoleNotice) describeChange(was, next *payment.ConsoleRefund) string {
	detail := "the refund, which no call requested, "
	switch {
	case next.Failed:
		detail += "failed after it had succeeded"
	case was.Failed:
		detail += "succeeded after it had failed"
	default:
		detail = fmt.Sprintf("the gateway gave back %s %s after reporting %s %s",
			amount.Format(next.Amount, next.Scale), next.Currency, amount.Format(was.Amount, was.Scale), was.Currency)
	}
	if c.Code != "" {
		detail += ": " + c.Code
	}
	return detail
}

// flag raises a flag about a console refund and returns its id. n is the surplus that the gateway gave back or,
// if negative, the shortfall.
func (c *consoleNotice) flag(tx *Tx, id int64, x *payment.ConsoleRefund, n amount.Int, detail string) int64 {
	kind := payment.UnknownRefund
	if n.Sign() < 0 {
		kind, n = payment.RefundReturned, n.Neg()
	}
	f := payment.Flag{Kind: kind, Detail: detail, Gateway: c.Gateway, TransactionID: x.TransactionID,
		OutTradeNo: x.OutTradeNo, Currency: x.Currency, Asset: x.Asset, Scale: x.Scale, Amount: n, AboutConsole: id,
		RequestID: c.RequestID}
	if x.OutTradeNo == c.OutTradeNo { // else the notice names another payment
		f.OrderNo = c.payment.Value.OrderNo
	}
	return tx.Payments().Raise(c.Tenant, f)
}

// consoleRows are the rows of a console refund that an earlier attempt found to be needed.
type consoleRows struct {
	ids         []int64  // of console refunds that have one of its names
	flag        int64    // the latest flag about it; 0: none
	transaction string   // number of the refunded transaction
	listed      string   // payment whose transactions are all needed; empty: none
	guards      []string // other payments: the lock on their instances covers the refund and its transaction
}

// need names the refund, its flag, the transaction, and the instances that are locked for them.
func (r *consoleRows) need(tx *Tx, k payment.GatewayKey) {
	for _, id := range r.ids {
		tx.Payments().Consoles.Want(payment.ConsoleKey{Tenant: k.Tenant, ID: id})
	}
	if r.flag != 0 {
		tx.Payments().Flags.Want(payment.FlagKey{Tenant: k.Tenant, ID: r.flag})
	}
	if r.listed != "" {
		tx.Payments().WantMoney(payment.Key{Tenant: k.Tenant, OutTradeNo: r.listed})
	}
	if r.transaction != "" {
		tx.Payments().Transactions.Want(payment.TransactionKey{Tenant: k.Tenant, Gateway: k.Gateway, ID: r.transaction})
	}
	for _, number := range r.guards {
		tx.Machines().Want(paymentInstance(payment.Key{Tenant: k.Tenant, OutTradeNo: number}))
	}
}

// transactionOfPayment returns the refunded transaction if the notice does not name it: the one that paid, or else the
// first of the payment.
func (c *consoleNotice) transactionOfPayment(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	paid := c.payment.Value.TransactionID
	if c.payment.Value.Gateway != c.Gateway {
		paid = ""
	}
	if c.rows.listed != c.OutTradeNo || c.rows.transaction != paid {
		c.rows.listed, c.rows.transaction = c.OutTradeNo, paid // the next attempt names both
		return nil, "", commit.ErrMoreRows
	}
	if paid != "" {
		r := tx.Payments().Transactions.Wanted(c.transactionKey(paid))
		if r.Exists && r.Value.OutTradeNo == c.OutTradeNo {
			return r, paid, nil
		}
	}
	for _, r := range tx.Payments().Money(c.payment.Key) {
		if r.Key.Gateway == c.Gateway {
			return r, r.Key.ID, nil
		}
	}
	return nil, "", nil
}

// refundedTransaction returns the transaction that the notice refunds, and its number; empty: none is known.
func (c *consoleNotice) refundedTransaction(tx *Tx) (money *payment.TransactionRow, id string, err error) {
	if c.TransactionID == "" {
		return c.transactionOfPayment(tx)
	}
	money, err = c.rows.transactionByID(tx, c.transactionKey(c.TransactionID))
	return money, c.TransactionID, err
}

// transactionByID returns a transaction and locks its payment. It may not exist yet: a gateway may report the refund
// first.
func (r *consoleRows) transactionByID(tx *Tx, k payment.TransactionKey) (*payment.TransactionRow, error) {
	money := tx.Payments().Transactions.Wanted(k)
	if money == nil {
		r.transaction = k.ID // the next attempt names it
		return nil, commit.ErrMoreRows
	}
	if !money.Exists {
		return money, nil
	}
	return money, r.lockPayment(tx, payment.Key{Tenant: k.Tenant, OutTradeNo: money.Value.OutTradeNo})
}

// lockPayment returns ErrMoreRows if this attempt has not locked the instance of a payment: the next one does.
func (r *consoleRows) lockPayment(tx *Tx, k payment.Key) error {
	if tx.Machines().Wanted(paymentInstance(k)) != nil {
		return nil
	}
	r.guards = append(r.guards, k.OutTradeNo)
	return commit.ErrMoreRows
}

// transactionsOf returns the transactions that a recorded console refund may refund: the one that it names, or all of
// its payment.
func (c *consoleNotice) transactionsOf(tx *Tx, x *payment.ConsoleRefund) (rows []*payment.TransactionRow, err error) {
	k := payment.Key{Tenant: c.Tenant, OutTradeNo: x.OutTradeNo}
	if err := c.rows.lockPayment(tx, k); err != nil {
		return nil, err
	}
	if x.TransactionID != "" {
		money, err := c.rows.transactionByID(tx, c.transactionKey(x.TransactionID))
		return []*payment.TransactionRow{money}, err
	}
	if c.rows.listed != x.OutTradeNo {
		c.rows.listed = x.OutTradeNo
		return nil, commit.ErrMoreRows
	}
	return tx.Payments().Money(k), nil
}
