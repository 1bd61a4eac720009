package flow

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// Publish sends an event to every endpoint of a tenant that subscribes to its type, as one message each. Its answer is
// a Published.
type Publish struct {
	commit.Caller
	// Params are the parameters of every message, without the recipient. / and the endpoint's name are appended to
	// BizNo.
	Params notify.Params

	all   *webhook.All
	names []string // of the recipient endpoints
	sends []*notify.SendCommand
}

// Published has the messages of an event, one per recipient endpoint.
type Published struct {
	Endpoints []string
	Messages  []*notify.Message
	Existed   []bool // the message was accepted before
}

// Need names the tenant's endpoints, and the messages to the recipients found in an earlier attempt. The recipients are
// known only after the endpoints are loaded, so Apply asks for a rerun.
func (c *Publish) Need(tx *Tx) {
	c.all = tx.Webhooks().All(c.Tenant)
	if names, found := c.all.Wanting(c.Params.Content.Type); found {
		c.names = names
	}
	messages := tx.Messages()
	c.sends = nil
	for _, name := range c.names {
		p := c.Params
		p.Recipient = name
		if p.BizNo != "" {
			p.BizNo += "/" + name
		}
		s := &notify.SendCommand{Caller: c.Caller, Params: p}
		s.Need(messages)
		c.sends = append(c.sends, s)
	}
}

// Apply accepts the messages. An event without recipients is a success.
func (c *Publish) Apply(tx *Tx) (any, error) {
	names, _ := c.all.Wanting(c.Params.Content.Type)
	if !slices.Equal(names, c.names) {
		c.names = names
		return nil, commit.ErrMoreRows
	}
	out := Published{Endpoints: names}
	for _, s := range c.sends {
		answer, err := s.Apply(tx.Messages())
		if err != nil {
			return nil, err
		}
		r, existed := answer.(commit.Repeat)
		if existed {
			answer = r.First
		}
		out.Messages, out.Existed = append(out.Messages, answer.(*notify.Message)), append(out.Existed, existed)
	}
	if len(out.Existed) > 0 && !slices.Contains(out.Existed, false) {
		return commit.Repeat{First: out}, nil
	}
	return out, nil
}
