package flow

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// orderTransfer is the type of the transfers that pay orders out of balances.
const orderTransfer = "order"

// Causes of moves that CreateOrder and CancelOrder make.
const (
	CauseBalance = "balance"
	CauseCancel  = "cancel"
)

// CreateOrder creates an order with its parts. Its answer is an order.View, or a commit.Repeat of the order of this
// number, or of the same purchase.
//
// Some rows become known only when others are read, such as the order of the same purchase. Then Apply returns
// commit.ErrMoreRows: the attempt is rolled back, and in the next one Need names these rows too. So fields that Apply
// sets, such as same, are read by the next Need.
type CreateOrder struct {
	commit.Caller
	OrderNo string
	order.Facts
	// Renumber makes another number if OrderNo is taken. Nil: the caller chose the number.
	Renumber func() (string, error)
	// NumberErr is why no number could be made; nil: one was.
	NumberErr error
	// Messages are sent in the same commit. One without a BizNo gets one of the order.
	Messages []notify.SendCommand
	// ExpiryMessages are due at the end of the time to pay. They have no BizNo and no NotBefore.
	ExpiryMessages []notify.SendCommand
	SubmitToken    []byte // SHA-256 of the submit token of the call; nil: none

	consequences
	sends    []*notify.SendCommand
	expiry   []*notify.SendCommand // not sent if nothing remains to be paid
	row      *order.Row
	instance machine.CreateCommand
	lines    []*stock.ReserveCommand // one a line, if they are reserved
	hold     *ledger.HoldCommand     // nil: nothing is held
	transfer *ledger.TransferCommand // nil: no balance pays the whole amount
	toPaid   *machine.MoveCommand    // nil: something remains to be paid
	coupon   *coupon.Row             // nil: none
	lock     orderRef                // the order that has locked the coupon
	purchase *claim.Row
	same     orderRef // the order of the same purchase
}

// Rows is the number of rows that the command writes, without those of messages: the order, its instance and history,
// and its parts. It also bounds how often the command may return ErrMoreRows: finding the order of the same purchase
// takes several attempts.
func (c *CreateOrder) Rows() int {
	rows := 3 + 2*len(c.Lines)
	if c.Balance != nil {
		rows += 3
	}
	if c.Purchase != nil || c.Sale != nil {
		rows++
	}
	if c.Coupon != "" {
		rows += 2
	}
	if c.PaidAtOnce() {
		rows++
	}
	return rows
}

// Need names the rows of the order and of its parts.
func (c *CreateOrder) Need(tx *Tx) {
	k := order.Key{Tenant: c.Tenant, OrderNo: c.OrderNo}
	c.row = tx.Orders().Want(k)
	c.instance.Caller, c.instance.CreateParams = c.Caller, machine.CreateParams{Machine: c.Machine, Key: c.OrderNo,
		Owner: c.Subject, Timer: c.PayWithin}
	c.instance.Need(tx.Machines())
	tx.Ledger().SeeAsset(c.Tenant, c.Asset)
	c.needLines(tx, k)
	c.needMoney(tx, k)
	if c.Purchase != nil || c.Sale != nil {
		c.purchase = tx.Claims().WantRechecked(purchaseKey(&order.Order{Key: k, Facts: c.Facts}))
		c.same.need(tx)
	}
	if c.Coupon != "" {
		c.coupon = tx.needCoupon(c.Tenant, c.Coupon)
		c.lock.need(tx)
	}
	c.sends = needMessages(tx, c.Messages, k, 0)
	// Named even if the order is paid at once: references of an Execute may give other amounts in the next attempt.
	c.expiry = needMessages(tx, c.ExpiryMessages, k, len(c.Messages))
	if c.PaidAtOnce() && !tx.loaded { // its parts end at once. If loaded, an Execute has named them before
		tx.nameParts(&order.Order{Key: k, Facts: c.Facts})
	}
	c.consequences.need(tx)
}

func (c *CreateOrder) needLines(tx *Tx, k order.Key) {
	c.lines = c.lines[:0]
	if !c.Reserve {
		return
	}
	for n := range c.Lines {
		r := &stock.ReserveCommand{Caller: c.Caller, Item: c.Lines[n].Item, ReservationNo: k.LineNo(n),
			Quantity: c.Lines[n].Quantity, Ref: c.OrderNo}
		r.Need(tx.Stock())
		c.lines = append(c.lines, r)
	}
}

