package flow

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// paymentTransfer and refundTransfer are the types of the transfers that payments and refunds make.
const (
	paymentTransfer = "payment"
	refundTransfer  = "refund"
)

// paymentInstance is the key of the instance that has a payment's state.
func paymentInstance(k payment.Key) machine.Key {
	return machine.Key{Tenant: k.Tenant, Machine: machine.PaymentMachine, Key: k.OutTradeNo}
}

// refundInstance is the key of the instance that has a refund's state.
func refundInstance(k payment.RefundKey) machine.Key {
	return machine.Key{Tenant: k.Tenant, Machine: machine.RefundMachine, Key: k.RefundNo}
}

// PutGateway sets the accounts of a gateway. Its answer is the gateway, or a commit.Repeat of it.
type PutGateway struct {
	commit.Caller
	Name    string
	Gateway payment.Gateway

	row *payment.GatewayRow
}

// Need names the gateway.
func (c *PutGateway) Need(tx *Tx) {
	audits.of(tx)
	c.row = tx.Payments().WantPut(payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Name})
}

// Apply creates or changes the gateway.
func (c *PutGateway) Apply(tx *Tx) (any, error) {
	change := audit.Change{Kind: audit.Gateway, Name: c.Name, After: c.Gateway}
	if c.row.Exists {
		change.Before = c.row.Value
	}
	if !tx.Payments().Put(c.row, c.Caller, c.Gateway) {
		return commit.Repeat{First: c.Gateway}, nil
	}
	return c.Gateway, audits.of(tx).Add(c.Caller, change)
}

// CreatePayment starts the payment of an order. Its answer is a payment.View, or a commit.Repeat of the open payment of
// the same order, gateway and pay type, or of the one that has paid the order.
type CreatePayment struct {
	commit.Caller
	OrderNo, Gateway, PayType string
	OutTradeNo                string
	payment.Details
	TokenHash []byte // of the submit token that the call spends; nil: none
	// Lease returns for how long the caller has the first call at a gateway, which it makes itself; 0: a worker makes
	// it. Nil: always a worker.
	Lease func(gateway string) time.Duration
	// Messages are to be sent in the commit that pays the order, and Stored is their form that Outbox.Stored reads.
	Messages []notify.SendCommand
	Stored   []byte
	// Renumber makes another number if OutTradeNo is taken. Nil: the caller chose the number.
	Renumber func() (string, error)
	// NumberErr is why no number could be made; nil: one was.
	NumberErr error
	// Check checks the payment by the rules of the gateway. Nil: this server does not know them.
	Check func(*payment.Payment) error

	consequences
	order    *order.Row
	row      *payment.Row
	gateway  *payment.GatewayRow
	creation machine.CreateCommand
	follow   string // machine of the order, as an earlier attempt found it
	others   orderPayments
}

// Need names the order, the payment, and the rows that earlier attempts found to be needed.
func (c *CreatePayment) Need(tx *Tx) {
	k, pk := order.Key{Tenant: c.Tenant, OrderNo: c.OrderNo}, payment.Key{Tenant: c.Tenant, OutTradeNo: c.OutTradeNo}
	c.order = tx.Orders().Want(k)
	c.creation.Caller, c.creation.CreateParams = c.Caller, machine.CreateParams{Machine: machine.PaymentMachine,
		Key: c.OutTradeNo, Owner: c.OrderNo}
	c.creation.Need(tx.Machines())
	payments := tx.Payments()
	c.row = payments.Want(pk)
	payments.WantOfOrder(payment.OrderKey(k))
	c.others.listed = true
	c.gateway = payments.Gateways.Want(payment.GatewayKey{Tenant: c.Tenant, Gateway: c.Gateway})
	if tx.loaded {
		return // an operation of an Execute whose references are resolved
	}
	tx.Machines().Want(machine.Key{Tenant: c.Tenant, Machine: machine.OrderMachine, Key: c.OrderNo})
	if c.follow != "" {
		tx.Machines().Want(machine.Key{Tenant: c.Tenant, Machine: c.follow, Key: c.OrderNo})
	}
	c.others.need(tx, payment.OrderKey(k))
	c.consequences.need(tx)
}

