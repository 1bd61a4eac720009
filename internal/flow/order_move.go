package flow

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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

// inOrder rewrites a fault of the order's instance in the terms of the request: order_no, and for CancelOrder neither
// inputs nor from.
func (c *MoveOrder) inOrder(err error, k machine.Key) error {
	f := fault.Of(err)
	if f == nil || f.Metadata["machine"] != k.Machine || f.Metadata["key"] != k.Key {
		return err
	}
	own := *f
	own.Metadata = maps.Clone(f.Metadata)
	delete(own.Metadata, "key")
	own.Metadata["order_no"] = c.OrderNo
	own.Message = strings.Replace(f.Message, "instance "+k.Key, "order "+c.OrderNo, 1)
	if !c.Cancel {
		return &own
	}
	own.Fields = slices.Clone(f.Fields)
	for i, x := range own.Fields {
		if strings.HasPrefix(x.Path, "inputs.") || x.Path == "from" { // which CancelOrder has not
			own.Fields[i] = fault.Field{Path: "order_no", Description: "must be cancelled with MoveOrder, which has " + x.Path}
			if i == 0 {
				own.Message = "order_no: " + own.Fields[i].Description
			}
		}
	}
	return &own
}

// findCancelled sets the state to which a cancelled order moves, or in which it is already.
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
		return fault.FieldInvalid.New("order_no: the order can move to several states that cancel it, %s: use MoveOrder",
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
func (l *orderRef) need(tx *Tx) {
	if l.order.OrderNo == "" || tx.loaded {
		return
	}
	tx.Orders().Want(l.order)
	if l.machine != "" {
		tx.Machines().Want(machine.Key{Tenant: l.order.Tenant, Machine: l.machine, Key: l.order.OrderNo})
	}
}

// view returns the order as it is now: moved by its timer, if that has fired.
func (l *orderRef) view(tx *Tx, e *consequences, k order.Key, caller commit.Caller) (v order.View, err error) {
	var row *order.Row
	if orders.opened(tx) {
		row = tx.Orders().Wanted(k)
	}
	if row == nil {
		l.order, l.machine = k, cmp.Or(l.machine, machine.OrderMachine)
		return v, commit.ErrMoreRows
	}
	o, err := order.MustExist(row)
	if err != nil {
		return v, err
	}
	if !tx.instanceRead(o) {
		l.order, l.machine = k, o.Machine
		return v, commit.ErrMoreRows
	}
	return tx.viewOrder(e, row, caller)
}

// inElement puts the element of a list of the request before the fields of a fault.
func inElement(err error, list string, n int) error {
	at := fmt.Sprintf("%s[%d]", list, n)
	return fault.In(at+".", err)
}

// inLine is inElement for a reservation of a line.
func inLine(err error, n int) error {
	err = inElement(err, "lines", n)
	if f := fault.Of(err); f != nil {
		f.With("line", n)
	}
	return err
}

// inBalance reports a fault of the order's hold or transfer in the fields of the order.
func inBalance(err error) error {
	return fault.Rename(err, func(path string) string {
		switch path {
		case "from", "postings[0].from":
			return "balance.account"
		case "to", "postings[0].to":
			return "payee"
		}
		return "balance.amount"
	})
}

// inMachine reports a fault of the order's instance in the fields of the order.
func inMachine(err error) error {
	return fault.Rename(err, func(path string) string {
		if path == "timer" {
			return "pay_within"
		}
		return path
	})
}