func (c *CreateOrder) needMoney(tx *Tx, k order.Key) {
	c.hold, c.transfer, c.toPaid = nil, nil, nil
	if b := c.Balance; c.Holds() {
		c.hold = &ledger.HoldCommand{Caller: c.Caller, HoldParams: ledger.HoldParams{BizNo: k.HoldNo(), From: b.Account,
			To: c.Payee, Asset: c.Asset, Amount: b.Amount}}
		c.hold.Need(tx.Ledger())
		tx.Ledger().SeeTransfer(c.Tenant, k.PayNo())
	} else if c.paysLater() {
		tx.Ledger().SeeAccount(c.Tenant, c.Payee, c.Asset)
	} else if b != nil {
		c.transfer = &ledger.TransferCommand{Caller: c.Caller, TransferParams: ledger.TransferParams{BizNo: k.PayNo(),
			Type:     orderTransfer,
			Postings: []ledger.Posting{{From: b.Account, To: c.Payee, Asset: c.Asset, Amount: b.Amount}}}}
		c.transfer.Need(tx.Ledger())
	}
	if c.PaidAtOnce() {
		c.toPaid = &machine.MoveCommand{Caller: c.Caller, MoveParams: machine.MoveParams{Machine: c.Machine,
			Key: c.OrderNo, Cause: CauseBalance, Flow: true}}
		c.toPaid.Need(tx.Machines())
	}
}

// paysLater reports whether no balance pays the payee now, so that the command only checks that the payee exists.
// PutSale has checked the payee of a sale.
func (c *CreateOrder) paysLater() bool { return c.Payee != "" && c.Balance == nil && c.Sale == nil }

// Apply creates the order, or returns the existing one. Returns faults ORDER_EXISTS_DIFFERENT, PURCHASE_REPEATED,
// ORDER_PART_EXISTS, MACHINE_NOT_FOUND, ASSET_NOT_FOUND, ACCOUNT_NOT_FOUND, FIELD_INVALID, and those of the parts.
func (c *CreateOrder) Apply(tx *Tx) (any, error) {
	if c.NumberErr != nil {
		return nil, c.NumberErr
	}
	if c.row.Exists {
		return c.repeat(tx)
	}
	if c.purchase != nil {
		if first, err := c.claim(tx); first != nil || err != nil {
			return first, err
		}
	}
	o, err := c.create(tx)
	if err != nil {
		return nil, err
	}
	for n, r := range c.lines {
		r.Life = o.Life
		if c.toPaid != nil {
			r.Life = 0 // sold at once
		}
		if err := makePart(c.row.Key, "reservation", r.ReservationNo, r, tx.Stock()); err != nil {
			return nil, inLine(err, n)
		}
	}
	if c.coupon != nil {
		if _, err := tx.useCoupon(c.coupon, &c.lock, &c.consequences, c.Caller, c.Subject, machine.CouponLocked,
			c.OrderNo); err != nil {
			return nil, fault.Rename(err, func(string) string { return "coupon" })
		}
	}
	if err := c.takeMoney(tx, o); err != nil {
		return nil, err
	}
	if err := sendAll(tx, c.sends); err != nil {
		return nil, err
	}
	if err := c.sendAtExpiry(tx, o); err != nil {
		return nil, err
	}
	return c.view(tx)
}

// sendAtExpiry accepts the messages that are due at the end of the time to pay.
func (c *CreateOrder) sendAtExpiry(tx *Tx, o *order.Order) error {
	if c.toPaid != nil {
		return nil
	}
	for n, m := range c.expiry {
		m.NotBefore = o.CreatedAt.Add(o.Life)
		answer, err := m.Apply(tx.Messages())
		if err != nil {
			return inElement(err, "expiry_messages", n)
		}
		accepted, first := answer.(*notify.Message)
		if !first { // an earlier call sent it, so this order could not cancel it
			return c.messageTaken(m.Params.BizNo)
		}
		o.ExpiryMessages = append(o.ExpiryMessages, accepted.ID)
	}
	return nil
}

// messageTaken reports that another message has the number of an expiry message.
func (c *CreateOrder) messageTaken(no string) error {
	for n := range c.Messages {
		if c.Messages[n].Params.BizNo == no {
			return fault.InvalidField(fmt.Sprintf("messages[%d].biz_no", n),
				"must not be the number of an expiry message")
		}
	}
	return order.PartTaken(c.row.Key, "message", no)
}

// repeat returns the existing order, or makes another number.
func (c *CreateOrder) repeat(tx *Tx) (any, error) {
	if c.Renumber != nil {
		var err error
		if c.OrderNo, err = c.Renumber(); err != nil {
			return nil, err
		}
		return nil, commit.ErrMoreRows
	}
	if err := c.row.Value.Same(&c.Facts); err != nil {
		return nil, err
	}
	v, err := c.view(tx)
	return commit.Repeat{First: v}, err
}

// view returns the order as it is now.
func (c *CreateOrder) view(tx *Tx) (order.View, error) {
	return tx.viewOrder(&c.consequences, c.row, c.Caller)
}

