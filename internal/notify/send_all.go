package notify

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// SendAllCommand accepts messages in order, all or none. Its answer is a []Accepted.
type SendAllCommand struct{ Sends []*SendCommand }

// Accepted is one message of several.
type Accepted struct {
	Message *Message
	Existed bool // it is a repeat
}

// Need names what all of them need.
func (c *SendAllCommand) Need(tx *Tx) {
	for _, s := range c.Sends {
		s.Need(tx)
	}
}

// Apply accepts them. The first that fails fails all, and the fault's state tells which it was.
func (c *SendAllCommand) Apply(tx *Tx) (any, error) {
	all := make([]Accepted, len(c.Sends))
	for i, s := range c.Sends {
		answer, err := s.Apply(tx)
		if err != nil {
			if f := fault.Of(err); f != nil {
				return nil, f.With("item", i).With("biz_no", s.BizNo)
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
