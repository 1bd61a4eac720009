package flow

import (
	"cmp"
	"strings"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/order"
)

// MoveOrder moves an order, or cancels it. Its answer is an order.View, or a commit.Repeat of one.
type MoveOrder struct {
	commit.Caller
	OrderNo string
	// Params describe the move. Machine and Key are set by the command, and so is To of a Cancel.
	Params   machine.MoveParams
	Cancel   bool
	Messages []notify.SendCommand

	consequences
	sends  []*notify.SendCommand
	row    *order.Row
	follow string // machine of the order, as an earlier attempt found it
}

// Need names the order, its instance, and what earlier attempts found.
func (c *MoveOrder) Need(tx *Tx) {
	k := order.Key{Tenant: c.Tenant, OrderNo: c.OrderNo}
	c.row = tx.Orders().Want(k)
	tx.Machines().Want(machine.Key{Tenant: c.Tenant, Machine: machine.OrderMachine, Key: c.OrderNo})
	if c.follow != "" {
		tx.Machines().Want(machine.Key{Tenant: c.Tenant, Machine: c.follow, Key: c.OrderNo})
	}
	c.sends = needMessages(tx, c.Messages, order.Key{}, 0)
	c.consequences.need(tx)
}

// Apply moves the order. Returns faults ORDER_NOT_FOUND and those of machine.MoveCommand.
func (c *MoveOrder) Apply(tx *Tx) (any, error) {
	o, err := order.MustExist(c.row)
	if err != nil {
		return nil, err
	}
	k := instanceOf(o)
	if !tx.instanceRead(o) {
		c.follow = o.Machine
		return nil, commit.ErrMoreRows
	}
	if c.Cancel {
		if err := c.findCancelled(tx, k); err != nil {
			return nil, err
		}
	}
	m := machine.MoveCommand{Caller: c.Caller, MoveParams: c.Params}
	m.Machine, m.Key = k.Machine, k.Key
	m.Need(tx.Machines())
	answer, err := c.consequences.run(tx, m.Apply)
	if err != nil {
		return nil, c.inOrder(err, k)
	}
	if r, ok := answer.(commit.Repeat); ok {
		return commit.Repeat{First: viewOf(o, r.First.(machine.Instance))}, nil
	}
	if err := sendAll(tx, c.sends); err != nil {
		return nil, err
	}
	return viewOf(o, answer.(machine.Instance)), nil
}

// findCancelled sets the target of a cancellation: the order's state if that cancels already.
func (c *MoveOrder) findCancelled(tx *Tx, k machine.Key) error {
	answer, err := c.consequences.run(tx, func(m *machine.Tx) (any, error) { return m.StateOf(k, c.Caller) })
	if err != nil {
		return err
	}
	i, m := answer.(machine.Instance), tx.Machines()
	if m.Cancels(k, i.State) {
		c.Params.To = i.State
		return nil
	}
	to := m.Targets(k, machine.CancelParts, machine.ByCaller)
	if len(to) > 1 {
		return fault.FieldInvalid.New("order_no: the order can move to several states that cancel it, "+
			"%s: use MoveOrder",
			strings.Join(to, " and ")).WithField("order_no", "must have one move that cancels it")
	}
	if len(to) == 0 { // the move to any of them is refused, with the states that are possible
		if to = m.Cancelled(k); len(to) == 0 {
			return fault.FieldInvalid.New("order_no: machine %s has no state that cancels orders", k.Machine).
				WithField("order_no", "must follow a machine with a state that cancels orders")
		}
	}
	c.Params.To = to[0]
	return nil
}

// orderRef resolves an order whose number a command learns only when it runs: the next attempt reads the order, and the
// instance that it probably has.
type orderRef struct {
	order   order.Key
	machine string
}

// need names the order and its instance, as far as earlier attempts know them.
func (r *orderRef) need(tx *Tx) {
	if r.order.OrderNo == "" || tx.loaded {
		return
	}
	tx.Orders().Want(r.order)
	if r.machine != "" {
		tx.Machines().Want(machine.Key{Tenant: r.order.Tenant, Machine: r.machine, Key: r.order.OrderNo})
	}
}

// view returns the order as it is now: moved by its timer, if that has fired.
func (r *orderRef) view(tx *Tx, e *consequences, k order.Key, caller commit.Caller) (v order.View, err error) {
	var row *order.Row
	if orders.opened(tx) {
		row = tx.Orders().Wanted(k)
	}
	if row == nil {
		r.order, r.machine = k, cmp.Or(r.machine, machine.OrderMachine)
		return v, commit.ErrMoreRows
	}
	o, err := order.MustExist(row)
	if err != nil {
		return v, err
	}
	if !tx.instanceRead(o) {
		r.order, r.machine = k, o.Machine
		return v, commit.ErrMoreRows
	}
	return tx.viewOrder(e, row, caller)
}
