package flow

import (
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/commit"
)

// audited returns the command on Tx that a domain's command became. If that changes settings, the returned command adds
// the changes to the audit log.
func audited(c Command, domain any) Command {
	if changes, ok := domain.(audit.Audited); ok {
		return auditedCommand{c, changes}
	}
	return c
}

type auditedCommand struct {
	Command
	changes audit.Audited
}

func (c auditedCommand) Need(tx *Tx) {
	c.Command.Need(tx)
	audits.of(tx)
}

func (c auditedCommand) Apply(tx *Tx) (any, error) {
	answer, err := c.Command.Apply(tx)
	if _, repeat := answer.(commit.Repeat); repeat || err != nil {
		return answer, err
	}
	caller, changes := c.changes.Changes()
	for _, x := range changes {
		if err := audits.of(tx).Add(caller, x); err != nil {
			return nil, err
		}
	}
	return answer, nil
}