// viewOrder returns a named order as it is now: moved by its timer, if that has fired.
func (tx *Tx) viewOrder(e *consequences, row *order.Row, caller commit.Caller) (order.View, error) {
	o := &row.Value
	if !tx.instanceRead(o) {
		return order.View{}, commit.ErrMoreRows
	}
	k := instanceOf(o)
	i, err := e.run(tx, func(m *machine.Tx) (any, error) { return m.StateOf(k, caller) })
	if err != nil {
		return order.View{}, err
	}
	return viewOf(o, i.(machine.Instance)), nil
}

// instanceOf is the key of the instance that has an order's state.
func instanceOf(o *order.Order) machine.Key {
	return machine.Key{Tenant: o.Tenant, Machine: o.Machine, Key: o.OrderNo}
}

// instanceRead reports whether the batch has read the instance of an order. It reads instances before orders: an order
// that is committed in between is found without its instance; the next attempt finds both.
func (tx *Tx) instanceRead(o *order.Order) bool {
	if !machines.opened(tx) {
		return false // a Grab of a sold-out sale names orders whose parts may end, but no instance
	}
	r := tx.Machines().Wanted(instanceOf(o))
	return r != nil && r.Exists
}

func viewOf(o *order.Order, i machine.Instance) order.View {
	return order.View{Order: *o, State: order.State{State: i.State, Revision: i.Revision, Cause: i.Cause,
		TimerAt: i.TimerAt, TimerTo: i.TimerTo, ChangedAt: i.ChangedAt}}
}

// claim claims the purchase. If there is an order of the same purchase, claim answers with it, or refuses.
func (c *CreateOrder) claim(tx *Tx) (first any, err error) {
	claims := tx.Claims()
	if claims.ClaimedSince(c.purchase) {
		return nil, commit.ErrLater
	}
	if claims.Live(c.purchase) {
		// A due timer may have cancelled the order without a record yet: recording its move frees the purchase.
		k := order.Key{Tenant: c.Tenant, OrderNo: c.purchase.Value.Result}
		v, err := c.same.view(tx, &c.consequences, k, c.Caller)
		if err != nil {
			return nil, err
		}
		if claims.Live(c.purchase) {
			if c.Purchase != nil && c.Purchase.Refuse {
				return nil, v.Repeated()
			}
			return commit.Repeat{First: v}, nil
		}
	}
	p := purchase(&order.Order{Key: c.row.Key, Facts: c.Facts})
	if _, err := claims.Use(c.purchase, c.Caller, &p); err != nil {
		return nil, err
	}
	claims.Name(c.purchase, p.Result)
	return nil, nil
}

// create makes the instance and the order.
func (c *CreateOrder) create(tx *Tx) (*order.Order, error) {
	scale, err := tx.Ledger().Decimals(c.Tenant, c.Asset)
	if err == nil {
		err = c.Facts.CheckDecimals(scale)
	}
	if err == nil && c.paysLater() {
		err = tx.Ledger().MustExist(c.Tenant, c.Payee, c.Asset, "payee")
	}
	if err != nil {
		return nil, err
	}
	answer, err := c.consequences.run(tx, c.instance.Apply)
	_, existed := answer.(commit.Repeat)
	if existed || fault.Is(err, machine.InstanceExistsDifferent) {
		return nil, order.PartTaken(c.row.Key, "instance", c.Machine+" "+c.OrderNo)
	}
	if err != nil {
		return nil, inMachine(err)
	}
	i := answer.(machine.Instance)
	o := order.Order{ID: i.ID, Facts: c.Facts, Scale: scale, SubmitToken: c.SubmitToken, Principal: c.Principal,
		RequestID: c.RequestID}
	if !i.TimerAt.IsZero() {
		o.Life = i.TimerAt.Sub(i.CreatedAt)
	}
	if c.toPaid == nil {
		if err := c.checkMachine(tx, i, &o); err != nil {
			return nil, err
		}
	}
	return tx.Orders().Create(c.row, o), nil
}

// checkMachine checks that the machine frees the order's reservations, hold and coupon, and that its expiry messages
// are sent if and only if the order is neither paid nor cancelled before.
func (c *CreateOrder) checkMachine(tx *Tx, i machine.Instance, o *order.Order) error {
	cancels := o.Life > 0 && tx.Machines().Cancels(i.Key, i.TimerTo)
	if c.Reserve || c.hold != nil || c.coupon != nil {
		if err := reservable(o.Life, cancels); err != nil {
			return err
		}
	}
	if len(c.expiry) == 0 {
		return nil
	}
	if o.Life > notify.MaxAhead {
		return fault.InvalidField("pay_within", "must be at most 30 days for an order with expiry_messages")
	}
	return c.checkExpires(tx, i, cancels)
}

