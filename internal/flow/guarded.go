package flow

import "github.com/ledgerd/ledgerd/internal/commit"

// GuardedCommand is a command with the guards before it, such as a submit token, and the rendering of its response. Its
// answer is a Result, or a commit.Repeat of one.
type GuardedCommand struct {
	Guards  []Guard
	Command Command
	// Denied refuses the command instead of running it, for example because it needs an approval. Its Guard and Count
	// run all the same: a wrong code is counted. Nil: it runs.
	Denied error
	// Render makes the response from the command's answer. existed: an earlier call made the resource. It runs in the
	// batch, which records the response under the request key. Nil: no response.
	Render func(answer any, existed bool) (response any)
}

// Result is the answer of a GuardedCommand.
type Result struct {
	Response any // rendered; nil without Render
	Value    any // the command's answer
	Existed  bool
}

// Need names the rows of the guards and of the command.
func (c *GuardedCommand) Need(tx *Tx) {
	for _, g := range c.Guards {
		g.Need(tx)
	}
	c.Command.Need(tx)
}

// Count runs the command's Count, if it has one.
func (c *GuardedCommand) Count(tx *Tx) bool {
	x, ok := c.Command.(commit.Counted[*Tx])
	return ok && x.Count(tx)
}

// Guard runs the guards in order, then the command's own Guard.
func (c *GuardedCommand) Guard(tx *Tx) error {
	for _, g := range c.Guards {
		if err := g.Guard(tx); err != nil {
			return err
		}
	}
	if g, ok := c.Command.(commit.Guarded[*Tx]); ok {
		return g.Guard(tx)
	}
	return nil
}

// Apply runs Apply of the guards, then the command, renders its answer, and passes it to the guards.
func (c *GuardedCommand) Apply(tx *Tx) (any, error) {
	for _, g := range c.Guards {
		if err := g.Apply(tx); err != nil {
			return nil, err
		}
	}
	if c.Denied != nil {
		return nil, c.Denied
	}
	answer, err := c.Command.Apply(tx)
	if err != nil {
		for _, g := range c.Guards {
			err = NoteRefusal(err, g)
		}
		return nil, err
	}
	repeat, existed := answer.(commit.Repeat)
	if existed {
		answer = repeat.First
	}
	a := Result{Value: answer, Existed: existed}
	if c.Render != nil {
		a.Response = c.Render(a.Value, a.Existed)
	}
	for _, g := range c.Guards {
		g.Done(tx, a)
	}
	if existed {
		repeat.First = a
		return repeat, nil
	}
	return a, nil
}
