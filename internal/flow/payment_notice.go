package flow

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/httpsend"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/token"
)

// ApplyNotice applies a notice of a gateway, whether it came in a callback, or in the answer to a query or another
// call. Its answer is a NoticeResult. The ids of the gateway name everything that it does, so that repeats, and notices
// that come several ways at the same time, take effect once.
type ApplyNotice struct {
	commit.Caller
	Gateway string
	payment.Received
	Credential gateway.Credential // of the answer to a submission
	// Refused is the fault with which an earlier submission could not pay the order: the money goes to suspense.
	Refused *fault.Fault
	// Unposted: the suspense account cannot take the money either, so it is flagged only.
	Unposted bool

	consequences
	notice   *payment.NoticeRow
	row      *payment.Row
	gateway  *payment.GatewayRow
	money    *payment.TransactionRow // nil: the gateway has not named the transaction
	birth    machine.CreateCommand   // of an unexpected payment
	order    *order.Row              // nil: not found yet
	payee    string                  // account that the transfer names; empty: none yet
	transfer *ledger.TransferCommand
	others   siblings
	suspend  bool // the money goes to suspense: its account is named
	refund   refundRows
	console  console
	sends    []*notify.SendCommand // messages of the payment
	unsent   string                // why some of them are not sent
	alias    *payment.NoticeRow    // of notices about the same refund: by the gateway's id, or else by the number
	number   *payment.NoticeRow    // alias by the number; nil: the notice has none
	unlike   *payment.NoticeRow    // alias of a console refund whose number one of our refunds uses
	spent    []byte                // hash of the submit token of a declined payment, as an earlier attempt found it
	token    *token.Row
	heldFor  string           // clearing account that the capture of the refund's hold names; empty: none
	accounts *payment.Gateway // as Need knows them: from an earlier attempt, or else from this process; nil: unknown
}

// NoticeResult is the effect of a notice.
type NoticeResult struct {
	// Done: the gateway need not send the notice again.
	Done    bool
	Verdict payment.Verdict
	Existed bool // the notice was recorded before
	// NeedsQuery: the gateway has to be queried. The notice is about a console refund, or about one that has ended, and
	// does not say how it ended.
	NeedsQuery bool
	// Submitted is the payment, if the notice is the answer to its submission; else nil.
	Submitted *payment.View
}

// pollAfter is the wait before the first query of a pending payment or refund.
const pollAfter = 15 * time.Second

// Need names what the notice is about. The order and its parts are found by the number of the payment.
func (c *ApplyNotice) Need(tx *Tx) {
	g, ok := payment.KnownGateway(payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway})
	if ok && c.accounts == nil {
		c.accounts = &g
	}
	payments, k := tx.Payments(), payment.Key{Tenant: c.Tenant, OutTradeNo: c.OutTradeNo}
	c.notice = payments.WantNotice(payment.NoticeKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: c.Received.ID})
	c.row = payments.Want(k)
	c.gateway = payments.WantGateway(payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway})
	c.birth.Caller, c.birth.CreateParams = c.Caller, machine.CreateParams{Machine: machine.PaymentMachine,
		Key: c.OutTradeNo}
	c.birth.Need(tx.Machines())
	if c.money = nil; c.TransactionID != "" {
		c.money = payments.WantTransaction(payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway,
			ID: c.TransactionID})
	}
	if c.Kind.Refund() {
		c.refund.need(tx, payment.RefundKey{Tenant: c.Tenant, RefundNo: c.RefundNo})
		c.needHold(tx)
		c.console.need(tx, payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway})
		c.needNames(tx)
	}
	if c.Kind == gateway.Paid && c.events == nil { // the moves that are probable: one attempt fewer
		c.events = map[eventKey][]string{{c.Tenant, "order.paid"}: nil, {c.Tenant, "payment.succeeded"}: nil}
	}
	tx.Ledger()
	if c.Asset != "" && !tx.loaded {
		tx.Ledger().SeeAsset(c.Tenant, c.Asset)
	}
	tx.Stock()
	tx.Claims()
	tx.Coupons()
	c.order, c.transfer = nil, nil
	if c.token = nil; c.spent != nil {
		c.token = tx.Tokens().WantHash(c.Tenant, c.spent)
	}
	if c.suspend {
		c.needTransfer(tx, "")
	}
	tx.Orders().WantOfPayment(c.Tenant, c.OutTradeNo, func(o *order.Order) { c.found(tx, o) })
	c.sends, c.unsent = nil, ""
	if c.Kind == gateway.Paid && tx.outbox != nil && tx.outbox.Stored != nil {
		tx.Messages()
		tx.Templates()
		payments.WantMessages(k, func(stored []byte) { c.needMessages(tx, stored) })
	}
	c.need(tx)
}

