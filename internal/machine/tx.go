package machine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Tx holds the instances of one batch's transaction, and the machines that it defines or creates instances of.
type Tx struct {
	instances
	machines commit.Rows[Name, newest]
	defines  map[Name]bool // machines that a command of the batch defines: latched
	errs     map[hash]error

	versions []newest // made by this batch
	steps    []step   // made by this batch
	mark     struct{ versions, steps int }
}

type (
	instances = commit.Rows[Key, stored]
	row       = commit.Row[Key, stored]
)

// stored is an instance with its definition.
type stored struct {
	Instance
	hash hash // of the definition
	def  *compiled
}

// newest is the newest version of a machine.
type newest struct {
	Version
	hash hash
	def  *compiled
}

// step is one move of an instance, or its creation.
type step struct {
	row     *row
	after   Instance
	to      string
	actor   Actor
	cause   string
	reason  string
	inputs  map[string]string
	caller  commit.Caller
	publish string // type of the event; empty: none
	parts   Parts
	timerAt time.Time // zero: after the length of the timer
	owner   string    // empty: stays
}

var (
	q             db.Queries
	instanceTable = commit.NewKeyOrder[Key, stored](compareKeys)
	machineTable  = commit.NewKeyOrder[Name, newest](compareNames)
)

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction.
func NewTx() *Tx {
	return &Tx{instances: instanceTable.Rows(), machines: machineTable.Rows(), defines: map[Name]bool{}}
}

// NameConstraints returns the unique constraints on names that callers choose.
func NameConstraints() []string {
	return []string{"machine_definitions_pkey", "machine_instances_pkey"}
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Machine, b.Machine), cmp.Compare(a.Key, b.Key))
}

func compareNames(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Machine, b.Machine))
}

// Latch owns the instances, and the machines that are defined. A machine of which instances are created is only read:
// its newest version is one that was committed when the batch began, and versions never change.
func (tx *Tx) Latch(l *commit.LatchKeys) {
	tx.instances.Latch(l)
	for name := range tx.defines {
		l.Own(machineTable.Hash(name))
	}
}

// CanOverlap is true because commands see only the instances that they declare, and versions, which never change. The
// unique constraints detect instances and versions that another process inserts.
func (tx *Tx) CanOverlap() bool { return true }

// Lock locks and loads the instances.
func (tx *Tx) Lock(p *commit.Pipe) {
	rows := tx.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.InstanceLockParams
	for _, r := range rows {
		arg.Tenants = append(arg.Tenants, r.Key.Tenant)
		arg.Machines = append(arg.Machines, r.Key.Machine)
		arg.Keys = append(arg.Keys, r.Key.Key)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.InstanceLock(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			r := rows[f.N-1]
			tx.Load(r, stored{hash: hash(f.DefinitionHash), Instance: Instance{Key: r.Key, ID: f.InstanceID,
				Version: f.Version, State: f.State, CameFrom: f.CameFrom, Revision: f.Revision, Cause: f.Cause,
				Owner:    pg.OrZero(f.Owner),
				OwnTimer: pg.Milliseconds(pg.OrZero(f.TimerMs)), TimerAt: pg.OrZero(f.TimerAt),
				TimerTo: pg.OrZero(f.TimerTo), CreatedAt: f.CreatedAt, ChangedAt: f.ChangedAt}})
		}
		return err
	})
}

// Lookup reads the newest versions of machines.
func (tx *Tx) Lookup(p *commit.Pipe) {
	rows := tx.machines.Sorted()
	if len(rows) == 0 {
		return
	}
	var arg db.MachineNewestParams
	for _, r := range rows {
		arg.Tenants, arg.Machines = append(arg.Tenants, r.Key.Tenant), append(arg.Machines, r.Key.Machine)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.MachineNewest(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			r := rows[f.N-1]
			tx.machines.Load(r, newest{hash: hash(f.DefinitionHash), Version: Version{Name: r.Key, Number: f.Version,
				Principal: f.Principal, RequestID: f.RequestID, CreatedAt: f.CreatedAt}})
		}
		return err
	})
}

// Start keeps the times of the batch and its source of row ids.
func (tx *Tx) Start(at commit.Times, newID func() int64) {
	tx.instances.Start(at, newID)
	tx.machines.Start(at, newID)
}

