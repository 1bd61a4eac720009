package claim

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Command uses one key. It is a guard: what it did stays when a command around it is refused. Its answer is a Use;
// of a key without a life, used again by its owner, a commit.Repeat of one.
type Command struct {
	Caller commit.Caller
	Params Params

	row *Row
	use Use
}

// Need names the key.
func (c *Command) Need(tx *Tx) { c.row = tx.Want(c.Params.At(c.Caller.Tenant)) }

// Guard uses it.
func (c *Command) Guard(tx *Tx) (err error) {
	c.use, err = tx.Use(c.row, c.Caller, &c.Params)
	return err
}

// Apply names what the use made: a refusal takes that back, and not the use.
func (c *Command) Apply(tx *Tx) (any, error) {
	tx.named(c.row, &c.Params, &c.use)
	if c.use.Existed && c.use.First.ForEver() {
		return commit.Repeat{First: c.use}, nil
	}
	return c.use, nil
}

// EachCommand uses several keys, each for itself: a use that is refused leaves the others alone. Its answer is a
// Result for each.
type EachCommand struct {
	Caller commit.Caller
	Params []Params

	rows    []*Row
	results []Result
}

// Result is how one of several uses ended: by its Use, or by a fault of one of the reasons here.
type Result struct {
	Use
	Fault *fault.Fault
}

// Need names the keys.
func (c *EachCommand) Need(tx *Tx) {
	c.rows = c.rows[:0]
	for i := range c.Params {
		c.rows = append(c.rows, tx.Want(c.Params[i].At(c.Caller.Tenant)))
	}
}

// Guard uses them in order.
func (c *EachCommand) Guard(tx *Tx) error {
	c.results = make([]Result, len(c.Params))
	for i := range c.Params {
		r := &c.results[i]
		var err error
		if r.Use, err = tx.Use(c.rows[i], c.Caller, &c.Params[i]); err != nil {
			if r.Fault = fault.Of(err); r.Fault == nil {
				return err
			}
		}
		if r.Fault != nil && r.Fault.Reason == KeyClaimed {
			r.First = c.rows[i].Value
		}
	}
	return nil
}

// Apply names what the uses made.
func (c *EachCommand) Apply(tx *Tx) (any, error) {
	for i := range c.results {
		if r := &c.results[i]; r.Fault == nil || r.Fault.Reason == KeyClaimed {
			tx.named(c.rows[i], &c.Params[i], &r.Use)
		}
	}
	return c.results, nil
}

// named gives a first use the name of what it made, and tells a later one of it, or one that was refused.
func (tx *Tx) named(r *Row, p *Params, u *Use) {
	if first := u.Count == 1 && !u.Existed; first && p.Result != "" {
		tx.Name(r, p.Result)
	}
	if r.Value.ID == u.First.ID {
		u.First.Result = r.Value.Result
	}
}

// DropCommand frees a key. Its answer tells whether there was anything to free.
type DropCommand struct {
	Caller commit.Caller
	Params DropParams

	row *Row
}

// Need names the key.
func (c *DropCommand) Need(tx *Tx) { c.row = tx.Want(c.Params.At(c.Caller.Tenant)) }

// Apply frees it.
func (c *DropCommand) Apply(tx *Tx) (any, error) { return tx.Drop(c.row, &c.Params) }
