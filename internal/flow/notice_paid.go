package flow

import (
	"crypto/sha256"
	"fmt"
	"strings"

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
)

// paidNotice applies a notice that a payment is paid. The money pays the order of the payment; if it cannot, it goes to
// suspense (notice_suspense.go).
type paidNotice struct {
	notice
	money    *payment.TransactionRow // nil: the gateway has not named the transaction
	others   orderPayments
	posting  posting
	messages paidMessages
}

// Need names the payment, its order with its parts, the transaction with the accounts of its posting, and the messages.
func (c *paidNotice) Need(tx *Tx) {
	if c.events == nil { // names the events of the probable moves, which saves an attempt
		c.events = map[eventKey][]string{{c.Tenant, "order.paid"}: nil, {c.Tenant, "payment.succeeded"}: nil}
	}
	c.need(tx, func(o *order.Order) {
		c.others.need(tx, payment.OrderKey(o.Key))
		tx.nameParts(o)
		c.expectOrder(o.Key)
		// The next attempt names the order's parts before Discover, which finds the account of the hold.
		c.orders[o.Key] = *o
		if !c.posting.suspend {
			payee := c.posting.payee
			if payee == "" {
				payee = o.Payee
			}
			c.needTransfer(tx, payee)
		}
	})
	if c.money = nil; c.TransactionID != "" {
		c.money = tx.Payments().Transactions.Want(c.transactionKey(c.TransactionID))
	}
	if c.posting.transfer = nil; c.posting.suspend {
		c.needTransfer(tx, "")
	}
	c.messages.need(tx, c.Caller, c.OutTradeNo)
}

// posting is the transfer of the money, from the clearing account of the gateway.
type posting struct {
	payee    string // of the payment, as an earlier attempt found it; empty: the order's or the gateway's
	suspend  bool   // the money goes to suspense: Need names its account
	transfer *ledger.TransferCommand
}

// needTransfer names the accounts of the posting, as far as the gateway is known: to a payee, or else to suspense.
func (c *paidNotice) needTransfer(tx *Tx, payee string) {
	g := c.accounts.expected
	if g == nil || g.Clearing == "" || c.Asset == "" || c.TransactionID == "" || c.Amount.Coef.Sign() <= 0 {
		return
	}
	if payee == "" {
		if payee = g.Payee; c.posting.suspend {
			payee = g.Suspense
		}
	}
	if payee == "" || payee == g.Clearing {
		return
	}
	c.posting.transfer = &ledger.TransferCommand{Caller: c.Caller, TransferParams: ledger.TransferParams{
		BizNo: c.transactionKey(c.TransactionID).BizNo(), Type: paymentTransfer,
		Postings: []ledger.Posting{{From: g.Clearing, To: payee, Asset: c.Asset, Amount: c.Amount}}}}
	c.posting.transfer.Need(tx.Ledger())
}

// reusedID begins the ids of notices that came under an id which the gateway had used for another notice.
const reusedID = "reused_id/"

// reusesID reports whether the notice that was recorded under this id reports something else. The notice then gets an
// id of its own, so that its money is neither lost nor without evidence; the next attempt looks that up.
func (c *paidNotice) reusesID() bool {
	if !c.recorded.Exists || c.recorded.Value.Report == c.Report() || strings.HasPrefix(c.Received.ID, reusedID) {
		return false
	}
	hash := sha256.Sum256(fmt.Append(nil, c.Report()))
	c.Received.ID = httpsend.Cut(fmt.Sprintf("%s%x/%s", reusedID, hash[:8], c.Received.ID), gateway.MaxID)
	return true
}

// Apply applies the notice.
func (c *paidNotice) Apply(tx *Tx) (any, error) {
	if c.isRepeat() {
		if !c.payment.Exists || c.money == nil || !c.money.Exists {
			return c.repeated(), nil
		}
		return c.repeated(), c.paidElsewhere(tx)
	}
	if !c.payment.Exists {
		return c.unknownPayment(tx)
	}
	if err := c.mustHaveOrder(); err != nil {
		return nil, err
	}
	c.keepCredential(tx)
	if c.money == nil {
		return nil, fault.FieldInvalid.New("transaction_id: is missing in a notice of a payment").
			WithField("transaction_id", "is missing")
	}
	if c.money.Exists {
		if err := c.paidElsewhere(tx); err != nil {
			return nil, err
		}
		return c.record(tx, payment.EffectKnown, "the transaction is known"), nil
	}
	if !c.accounts.asExpected() {
		return nil, commit.ErrMoreRows
	}
	kind, detail, err := c.mismatch(tx)
	if err != nil {
		return nil, err
	}
	if kind != "" {
		return c.toSuspense(tx, kind, detail)
	}
	return c.pay(tx)
}

// paidElsewhere handles a payment that its gateway reports as paid by a transaction that is already recorded: it closes
// the payment if it is open, and ends its calls, since every query would return the same.
func (c *paidNotice) paidElsewhere(tx *Tx) error {
	state, err := c.state(tx)
	if err != nil || state == machine.PaymentSucceeded || c.payment.Value.Gateway != c.Gateway {
		return err
	}
	if payment.IsOpen(state) {
		if err := c.move(tx, machine.PaymentClosed); err != nil {
			return err
		}
		p := tx.Payments().Change(c.payment)
		p.FailureCode, p.FailureText = "transaction_known", fmt.Sprintf("the gateway reports that transaction %s "+
			"of payment %s has paid it", c.TransactionID, c.money.Value.OutTradeNo)
		p.Decided = true
	}
	c.endCalls(tx)
	return nil
}

