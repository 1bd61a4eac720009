package flow

import "github.com/ledgerd/ledgerd/internal/commit"

// Call is the Command of one call: its conditions, the command that they guard, and the rendering of the response. Its
// answer is an Answer, or a commit.Repeat of one.
type Call struct {
	Conditions []Condition
	Command    Command
	// Render makes the response from the command's answer. existed: an earlier call made the resource. Render runs in
	// the batch, which records the response under the request key. Nil: no response.
	Render func(answer any, existed bool) (response any, err error)
}

// Answer is the answer of a Call.
type Answer struct {
	Response any // rendered; nil without Render
	Answer   any // of the command
	Existed  bool
}

// Need names the rows of the conditions and of the command.
func (c *Call) Need(tx *Tx) {
	for _, x := range c.Conditions {
		x.Need(tx)
	}
	c.Command.Need(tx)
}

// Count runs the command's Count, if it has one.
func (c *Call) Count(tx *Tx) bool {
	x, ok := c.Command.(commit.Counted[*Tx])
	return ok && x.Count(tx)
}

// Guard runs the guards of the conditions in order, then the command's own.
func (c *Call) Guard(tx *Tx) error {
	for _, x := range c.Conditions {
		if err := x.Guard(tx); err != nil {
			return err
		}
	}
	if g, ok := c.Command.(commit.Guarded[*Tx]); ok {
		return g.Guard(tx)
	}
	return nil
}

// Apply runs the command, renders its answer, and passes it to the conditions.
func (c *Call) Apply(tx *Tx) (any, error) {
	for _, x := range c.Conditions {
		if err := x.Apply(tx); err != nil {
			return nil, err
		}
	}
	answer, err := c.Command.Apply(tx)
	if err != nil {
		for _, x := range c.Conditions {
			err = NoteRefusal(err, x)
		}
		return nil, err
	}
	a := Answer{Answer: answer}
	if r, ok := answer.(commit.Repeat); ok {
		a = Answer{Answer: r.First, Existed: true}
	}
	if c.Render != nil {
		if a.Response, err = c.Render(a.Answer, a.Existed); err != nil {
			return nil, err
		}
	}
	for _, x := range c.Conditions {
		if err := x.Done(tx, a); err != nil {
			return nil, err
		}
	}
	if a.Existed {
		return commit.Repeat{First: a}, nil
	}
	return a, nil
}
