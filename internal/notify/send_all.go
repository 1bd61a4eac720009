package notify

import (
	"fmt"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// SendAllCommand accepts several messages in order, all or none. Its answer is a []Accepted.
type SendAllCommand struct{ Sends []*SendCommand }

// Accepted is the result of one message.
type Accepted struct {
	Message *Message
	Existed bool // Message is an earlier one
}

func (c *SendAllCommand) Need(tx *Tx) {
	for _, s := range c.Sends {
		s.Need(tx)
	}
}

// Apply accepts the messages. The first fault fails all; its metadata has the index of the item.
func (c *SendAllCommand) Apply(tx *Tx) (any, error) {
	all := make([]Accepted, len(c.Sends))
	for i, s := range c.Sends {
		answer, err := s.Apply(tx)
		if err != nil {
			if f := fault.Of(err); f != nil {
				f.With("item", i).With("biz_no", s.BizNo)
				return nil, fault.In(fmt.Sprintf("items[%d].", i), f)
			}
			return nil, err
		}
		if r, ok := answer.(commit.Repeat); ok {
			all[i] = Accepted{r.First.(*Message), true}
			continue
		}
		all[i] = Accepted{Message: answer.(*Message)}
	}
	return all, nil
}