// checkExpires checks that an order whose expiry messages were sent can never be paid, nor expire twice.
func (c *CreateOrder) checkExpires(tx *Tx, i machine.Instance, cancels bool) error {
	m, actors := tx.Machines(), []machine.Actor{machine.ByCaller, machine.ByTimer, machine.ByFlow}
	if !cancels {
		return fault.InvalidField("machine", "must have a timer on its first state that cancels the order, "+
			"since the order has expiry_messages")
	}
	if keeping := m.Targets(i.Key, machine.KeepParts, actors...); len(keeping) > 0 {
		return fault.InvalidField("machine", "must not let an order with expiry_messages leave its first state for "+
			"%s, which neither confirms nor cancels it",
			strings.Join(keeping, " or "))
	}
	if slices.Contains(m.Reachable(i.Key, i.State), i.State) {
		return fault.InvalidField("machine", "must not let an order with expiry_messages enter its first state again")
	}
	for _, cancelled := range m.Targets(i.Key, machine.CancelParts, actors...) {
		for _, later := range m.Reachable(i.Key, cancelled) {
			if m.PartsOf(i.Key, later) == machine.ConfirmParts {
				return fault.InvalidField("machine", "must not let an order with expiry_messages get from %s to %s",
					cancelled, later)
			}
		}
	}
	return nil
}

// reservable checks the timer of the first state of a machine whose orders have parts: its length, 0 for none, and
// whether it cancels their parts.
func reservable(life time.Duration, cancels bool) error {
	field, problem := "machine", ""
	switch {
	case life == 0:
		problem = "has no timer on its first state, so the order's reservations, hold and coupon would never be freed"
	case !cancels:
		problem = "has a timer on its first state that does not cancel the parts of orders: " +
			"reservations and the hold would expire all the same, and the coupon would stay locked"
	case life > order.MaxLife:
		field, problem = "pay_within", "must be at most 400 days for an order that reserves, holds or locks a coupon"
	default:
		return nil
	}
	return fault.InvalidField(field, "%s", problem)
}

// takeMoney holds or transfers the amount of the balance, and moves an order of which nothing remains to be paid.
func (c *CreateOrder) takeMoney(tx *Tx, o *order.Order) error {
	if c.hold != nil {
		if no := c.row.Key.PayNo(); tx.Ledger().HasTransfer(c.Tenant, no) { // the hold could not be captured
			return order.PartTaken(c.row.Key, "transfer", no)
		}
		c.hold.Life = o.Life
		if err := makePart(c.row.Key, "hold", c.hold.BizNo, c.hold, tx.Ledger()); err != nil {
			return inBalance(err)
		}
	}
	if c.transfer != nil {
		if err := makePart(c.row.Key, "transfer", c.transfer.BizNo, c.transfer, tx.Ledger()); err != nil {
			return inBalance(err)
		}
	}
	if c.toPaid == nil {
		return nil
	}
	to := tx.Machines().Targets(instanceOf(o), machine.ConfirmParts, machine.ByCaller, machine.ByFlow)
	if err := paidAtOnce(len(to)); err != nil {
		return err
	}
	c.toPaid.To = to[0]
	_, err := c.consequences.run(tx, c.toPaid.Apply)
	return err
}

// paidAtOnce checks the number of states to which an order of which nothing remains to be paid can move.
func paidAtOnce(confirms int) error {
	if confirms == 1 {
		return nil
	}
	return fault.InvalidField("machine", "must have exactly one move from its first state to a state with "+
		"ORDER_PARTS_CONFIRM, because nothing remains to be paid")
}

// makePart runs the command that makes a part of an order. A part that exists already belongs to another call.
func makePart[P any](k order.Key, kind, no string, c commit.Command[P], tx P) error {
	answer, err := c.Apply(tx)
	_, existed := answer.(commit.Repeat)
	if existed || fault.Is(err, stock.ReservationExistsDifferent) || fault.Is(err, ledger.BizNoExistsDifferent) {
		return order.PartTaken(k, kind, no)
	}
	return err
}

// needMessages names the rows of messages. If the order has a number, message n gets that of the order's message
// first + n, unless it has a BizNo of its own.
func needMessages(tx *Tx, messages []notify.SendCommand, k order.Key, first int) (sends []*notify.SendCommand) {
	for n := range messages {
		m := messages[n] // a copy: another attempt may have another order_no, and so other BizNos
		if m.Params.BizNo == "" && k.OrderNo != "" {
			m.Params.BizNo = k.MessageNo(first + n)
		}
		m.Need(tx.Messages())
		sends = append(sends, &m)
	}
	return sends
}

func sendAll(tx *Tx, sends []*notify.SendCommand) error {
	for n, m := range sends {
		if _, err := m.Apply(tx.Messages()); err != nil {
			return inElement(err, "messages", n)
		}
	}
	return nil
}