// Resolve finds the definitions that instances follow, and those of the newest versions: in the cache, or else in the
// database.
func (tx *Tx) Resolve(p *commit.Pipe) {
	var arg db.DefinitionReadParams
	var missing []**compiled
	find := func(name Name, version int32, h hash, def **compiled) {
		if *def != nil || tx.errs[h] != nil {
			return
		}
		if *def = cached.get(h); *def == nil {
			missing = append(missing, def)
			arg.Tenants, arg.Machines = append(arg.Tenants, name.Tenant), append(arg.Machines, name.Machine)
			arg.Versions = append(arg.Versions, version)
		}
	}
	for _, r := range tx.Sorted() {
		if v := &r.Value; r.Found {
			find(Name{v.Tenant, v.Machine}, v.Version, v.hash, &v.def)
		}
	}
	for _, r := range tx.machines.Sorted() {
		if v := &r.Value; r.Found {
			find(v.Name, v.Number, v.hash, &v.def)
		}
	}
	if len(missing) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.DefinitionRead(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			h := hash(f.DefinitionHash)
			def, err := cached.load(h, f.Definition)
			if err != nil {
				if tx.errs == nil {
					tx.errs = map[hash]error{}
				}
				tx.errs[h] = err
			}
			*missing[f.N-1] = def
		}
		return err
	})
}

// definition returns a definition that Resolve found, or its error.
func (tx *Tx) definition(def *compiled, h hash) (*compiled, error) {
	if def != nil {
		return def, nil
	}
	if err := tx.errs[h]; err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("machine: definition %x is missing", h[:4])
}

// current makes the move of a timer that has fired, then returns the instance. Every command calls it before it reads
// the state.
func (tx *Tx) current(r *row, c commit.Caller) (*stored, error) {
	v := &r.Value
	if _, err := tx.definition(v.def, v.hash); err != nil {
		return nil, err
	}
	if !v.due(tx.Now) {
		return v, nil
	}
	t := v.def.states[v.State].Timer
	tx.enter(r, step{to: v.TimerTo, actor: ByTimer, cause: CauseTimer, reason: t.Reason, caller: c,
		publish: v.def.moves[pair{v.State, v.TimerTo}].Publish})
	return v, nil
}

// enter makes a step, and starts the timer of the state that it enters.
func (tx *Tx) enter(r *row, s step) {
	v := tx.Change(r)
	at := tx.Now
	if v.ChangedAt.After(at) {
		at = v.ChangedAt // the clock has gone back since: the history stays in order
	}
	v.move(s.to, s.cause, at)
	if t := v.def.states[s.to].Timer; t != nil {
		after := t.After()
		if v.Revision == 1 && v.OwnTimer > 0 {
			after = v.OwnTimer
		}
		v.TimerAt, v.TimerTo = tx.Now.Add(after), t.To
		if !s.timerAt.IsZero() {
			v.TimerAt = s.timerAt
		}
	}
	v.Owner = cmp.Or(s.owner, v.Owner)
	s.row, s.after, s.parts = r, v.Instance, v.def.states[s.to].Parts
	tx.steps = append(tx.steps, s)
}

// Moved is a move that has consequences outside of machines.
type Moved struct {
	Instance Instance // after the move
	Caller   commit.Caller
	Actor    Actor
	Publish  string // type of the event to publish; empty: none
	Parts    Parts
}

// Steps returns the number of moves that the batch has made so far.
func (tx *Tx) Steps() int { return len(tx.steps) }

// MovedSince returns the moves with consequences that the batch made after its first n moves.
func (tx *Tx) MovedSince(n int) (moves []Moved) {
	for i := range tx.steps[n:] {
		if s := &tx.steps[n+i]; s.publish != "" || s.parts != KeepParts {
			moves = append(moves, Moved{s.after, s.caller, s.actor, s.publish, s.parts})
		}
	}
	return moves
}

// made reports whether an instance was created since Mark.
func (tx *Tx) made(r *row) bool {
	return slices.ContainsFunc(tx.steps[tx.mark.steps:],
		func(s step) bool { return s.row == r && s.after.Revision == 1 })
}

// Mark sets the point to which Undo reverts.
func (tx *Tx) Mark() {
	tx.instances.Mark()
	tx.machines.Mark()
	tx.mark.versions, tx.mark.steps = len(tx.versions), len(tx.steps)
}

// Undo reverts all changes since Mark.
func (tx *Tx) Undo() {
	tx.instances.Undo()
	tx.machines.Undo()
	tx.versions, tx.steps = tx.versions[:tx.mark.versions], tx.steps[:tx.mark.steps]
}