// needMessages names the rows of the messages that the payment sends when it succeeds.
func (c *ApplyNotice) needMessages(tx *Tx, stored []byte) {
	text, err := tx.outbox.Master.Open(stored, messagesPurpose, c.OutTradeNo)
	if err != nil {
		c.unsent = "its messages cannot be read: this server has another master key, or none"
		return
	}
	messages, err := tx.outbox.Stored(c.Caller, text)
	if err != nil {
		c.unsent = "its messages cannot be read"
		return
	}
	c.sends = needMessages(tx, messages, order.Key{})
}

// send sends the messages of the payment. One that is refused is not sent: the money counts all the same.
func (c *ApplyNotice) send(tx *Tx) error {
	for n, m := range c.sends {
		_, err := m.Apply(tx.Messages())
		f := fault.Of(err)
		if err != nil && f == nil {
			return err
		}
		if f != nil {
			c.unsent = fmt.Sprintf("message %d is not sent: %s", n+1, f.Reason.Name)
		}
	}
	return nil
}

// found names what the order needs, before rows are locked.
func (c *ApplyNotice) found(tx *Tx, o *order.Order) {
	c.order = tx.Orders().Known(o.Key)
	tx.Machines().Want(instanceOf(o))
	c.others.need(tx, payment.OrderKey(o.Key))
	if c.Kind != gateway.Paid {
		return
	}
	tx.nameParts(o)
	c.expectOrder(o.Key)
	c.orders[o.Key] = *o // another attempt names its parts earlier: the account of a hold has to be found first
	if !c.suspend {
		payee := c.payee
		if payee == "" {
			payee = o.Payee
		}
		c.needTransfer(tx, payee)
	}
}

// needTransfer names the accounts of the posting, as far as the gateway is known: to a payee, or else to suspense.
func (c *ApplyNotice) needTransfer(tx *Tx, payee string) {
	g := c.accounts
	if g == nil || g.Clearing == "" || c.Asset == "" || c.TransactionID == "" || c.Amount.Coef.Sign() <= 0 {
		return
	}
	if payee == "" {
		if payee = g.Payee; c.suspend {
			payee = g.Suspense
		}
	}
	if payee == "" || payee == g.Clearing {
		return
	}
	t := payment.TransactionKey{Tenant: c.Tenant, Gateway: c.Gateway, ID: c.TransactionID}
	c.transfer = &ledger.TransferCommand{Caller: c.Caller, TransferParams: ledger.TransferParams{BizNo: t.BizNo(),
		Type: paymentTransfer, Postings: []ledger.Posting{{From: g.Clearing, To: payee, Asset: c.Asset,
			Amount: c.Amount}}}}
	c.transfer.Need(tx.Ledger())
}

// Apply applies the notice, also if PutGateway has not been called yet: the gateway has no accounts then. Returns
// faults of the order and the ledger, for which the caller runs the command again with Refused, and then with Unposted.
func (c *ApplyNotice) Apply(tx *Tx) (any, error) {
	if c.notice.Exists && c.notice.Value.Verdict != payment.VerdictUnknown {
		return c.repeated(tx)
	}
	if !c.row.Exists {
		if r := c.refund.row; r != nil && r.Exists { // of flagged money
			return c.refunded(tx)
		}
		return c.unknownPayment(tx)
	}
	switch {
	case c.order == nil && !c.row.Found:
		return nil, commit.ErrLater // another call of this batch makes the payment
	case c.order == nil:
		return nil, commit.ErrMoreRows // another server has just made it
	}
	if who := c.foreign(); who != "" && c.Kind != gateway.Paid && !c.Kind.Refund() {
		return c.record(tx, payment.VerdictKnown, "the notice names another "+who), nil
	}
	c.keepCredential(tx)
	switch c.Kind {
	case gateway.Paid:
		return c.paid(tx)
	case gateway.Declined:
		return c.declined(tx)
	case gateway.Closed:
		return c.closed(tx)
	case gateway.Pending:
		return c.pending(tx)
	}
	return c.refunded(tx)
}