// mismatch returns why the money cannot pay the order; an empty kind means that it can.
func (c *paidNotice) mismatch(tx *Tx) (payment.FlagKind, string, error) {
	p := &c.payment.Value
	state, err := c.state(tx)
	if err != nil {
		return "", "", err
	}
	switch u, n := c.amount(tx); {
	case c.foreign() != "":
		return payment.WrongMerchant, "the notice names another " + c.foreign(), nil
	case state == machine.PaymentClosed && p.FailureCode == gateway.CodeRefunded:
		return payment.Late, "the gateway has reported it as paid and given back", nil
	case !payment.IsOpen(state) && state != machine.PaymentClosed:
		return payment.SecondTransaction, "the payment has transaction " + p.TransactionID + " already", nil
	case c.Asset != p.Asset:
		return payment.WrongAsset, fmt.Sprintf("%s was paid, but %s is due", c.Currency, p.Asset), nil
	case u.Scale != p.Scale || n.Cmp(p.Amount) != 0:
		return payment.WrongAmount, fmt.Sprintf("%s was paid, and %s is due", amount.Format(n, u.Scale),
			amount.Format(p.Amount, p.Scale)), nil
	}
	v, err := tx.viewOrder(&c.consequences, c.order, c.Caller)
	switch {
	case err != nil:
		return "", "", err
	case tx.payTarget(&c.order.Value) == "":
		return c.classifyLate(tx, v.State.State)
	case v.Revision > 1: // it has moved, so another payment may have paid it
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

// classifyLate distinguishes money that came after the order ended from a second payment of the order.
func (c *paidNotice) classifyLate(tx *Tx, state string) (payment.FlagKind, string, error) {
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

// pay moves the payment and its order, posts the money, and sends the messages of the payment.
func (c *paidNotice) pay(tx *Tx) (any, error) {
	x, payee := &c.posting, c.payment.Value.Payee
	if x.transfer == nil || x.payee != "" && x.payee != payee || x.transfer.Postings[0].To != payee {
		if x.payee == payee && x.transfer == nil {
			return nil, fault.FieldInvalid.New("clearing: account %s cannot pay itself", payee)
		}
		x.payee = payee // the next attempt names the right account
		return nil, commit.ErrMoreRows
	}
	if err := c.move(tx, machine.PaymentSucceeded); err != nil {
		return nil, err
	}
	m := movePayment(c.Caller, instanceOf(&c.order.Value), tx.payTarget(&c.order.Value), c.OutTradeNo)
	m.Need(tx.Machines())
	if _, err := c.consequences.run(tx, m.Apply); err != nil {
		return nil, err
	}
	if _, err := x.transfer.Apply(tx.Ledger()); err != nil {
		return nil, err
	}
	c.recordPaid(tx)
	if err := c.messages.send(tx); err != nil {
		return nil, err
	}
	s := c.record(tx, payment.EffectApplied, c.messages.unsent)
	tx.Payments().RecordTransaction(c.money, c.transaction(tx, payee))
	return s, nil
}

// recordPaid records the transaction of the payment, and ends its calls.
func (c *paidNotice) recordPaid(tx *Tx) {
	p := tx.Payments().Change(c.payment)
	p.TransactionID, p.PaidAt, p.FailureCode, p.FailureText = c.TransactionID, c.At, "", ""
	p.Decided = true
	c.endCalls(tx)
}

// transaction describes the money, posted to an account.
func (c *paidNotice) transaction(tx *Tx, account string) payment.Transaction {
	u, n := c.amount(tx)
	return payment.Transaction{OutTradeNo: c.OutTradeNo, NoticeID: c.recorded.Value.ID, Currency: u.Currency,
		Asset: u.Asset, Scale: u.Scale, Amount: n, Account: account}
}

// paidMessages are the messages that a payment sends when it succeeds.
type paidMessages struct {
	sends  []*notify.SendCommand
	unsent string // why some of them are not sent
}

// need names the rows of the messages, which are found before rows are locked.
func (m *paidMessages) need(tx *Tx, c commit.Caller, outTradeNo string) {
	if m.sends, m.unsent = nil, ""; tx.outbox == nil || tx.outbox.Stored == nil {
		return
	}
	tx.Messages()
	tx.Templates()
	tx.Payments().WantMessages(payment.Key{Tenant: c.Tenant, OutTradeNo: outTradeNo}, func(stored []byte) {
		text, err := tx.outbox.Master.Open(stored, messagesPurpose, outTradeNo)
		if err != nil {
			m.unsent = "its messages cannot be read: this server has another master key, or none"
			return
		}
		messages, err := tx.outbox.Stored(c, text)
		if err != nil {
			m.unsent = "its messages cannot be read"
			return
		}
		m.sends = needMessages(tx, messages, order.Key{}, 0)
	})
}

// send sends the messages. A message that is refused is not sent, but the payment succeeds.
func (m *paidMessages) send(tx *Tx) error {
	for n, s := range m.sends {
		_, err := s.Apply(tx.Messages())
		f := fault.Of(err)
		if err != nil && f == nil {
			return err
		}
		if f != nil {
			m.unsent = fmt.Sprintf("message %d is not sent: %s", n+1, f.Reason.Name)
		}
	}
	return nil
}
