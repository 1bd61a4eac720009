package machine

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// CreateParams describe an instance to create.
type CreateParams struct {
	Machine, Key string
	Owner        string // empty: none
	// Timer is the length of the first state's timer, instead of the machine's. 0: the machine's.
	Timer time.Duration
	// TimerAt is when the timer of the first state fires, if it has one. It is not compared. Zero: after its length.
	TimerAt time.Time
}

// CreateCommand creates an instance in the first state of the machine's newest version. A shipped machine that the
// tenant does not have is stored first. If the instance exists with the same owner and timer, the answer is a
// commit.Repeat of it as it is now. Its answer is an Instance.
type CreateCommand struct {
	commit.Caller
	CreateParams

	row     *row
	machine *commit.Row[Name, newest]
	ship    bool // store the shipped machine of this name first
}

// Need names the instance and the machine.
func (c *CreateCommand) Need(tx *Tx) {
	c.row = tx.Want(Key{c.Tenant, c.Machine, c.Key})
	c.machine = tx.machines.Want(Name{c.Tenant, c.Machine})
	if c.ship {
		tx.defines[c.machine.Key] = true
	}
}

// Apply creates the instance. Returns faults MACHINE_NOT_FOUND, INSTANCE_EXISTS_DIFFERENT, and FIELD_INVALID for a
// timer of a state that has none.
func (c *CreateCommand) Apply(tx *Tx) (any, error) {
	if c.row.Exists {
		return c.repeat(tx)
	}
	if !c.machine.Exists {
		shipped := Shipped[c.Machine]
		if shipped == nil {
			return nil, notFound(c.machine.Key)
		}
		if !tx.defines[c.machine.Key] {
			c.ship = true // the next run latches the machine
			return nil, commit.ErrMoreRows
		}
		if _, err := tx.define(c.machine, NewDefine(c.Caller, c.Machine, shipped)); err != nil {
			return nil, err
		}
	}
	m := &c.machine.Value
	def, err := tx.definition(m.def, m.hash)
	if err != nil {
		return nil, err
	}
	if c.Timer > 0 && def.initial.Timer == nil {
		return nil, fault.FieldInvalid.New("timer: state %s of machine %s has no timer", def.label(def.initial.Name),
			c.Machine).WithField("timer", "must not be set: the machine's first state has no timer")
	}
	v := tx.Change(c.row)
	v.Instance = Instance{Key: c.row.Key, ID: tx.ID(), Version: m.Number, Owner: c.Owner, OwnTimer: c.Timer,
		CreatedAt: tx.Now}
	v.def = def
	tx.enter(c.row, step{to: def.initial.Name, actor: ByCaller, cause: CauseCreation, caller: c.Caller,
		timerAt: c.TimerAt})
	return v.Instance, nil
}

func (c *CreateCommand) repeat(tx *Tx) (any, error) {
	v, err := tx.current(c.row, c.Caller)
	if err != nil {
		return nil, err
	}
	var differs []string
	if v.Owner != c.Owner {
		differs = append(differs, "owner")
	}
	if v.OwnTimer != c.Timer {
		differs = append(differs, "timer")
	}
	if len(differs) == 0 {
		return commit.Repeat{First: v.Instance}, nil
	}
	f := v.fault(InstanceExistsDifferent, "machine %s already has an instance %s", c.Machine, c.Key).
		Differing(differs, "key")
	if !tx.made(c.row) { // if this call made it, Undo removes it, so its id must not be returned
		f = f.With("first_id", v.ID)
	}
	return nil, f
}