// repeated applies a notice that was recorded before. Most change nothing.
func (c *ApplyNotice) repeated(tx *Tx) (any, error) {
	s := NoticeResult{Done: true, Verdict: c.notice.Value.Verdict, Existed: true, NeedsQuery: c.needsQuery(tx)}
	answer, ours := !c.Callback, c.foreign() == ""
	switch {
	case c.Kind.Refund() && answer && c.RefundNo+c.GatewayRefundID != "":
		_, err := c.refunded(tx) // an answer may equal an earlier one although other notices came in between
		return s, err
	case !c.row.Exists:
		return s, nil
	case c.Kind == gateway.Paid && c.money != nil && c.money.Exists:
		return s, c.paidElsewhere(tx)
	case c.Kind == gateway.Closed && ours:
		_, err := c.closed(tx) // the payment was created since, or the gateway was asked to close it again
		return s, err
	case c.Kind == gateway.Declined && answer && ours:
		_, err := c.declined(tx) // a second decline: the answer to the query equals that after the first one
		return s, err
	case c.Kind == gateway.Pending && answer && ours && c.order != nil:
		c.keepCredential(tx) // likewise; the earlier answer may have had no credential, or another merchant's
		_, err := c.pending(tx)
		return s, err
	}
	return s, nil
}

// keepCredential stores what the payer's client needs to pay.
func (c *ApplyNotice) keepCredential(tx *Tx) {
	if c.Credential != nil {
		tx.Payments().Change(c.row).Credential = c.Credential
	}
}

// foreign returns the merchant or the gateway of the notice if it is not that of the payment; otherwise "".
func (c *ApplyNotice) foreign() string {
	if c.Foreign == "" && c.row.Exists && c.row.Value.Gateway != c.Gateway {
		return "gateway " + c.Gateway
	}
	return c.Foreign
}

// record stores the notice with its verdict.
func (c *ApplyNotice) record(tx *Tx, v payment.Verdict, detail string) NoticeResult {
	if !c.notice.Exists {
		tx.Payments().Record(c.notice, &c.Received, v, detail, c.RequestID)
	}
	return NoticeResult{Done: v != payment.VerdictUnknown, Verdict: v}
}

// state returns the state of the payment.
func (c *ApplyNotice) state(tx *Tx) (string, error) {
	find := tx.Machines().StateOf // without a payment there may be an instance all the same
	if c.row.Exists {
		find = tx.instanceOfRow
	}
	i, err := find(paymentInstance(c.row.Key), c.Caller)
	return i.State, err
}

// move moves the payment and publishes the event.
func (c *ApplyNotice) move(tx *Tx, to string) error {
	m := movePayment(c.Caller, paymentInstance(c.row.Key), to, causeOf(&c.Received))
	m.Need(tx.Machines())
	_, err := c.run(tx, m.Apply)
	return err
}

// causeOf is the cause of the moves that a notice makes.
func causeOf(s *payment.Received) string {
	if s.TransactionID != "" {
		return s.TransactionID
	}
	return httpsend.Cut(s.ID, machine.MaxCause)
}

// paid takes the money of a payment: for its order, or else for suspense.
func (c *ApplyNotice) paid(tx *Tx) (any, error) {
	if c.money == nil {
		return nil, fault.FieldInvalid.New("transaction_id: is missing in a notice of a payment").
			WithField("transaction_id", "is missing")
	}
	if c.money.Exists {
		if err := c.paidElsewhere(tx); err != nil {
			return nil, err
		}
		return c.record(tx, payment.VerdictKnown, "the transaction is known"), nil
	}
	if !c.seesAccounts() {
		return nil, commit.ErrMoreRows
	}
	kind, detail, err := c.problem(tx)
	if err != nil {
		return nil, err
	}
	if kind != "" {
		return c.toSuspense(tx, kind, detail)
	}
	p := &c.row.Value
	if c.transfer == nil || c.payee != "" && c.payee != p.Payee || c.transfer.Postings[0].To != p.Payee {
		if c.payee == p.Payee && c.transfer == nil {
			return nil, fault.FieldInvalid.New("clearing: account %s cannot pay itself", p.Payee)
		}
		c.payee = p.Payee // the next attempt names the right account
		return nil, commit.ErrMoreRows
	}
	if err := c.pay(tx); err != nil {
		return nil, err
	}
	if err := c.send(tx); err != nil {
		return nil, err
	}
	s := c.record(tx, payment.VerdictApplied, c.unsent)
	tx.Payments().RecordTransaction(c.money, c.transaction(tx, p.Payee))
	return s, nil
}

// seesAccounts reports whether Need knew the accounts of the gateway as the batch has read them. If not, the next
// attempt names the right ones.
func (c *ApplyNotice) seesAccounts() bool {
	g := c.gateway.Value
	if c.accounts != nil && *c.accounts == g {
		return true
	}
	c.accounts = &g
	return false
}

// transaction describes the money, posted to an account.
func (c *ApplyNotice) transaction(tx *Tx, account string) payment.Transaction {
	n, scale := c.minor(tx)
	return payment.Transaction{OutTradeNo: c.OutTradeNo, NoticeID: c.notice.Value.ID, Currency: c.Currency,
		Asset: c.knownAsset(tx), Scale: scale, Amount: n, Account: account}
}

