package flow

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/order"
)

// Machine adapts a command on machines to Tx. The consequences of its moves are part of the same commit: events are
// published, and parts of orders end.
func Machine(c commit.Command[*machine.Tx]) Command { return audited(&moves{command: c}, c) }

type moves struct {
	command commit.Command[*machine.Tx]
	consequences
}

// Fire returns the command that records the move of a timer. The instance may be that of an order.
func Fire(c *machine.FireCommand) Command {
	m := &moves{command: c}
	m.expectOrder(order.Key{Tenant: c.Key.Tenant, OrderNo: c.Key.Key})
	return m
}

// Need names the rows of the command, and what earlier attempts found.
func (c *moves) Need(tx *Tx) {
	c.command.Need(tx.Machines())
	c.consequences.need(tx)
}

// Apply runs the command, with the consequences of its moves.
func (c *moves) Apply(tx *Tx) (any, error) {
	return c.consequences.run(tx, c.command.Apply)
}

// consequences are the events and the ends of order parts that moves trigger, in the same commit. Only the move
// determines them, and the rows that they need depend on rows that the batch reads: the endpoints that receive an
// event, and the order that has the parts. So the command returns ErrMoreRows up to twice, naming more rows each time.
type consequences struct {
	events map[eventKey][]string     // types of events, with their endpoints
	orders map[order.Key]order.Order // orders of instances; without a machine: not read yet
}

// eventKey is a type of event of a tenant.
type eventKey struct {
	tenant int32
	kind   string
}

// namedEvent is a type of event whose rows the batch has named.
type namedEvent struct{ endpoints []string } // to which it may be sent

// need names the rows that earlier attempts found.
func (e *consequences) need(tx *Tx) {
	if tx.loaded {
		return // an operation of an Execute whose references are resolved: its rows were named before
	}
	for key, names := range e.events {
		tx.nameEvent(key, names)
	}
	for key := range e.orders {
		tx.Orders().Want(key)
		if o := e.orders[key]; o.Machine != "" {
			tx.nameParts(&o)
		}
	}
}

// run makes moves, and applies their consequences.
func (e *consequences) run(tx *Tx, move func(*machine.Tx) (any, error)) (any, error) {
	m := tx.Machines()
	before := m.Steps()
	answer, err := move(m)
	if err != nil {
		return nil, err
	}
	moved, missing := m.MovedSince(before), false
	for i := range moved {
		if moved[i].Publish != "" {
			missing = !e.eventNamed(tx, &moved[i]) || missing
		}
		if moved[i].Parts != machine.KeepParts {
			missing = !e.partsNamed(tx, &moved[i]) || missing
		}
	}
	if missing {
		return nil, commit.ErrMoreRows
	}
	for i := range moved {
		if err := tx.endParts(&moved[i]); err != nil {
			return nil, err
		}
		if err := publish(tx, &moved[i]); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// nameEvent names the rows of an event.
func (tx *Tx) nameEvent(key eventKey, names []string) {
	e := tx.events[key]
	if e == nil {
		if tx.events == nil {
			tx.events, tx.hooks = map[eventKey]*namedEvent{}, map[int32]*webhook.All{}
		}
		e = &namedEvent{}
		tx.events[key], tx.hooks[key.tenant] = e, tx.Webhooks().All(key.tenant)
	}
	for _, name := range names {
		if !slices.Contains(e.endpoints, name) {
			e.endpoints = append(e.endpoints, name)
			event(commit.Caller{Tenant: key.tenant}, key.kind, name, nil).Need(tx.Messages())
		}
	}
}

// eventNamed reports whether the rows of a move's event are named. If they are not, the next attempt names them, as far
// as this one knows the endpoints of the tenant.
func (e *consequences) eventNamed(tx *Tx, m *machine.Moved) bool {
	key := eventKey{m.Caller.Tenant, m.Publish}
	var names []string
	if all := tx.hooks[key.tenant]; all != nil {
		names, _ = all.Wanting(m.Publish)
	}
	missing := func(name string) bool { return !slices.Contains(tx.events[key].endpoints, name) }
	if tx.events[key] != nil && !slices.ContainsFunc(names, missing) {
		return true
	}
	if e.events == nil {
		e.events = map[eventKey][]string{}
	}
	e.events[key] = names
	return false
}

// publish sends the event of a move to the endpoints that subscribe to its type. It needs no biz_no: it is sent once,
// because its move is made once. Returns faults SECRET_NOT_CONFIGURED and NOTIFY_LIMITED.
func publish(tx *Tx, m *machine.Moved) error {
	if m.Publish == "" {
		return nil
	}
	names, _ := tx.hooks[m.Caller.Tenant].Wanting(m.Publish)
	i := &m.Instance
	data, err := json.Marshal(map[string]string{"machine": i.Machine, "key": i.Key.Key, "from": i.CameFrom,
		"to": i.State, "revision": strconv.FormatInt(i.Revision, 10), "cause": i.Cause})
	if err != nil {
		return err
	}
	for _, name := range names {
		s := event(m.Caller, m.Publish, name, data)
		s.Need(tx.Messages()) // finds the rows that nameEvent has named
		if _, err := s.Apply(tx.Messages()); err != nil {
			return err
		}
	}
	return nil
}

// event returns the command that sends an event to an endpoint.
func event(c commit.Caller, kind, endpoint string, data []byte) *notify.SendCommand {
	return &notify.SendCommand{Caller: c, Params: notify.Params{Channel: send.Webhook, Recipient: endpoint,
		Content: send.Content{Type: kind, Data: data}, BusinessType: BusinessType(kind), Priority: notify.Normal}}
}

// BusinessType returns the type of an event, or "" if it is too long for a business type.
func BusinessType(event string) string {
	if len(event) > 64 {
		return ""
	}
	return event
}
