package flow

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

// Publish sends an event to every endpoint of a tenant that wants it: a message each, in the batch. Its answer is a
// Published.
type Publish struct {
	commit.Caller
	// Params are those of every message but its recipient; a biz_no goes on with / and the endpoint's name.
	Params notify.Params

	all   *webhook.All
	names []string // of the endpoints that are sent to
	sends []*notify.SendCommand
}

// Published are the messages of an event, one for each endpoint that it goes to.
type Published struct {
	Endpoints []string
	Messages  []*notify.Message
	Existed   []bool // it was accepted before
}

// Need names the tenant's endpoints, and the messages to those that the run before has found: which there are is known
// only when the batch has begun.
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

// Apply accepts the messages. An event that nobody wants is one too.
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
