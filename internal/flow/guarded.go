package flow

import "github.com/ledgerd/ledgerd/internal/commit"

// Guarded is a command with the guards before it, such as a submit token, and the rendering of its
// response. Its answer is a Result, or a commit.Repeat of one.
type Guarded struct {
	Guards  []Guard
	Command Command
	// Render makes the response from the command's answer. existed: an earlier call made the resource. It runs in the
	// batch, which records the response under the request key. Nil: no response.
	Render func(answer any, existed bool) (response any)
	// PresentState: the command answers a repeat with the present state, which must not be recorded.
	PresentState bool
}

// Result is the answer of a Guarded.
type Result struct {
	Response any // rendered; nil without Render
	Value    any // the command's answer
	Existed  bool
}

// Need names the rows of the guards and of the command.
func (c *Guarded) Need(tx *Tx) {
	for _, x := range c.Guards {
		x.Need(tx)
	}
	c.Command.Need(tx)
}

// Count runs the command's Count, if it has one.
func (c *Guarded) Count(tx *Tx) bool {
	x, ok := c.Command.(commit.Counted[*Tx])
	return ok && x.Count(tx)
}

// Guard runs the guards in order, then the command's own.
func (c *Guarded) Guard(tx *Tx) error {
	for _, x := range c.Guards {
		if err := x.Guard(tx); err != nil {
			return err
		}
	}
	if g, ok := c.Command.(commit.Guarded[*Tx]); ok {
		return g.Guard(tx)
	}
	return nil
}

// Apply runs the command, renders its answer, and passes it to the guards.
func (c *Guarded) Apply(tx *Tx) (any, error) {
	for _, x := range c.Guards {
		if err := x.Apply(tx); err != nil {
			return nil, err
		}
	}
	answer, err := c.Command.Apply(tx)
	if err != nil {
		for _, x := range c.Guards {
			err = NoteRefusal(err, x)
		}
		return nil, err
	}
	a := Result{Value: answer}
	if r, ok := answer.(commit.Repeat); ok {
		a = Result{Value: r.First, Existed: true}
	}
	if c.Render != nil {
		a.Response = c.Render(a.Value, a.Existed)
	}
	for _, x := range c.Guards {
		if err := x.Done(tx, a); err != nil {
			return nil, err
		}
	}
	if a.Existed {
		return commit.Repeat{First: a, PresentState: c.PresentState}, nil
	}
	return a, nil
}
