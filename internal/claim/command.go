package claim

import (
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Command uses one key. It is a guard: its use is kept when a command around it is refused. Its answer is a
// Use, or a commit.Repeat of one if the owner repeats the use of a key without a life.
type Command struct {
	Caller commit.Caller
	Params Params

	row *Row
	use Use
}

// Need names the key.
func (c *Command) Need(tx *Tx) { c.row = tx.Want(c.Params.At(c.Caller.Tenant)) }

// Guard uses the key.
func (c *Command) Guard(tx *Tx) (err error) {
	c.use, err = tx.Use(c.row, c.Caller, &c.Params)
	return err
}

// Apply sets the result's name. A refusal undoes the name but not the use.
func (c *Command) Apply(tx *Tx) (any, error) {
	tx.named(c.row, &c.Params, &c.use)
	if c.use.Existed && c.use.First.ForEver() {
		return commit.Repeat{First: c.use}, nil
	}
	return c.use, nil
}

// EachCommand uses several keys independently: a refused use does not affect the others. Its answer is a Result
// for each.
type EachCommand struct {
	Caller commit.Caller
	Params []Params

	rows    []*Row
	results []Result
}

// Result is the outcome of one of several uses: its Use, or a fault with one of this package's reasons.
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

// Guard uses the keys in order.
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

// Apply sets the results' names.
func (c *EachCommand) Apply(tx *Tx) (any, error) {
	for i := range c.results {
		if r := &c.results[i]; r.Fault == nil || r.Fault.Reason == KeyClaimed {
			tx.named(c.rows[i], &c.Params[i], &r.Use)
		}
	}
	return c.results, nil
}

// named sets the result of a first use, or fills in the first use's result for later and refused uses.
func (tx *Tx) named(r *Row, p *Params, u *Use) {
	if first := u.Count == 1 && !u.Existed; first && p.Result != "" {
		tx.Name(r, p.Result)
	}
	if r.Value.ID == u.First.ID {
		u.First.Result = r.Value.Result
	}
}

// DropCommand deletes a claim. Its answer reports whether there was one.
type DropCommand struct {
	Caller commit.Caller
	Params DropParams

	row *Row
}

// Need names the key.
func (c *DropCommand) Need(tx *Tx) { c.row = tx.Want(c.Params.At(c.Caller.Tenant)) }

func (c *DropCommand) Apply(tx *Tx) (any, error) { return tx.Drop(c.row, &c.Params) }