// knownAsset is the asset of the money; empty: the ledger has none for its currency, or none with as many decimals.
func (c *ApplyNotice) knownAsset(tx *Tx) string {
	if c.Asset == "" {
		return ""
	}
	scale, err := tx.Ledger().Decimals(c.Tenant, c.Asset)
	if err == nil {
		_, err = c.Amount.Minor(scale)
	}
	if err != nil {
		return ""
	}
	return c.Asset
}

// minor returns the amount in the minor units of its asset; with its own decimals if the ledger has no such asset, or
// if the amount has more decimals than it.
func (c *ApplyNotice) minor(tx *Tx) (amount.Int, uint8) {
	if c.Asset != "" {
		if scale, err := tx.Ledger().Decimals(c.Tenant, c.Asset); err == nil {
			if n, err := c.Amount.Minor(scale); err == nil {
				return n, scale
			}
		}
	}
	return c.Amount.Coef, c.Amount.Scale
}

// problem is why the money does not pay the order. Empty: it does.
func (c *ApplyNotice) problem(tx *Tx) (payment.FlagKind, string, error) {
	p := &c.row.Value
	state, err := c.state(tx)
	if err != nil {
		return "", "", err
	}
	switch n, scale := c.minor(tx); {
	case c.foreign() != "":
		return payment.WrongMerchant, "the notice names another " + c.foreign(), nil
	case state == machine.PaymentClosed && p.FailureCode == gateway.CodeRefunded:
		return payment.Late, "the gateway has said that it was paid and given back", nil
	case !payment.IsOpen(state) && state != machine.PaymentClosed:
		return payment.SecondTransaction, "the payment has transaction " + p.TransactionID + " already", nil
	case c.Asset != p.Asset:
		return payment.WrongAsset, fmt.Sprintf("%s were paid, and %s are due", c.Currency, p.Asset), nil
	case scale != p.Scale || n.Cmp(p.Amount) != 0:
		return payment.WrongAmount, fmt.Sprintf("%s was paid, and %s is due", amount.Format(n, scale),
			amount.Format(p.Amount, p.Scale)), nil
	}
	v, err := tx.viewOrder(&c.consequences, c.order, c.Caller)
	switch {
	case err != nil:
		return "", "", err
	case tx.payTarget(&c.order.Value) == "":
		return c.late(tx, v.State.State)
	case v.Revision > 1: // it has moved, so that it may be paid
		p, err := c.others.paid(tx, payment.OrderKey(v.Key))
		if err != nil {
			return "", "", err
		} else if p != nil {
			return payment.SecondTransaction, "the order has payment " + p.OutTradeNo + " already", nil
		}
	}
	if c.Refused != nil {
		return payment.OrderRefused, c.Refused.Reason.Name + ": " + c.Refused.Message, nil
	}
	return "", "", nil
}

// late tells money that came after the end from money that came twice.
func (c *ApplyNotice) late(tx *Tx, state string) (payment.FlagKind, string, error) {
	if !c.others.listed {
		c.others.listed = true
		return "", "", commit.ErrMoreRows
	}
	for _, s := range tx.Payments().OfOrder(payment.OrderKey(c.order.Key)) {
		if s.OutTradeNo != c.OutTradeNo && s.Paid {
			return payment.SecondTransaction, "the order has payment " + s.OutTradeNo + " already", nil
		}
	}
	return payment.Late, "the order is " + state, nil
}

// pay moves the payment and its order, and posts the money.
func (c *ApplyNotice) pay(tx *Tx) error {
	if err := c.move(tx, machine.PaymentSucceeded); err != nil {
		return err
	}
	k := instanceOf(&c.order.Value)
	m := movePayment(c.Caller, k, tx.payTarget(&c.order.Value), c.OutTradeNo)
	m.Need(tx.Machines())
	if _, err := c.run(tx, m.Apply); err != nil {
		return err
	}
	if _, err := c.transfer.Apply(tx.Ledger()); err != nil {
		return err
	}
	c.ended(tx)
	return nil
}

// ended notes that the payment has its money.
func (c *ApplyNotice) ended(tx *Tx) {
	p := tx.Payments().Change(c.row)
	p.TransactionID, p.PaidAt, p.FailureCode, p.FailureText = c.TransactionID, c.At, "", ""
	p.Decided = true
	c.endCalls(tx)
}

// endCalls ends the calls about the payment. If the gateway told of it before it was created, it may have told of more
// money than was taken until now, which is flagged.
func (c *ApplyNotice) endCalls(tx *Tx) {
	if p := &c.row.Value; p.Early {
		tx.Payments().CallPayment(c.row.Key, p.Gateway, payment.FlagUnknown, 0)
		return
	}
	tx.Payments().EndCalls(c.row.Key)
}
