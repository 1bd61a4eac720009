package machine

import (
	"crypto/sha256"

	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// DefineCommand stores a version of a machine. If the newest version has the same definition, the answer is a
// commit.Repeat of that version. Its answer is a Version.
type DefineCommand struct {
	commit.Caller
	name Name
	def  *compiled
	hash hash
	err  error

	row    *commit.Row[Name, newest]
	change audit.Change
}

// Changes returns the change of the machine.
func (c *DefineCommand) Changes() (commit.Caller, []audit.Change) {
	return c.Caller, []audit.Change{c.change}
}

// settings are what the audit log stores of a machine: the versions themselves are never deleted.
type settings struct {
	Version int32 `json:"version"`
}

func (n *newest) settings(exists bool) any {
	if !exists {
		return nil
	}
	return settings{n.Number}
}

// NewDefine returns a command that stores a definition. Apply returns fault MACHINE_INVALID if the definition breaks a
// rule; paths of its fields begin with "definition.".
func NewDefine(c commit.Caller, machine string, d *Definition) *DefineCommand {
	cmd := &DefineCommand{Caller: c, name: Name{c.Tenant, machine}}
	def, problems := compile(d, "definition.")
	if len(problems) > 0 {
		cmd.err = Invalid.About(problems)
		return cmd
	}
	cmd.def, cmd.hash = def, sha256.Sum256(def.text)
	return cmd
}

// Rows estimates the rows that the command writes.
func (c *DefineCommand) Rows() int {
	if c.def == nil {
		return 1
	}
	return 2 + len(c.def.moves)
}

// Need latches the machine.
func (c *DefineCommand) Need(tx *Tx) {
	c.row = tx.machines.Want(c.name)
	tx.defines[c.name] = true
}

// Apply stores the version. Returns fault MACHINE_INVALID.
func (c *DefineCommand) Apply(tx *Tx) (any, error) { return tx.define(c.row, c) }

// define stores a version of a machine that is latched.
func (tx *Tx) define(row *commit.Row[Name, newest], c *DefineCommand) (any, error) {
	if c.err != nil {
		return nil, c.err
	}
	v := &row.Value
	if row.Exists && v.hash == c.hash {
		first := v.Version
		first.Definition = c.def.Definition
		return commit.Repeat{First: first}, nil
	}
	before := v.settings(row.Exists)
	v = tx.machines.Change(row)
	*v = newest{Version: Version{Name: c.name, Number: v.Number + 1, Definition: c.def.Definition,
		Principal: c.Principal, RequestID: c.RequestID, CreatedAt: tx.Now}, hash: c.hash, def: c.def}
	tx.versions = append(tx.versions, *v)
	c.change = audit.Change{Kind: audit.Machine, Name: c.name.Machine, Before: before, After: v.settings(true)}
	return v.Version, nil
}