// Apply creates the payment, or returns the existing one. Returns faults ORDER_NOT_FOUND, ORDER_NOT_PAYABLE,
// PAYMENT_EXISTS_DIFFERENT, OUT_TRADE_NO_TAKEN, GATEWAY_NOT_FOUND, and FIELD_INVALID.
func (c *CreatePayment) Apply(tx *Tx) (any, error) {
	if c.NumberErr != nil {
		return nil, c.NumberErr
	}
	o, err := order.MustExist(c.order)
	if err != nil {
		return nil, err
	}
	if !tx.instanceRead(o) {
		c.follow = o.Machine
		return nil, commit.ErrMoreRows
	}
	g, err := payment.GatewayMustExist(c.gateway)
	if err != nil {
		return nil, err
	}
	v, err := tx.viewOrder(&c.consequences, c.order, c.Caller)
	if err != nil {
		return nil, err
	}
	if p, err := c.others.paid(tx, payment.OrderKey(o.Key)); err != nil {
		return nil, err
	} else if p != nil {
		return commit.Repeat{First: *p, PresentState: true}, nil
	}
	if tx.payTarget(o) == "" {
		return nil, notPayable(&v)
	}
	all, attempt := tx.Payments().OfOrder(payment.OrderKey(o.Key)), int16(1)
	for i := range all {
		if s := &all[i]; s.Gateway == c.Gateway && s.PayType == c.PayType {
			first, err := c.open(tx, s.OutTradeNo)
			if first != nil || err != nil {
				return first, err
			}
			attempt = max(attempt, s.Attempt+1)
		}
	}
	return c.create(tx, o, &v, g, attempt)
}

// payTarget returns the state to which an order moves when it is paid, or "" if it cannot be paid. It cannot if the
// move needs inputs, since gateways have none.
func (tx *Tx) payTarget(o *order.Order) string {
	k := instanceOf(o)
	to := tx.Machines().Targets(k, machine.ConfirmParts, machine.ByCaller, machine.ByFlow)
	if len(to) != 1 || tx.Machines().NeedsInputs(k, to[0]) {
		return ""
	}
	return to[0]
}

// notPayable is the fault for an order that cannot be paid.
func notPayable(v *order.View) error {
	return payment.NotPayable.New("order %s is in state %s, in which it cannot be paid", v.OrderNo, v.State.State).
		With("order_no", v.OrderNo).With("state", v.State.State)
}

// open returns a repeat of a payment that is still open, or whose number the caller chose again, or nil.
func (c *CreatePayment) open(tx *Tx, number string) (any, error) {
	p, err := c.others.view(tx, c.Tenant, number)
	if err != nil || !payment.IsOpen(p.State.State) && (c.Renumber != nil || c.OutTradeNo != number) {
		return nil, err
	}
	if c.Renumber == nil && c.OutTradeNo != number {
		return nil, payment.ExistsDifferent.New("order %s has an open payment %s already", c.OrderNo, number).
			With("order_no", c.OrderNo).With("first_id", p.ID).With("out_trade_no", number).
			With("differs", "out_trade_no").WithField("out_trade_no", "differs from that of the open payment")
	}
	return commit.Repeat{First: p, PresentState: true}, nil
}

// viewPayment returns a named payment with its state and its money, as far as that is named.
func (tx *Tx) viewPayment(k payment.Key) (v payment.View, err error) {
	row := tx.Payments().Wanted(k)
	p, err := payment.MustExist(row)
	if err != nil {
		return v, err
	}
	i, err := tx.instanceOfRow(paymentInstance(k), commit.Caller{Tenant: k.Tenant})
	if err != nil {
		return v, err
	}
	v = payment.View{Payment: *p, State: payment.State{State: i.State, Revision: i.Revision, ChangedAt: i.ChangedAt}}
	for _, m := range tx.Payments().Money(k) {
		if m.Key.Gateway == p.Gateway && m.Key.ID == p.TransactionID {
			v.Refunding, v.Refunded = inScale(&m.Value, m.Value.Refunding, p), inScale(&m.Value, m.Value.GivenBack(), p)
		}
	}
	return v, nil
}

// instanceOfRow returns the instance of a payment or refund that exists.
func (tx *Tx) instanceOfRow(k machine.Key, c commit.Caller) (i machine.Instance, err error) {
	if r := tx.Machines().Wanted(k); r == nil || !r.Exists {
		return i, commit.ErrMoreRows // another server has made both since instances were read
	}
	return tx.Machines().StateOf(k, c)
}

// inScale converts an amount of a transaction, which may be in another asset, to the decimals of its payment, rounded
// up.
func inScale(t *payment.Transaction, n amount.Int, p *payment.Payment) amount.Int {
	return amount.NewDecimal(n, t.Scale).MinorUp(p.Scale)
}

