package flow

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Machine adapts a command on machines to Tx. It publishes the events of the command's moves, in the same commit. An
// event needs no biz_no: it is sent once, because its move is made once.
func Machine(c commit.Command[*machine.Tx]) Command { return &moves{command: c} }

// moves is a command on machines, and the events of its moves. Which event a move publishes is only known when it is
// made, and which endpoints receive it only after the batch has found them: so a command with an event asks for a rerun
// twice, and names more rows each time.
type moves struct {
	command commit.Command[*machine.Tx]
	events  map[eventKey][]string // events of earlier runs, with their endpoints
}

// eventKey is a type of event of a tenant.
type eventKey struct {
	tenant int32
	kind   string
}

// announced is an event whose rows commands of the batch have named.
type announced struct{ names []string } // endpoints to which it may be sent

// Need names the rows of the command, and those of the events of earlier runs.
func (c *moves) Need(tx *Tx) {
	c.command.Need(tx.Machines())
	if tx.loaded {
		return // an operation of an Execute whose references are resolved: its rows were named before
	}
	for key, names := range c.events {
		tx.announce(key, names)
	}
}

// announce names the rows of an event.
func (tx *Tx) announce(key eventKey, names []string) {
	a := tx.events[key]
	if a == nil {
		if tx.events == nil {
			tx.events = map[eventKey]*announced{}
		}
		a = &announced{}
		tx.events[key] = a
		tx.Webhooks().All(key.tenant)
	}
	for _, name := range names {
		if !slices.Contains(a.names, name) {
			a.names = append(a.names, name)
			event(commit.Caller{Tenant: key.tenant}, key.kind, name, nil).Need(tx.Messages())
		}
	}
}

// Apply runs the command, and publishes the events of its moves.
func (c *moves) Apply(tx *Tx) (any, error) {
	m := tx.Machines()
	before := m.Steps()
	answer, err := c.command.Apply(m)
	if err != nil {
		return nil, err
	}
	events, missing := m.EventsSince(before), false
	for i := range events {
		missing = !c.named(tx, &events[i]) || missing
	}
	if missing {
		return nil, commit.ErrMoreRows
	}
	for i := range events {
		if err := publish(tx, &events[i]); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// named reports whether the rows of an event are named. If they are not, the next run names them, as far as this one
// knows the endpoints of the tenant.
func (c *moves) named(tx *Tx, e *machine.Event) bool {
	key := eventKey{e.Caller.Tenant, e.Type}
	names, found := tx.Webhooks().All(key.tenant).Wanting(e.Type)
	missing := func(name string) bool { return !slices.Contains(tx.events[key].names, name) }
	if found && tx.events[key] != nil && !slices.ContainsFunc(names, missing) {
		return true
	}
	if c.events == nil {
		c.events = map[eventKey][]string{}
	}
	c.events[key] = names
	return false
}

// publish sends an event to the endpoints that subscribe to its type. Returns faults SECRET_NOT_CONFIGURED and
// NOTIFY_LIMITED.
func publish(tx *Tx, e *machine.Event) error {
	names, _ := tx.Webhooks().All(e.Caller.Tenant).Wanting(e.Type)
	i := &e.Instance
	data, err := json.Marshal(map[string]string{"machine": i.Machine, "key": i.Key.Key, "from": i.CameFrom,
		"to": i.State, "revision": strconv.FormatInt(i.Revision, 10), "cause": i.Cause})
	if err != nil {
		return err
	}
	for _, name := range names {
		s := event(e.Caller, e.Type, name, data)
		s.Need(tx.Messages()) // finds the rows that announce has named
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