// create makes the payment. If a notice came before it, the gateway is queried at once.
func (c *CreatePayment) create(tx *Tx, o *order.Order, v *order.View, g *payment.Gateway, attempt int16) (any, error) {
	p, err := c.describe(o, v, g, attempt)
	if err != nil {
		return nil, err
	}
	if p.Messages, err = c.sealed(tx); err != nil {
		return nil, err
	}
	if c.row.Exists {
		return nil, c.numberTaken()
	}
	k := c.row.Key
	call, move := payment.Submit, c.creation.Apply
	if tx.Machines().Wanted(paymentInstance(k)).Exists { // a notice came before it
		i, err := tx.Machines().StateOf(paymentInstance(k), c.Caller)
		if err != nil {
			return nil, err
		}
		if i.State != machine.PaymentUnexpected || c.Renumber != nil {
			return nil, c.numberTaken()
		}
		m := movePayment(c.Caller, paymentInstance(k), machine.PaymentCreated, causeCreate)
		m.Need(tx.Machines()) // named by the creation
		call, move, p.Early = payment.Query, m.Apply, true
	}
	answer, err := c.consequences.run(tx, move)
	if err != nil {
		return nil, err
	}
	p.ID = answer.(machine.Instance).ID
	tx.Payments().Create(c.row, *p)
	tx.Payments().CallPayment(k, c.Gateway, call, 0)
	view, err := tx.viewPayment(k)
	view.Lease = leaseLast(tx, c.Lease, c.Gateway)
	return view, err
}

// leaseLast leases the call that was scheduled last, if the caller makes it itself.
func leaseLast(tx *Tx, lease func(gateway string) time.Duration, gateway string) *payment.Leased {
	if lease == nil {
		return nil
	}
	return tx.Payments().Lease(lease(gateway))
}

// sealed checks the messages, and returns them as they are stored. Returns faults SECRET_NOT_CONFIGURED, FIELD_INVALID.
func (c *CreatePayment) sealed(tx *Tx) ([]byte, error) {
	if len(c.Messages) == 0 {
		return nil, nil
	}
	if tx.outbox == nil {
		return nil, (*secret.Master)(nil).Check()
	}
	for n := range c.Messages {
		if err := c.Messages[n].Check(tx.outbox); err != nil {
			return nil, inElement(err, "messages", n)
		}
	}
	return tx.outbox.Master.Seal(c.Stored, messagesPurpose, c.row.Key.OutTradeNo), nil
}

// messagesPurpose is the purpose of the key that seals the messages of payments.
const messagesPurpose = "payment.messages"

// causeCreate is the cause of the move of a payment whose notice came before it was created.
const causeCreate = "create"

// numberTaken returns the fault for a number in use, or makes another number and asks for another attempt.
func (c *CreatePayment) numberTaken() error {
	if c.Renumber == nil {
		return payment.NumberTaken.New("out_trade_no %s is taken", c.OutTradeNo).With("out_trade_no", c.OutTradeNo).
			WithField("out_trade_no", "is the number of another payment")
	}
	no, err := c.Renumber()
	if err != nil {
		return err
	}
	c.OutTradeNo = no
	return commit.ErrMoreRows
}

// describe returns the payment as it will be stored. Returns faults ORDER_NOT_PAYABLE and FIELD_INVALID.
func (c *CreatePayment) describe(o *order.Order, v *order.View, g *payment.Gateway, attempt int16) (*payment.Payment,
	error) {
	total, err := o.Amount.Minor(o.Scale)
	if err != nil {
		return nil, err
	}
	if o.Balance != nil {
		paid, err := o.Balance.Amount.Minor(o.Scale)
		if err != nil {
			return nil, err
		}
		total, _ = total.Sub(paid)
	}
	if total.Sign() <= 0 {
		return nil, payment.NotPayable.New("nothing remains to be paid of order %s", o.OrderNo).
			With("order_no", o.OrderNo).With("state", v.State.State)
	}
	p := &payment.Payment{Key: c.row.Key, OrderNo: o.OrderNo, Gateway: c.Gateway, PayType: c.PayType, Attempt: attempt,
		Asset: o.Asset, Scale: o.Scale, Amount: total, Payee: o.Payee, Details: c.Details, ExpiresAt: v.PayBefore(),
		TokenHash: c.TokenHash, Principal: c.Principal, RequestID: c.RequestID}
	if p.Payee == "" {
		p.Payee = g.Payee
	}
	if p.Payee == "" {
		return nil, fault.InvalidField("gateway", "must have a payee, because the order has none")
	}
	if c.Check != nil {
		if err := c.Check(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// movePayment is a move of a payment or refund, which only flows make.
func movePayment(c commit.Caller, k machine.Key, to, cause string) *machine.MoveCommand {
	return &machine.MoveCommand{Caller: c, MoveParams: machine.MoveParams{Machine: k.Machine, Key: k.Key, To: to,
		Cause: cause, Flow: true}}
}
