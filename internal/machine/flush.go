package machine

import (
	"slices"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/machine/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Flush writes versions with their moves, then instances, then the history. The trigger of the instances sees one move
// of an instance a statement: an instance that moves several times in a batch is updated several times.
func (tx *Tx) Flush(p *commit.Pipe) {
	tx.flushVersions(p)
	if len(tx.steps) == 0 {
		return
	}
	created, moves := tx.rounds()
	if len(created) > 0 {
		tx.insert(p, created)
	}
	for _, round := range moves {
		tx.update(p, round)
	}
	tx.flushHistory(p)
}

// rounds splits the steps into creations, and into rounds of at most one move of each instance. Each is sorted by key.
func (tx *Tx) rounds() (created []*step, moves [][]*step) {
	seen := map[*row]int{}
	for i := range tx.steps {
		s := &tx.steps[i]
		if s.after.Revision == 1 {
			created = append(created, s)
			continue
		}
		n := seen[s.row]
		seen[s.row]++
		if n == len(moves) {
			moves = append(moves, nil)
		}
		moves[n] = append(moves[n], s)
	}
	byKey := func(a, b *step) int { return compareKeys(a.row.Key, b.row.Key) }
	slices.SortFunc(created, byKey)
	for _, round := range moves {
		slices.SortFunc(round, byKey)
	}
	return created, moves
}

func (tx *Tx) flushVersions(p *commit.Pipe) {
	if len(tx.versions) == 0 {
		return
	}
	versions, moves := db.DefinitionInsertParams{Now: tx.Now}, db.MoveInsertParams{}
	for i := range tx.versions {
		v := &tx.versions[i]
		versions.Tenants, versions.Machines = append(versions.Tenants, v.Tenant), append(versions.Machines, v.Machine)
		versions.Versions = append(versions.Versions, v.Number)
		versions.Definitions = append(versions.Definitions, string(v.def.text))
		versions.DefinitionHashes = append(versions.DefinitionHashes, v.hash[:])
		versions.Principals = append(versions.Principals, v.Principal)
		versions.RequestIds = append(versions.RequestIds, v.RequestID)
		add := func(from, to string, back bool) {
			moves.Tenants, moves.Machines = append(moves.Tenants, v.Tenant), append(moves.Machines, v.Machine)
			moves.Versions = append(moves.Versions, v.Number)
			moves.FromStates, moves.ToStates = append(moves.FromStates, from), append(moves.ToStates, to)
			moves.Back = append(moves.Back, back)
		}
		add("", v.def.initial.Name, false)
		for move, m := range v.def.moves {
			add(move.from, move.to, m.back)
		}
	}
	p.Queue(func(d commit.DB) error { return q.DefinitionInsert(p.Context(), d, versions) })
	p.Queue(func(d commit.DB) error { return q.MoveInsert(p.Context(), d, moves) })
}

func (tx *Tx) insert(p *commit.Pipe, created []*step) {
	arg := db.InstanceInsertParams{Now: tx.Now}
	for _, s := range created {
		i := &s.after
		arg.Tenants, arg.Machines, arg.Keys = append(arg.Tenants, i.Tenant), append(arg.Machines, i.Machine),
			append(arg.Keys, i.Key.Key)
		arg.InstanceIds, arg.Versions = append(arg.InstanceIds, i.ID), append(arg.Versions, i.Version)
		arg.States, arg.CameFrom = append(arg.States, i.State), append(arg.CameFrom, i.CameFrom)
		arg.Revisions, arg.Causes = append(arg.Revisions, i.Revision), append(arg.Causes, i.Cause)
		arg.Owners, arg.TimerMs = append(arg.Owners, i.Owner), append(arg.TimerMs, i.OwnTimer.Milliseconds())
		arg.TimerAt, arg.TimerTo = append(arg.TimerAt, i.TimerAt), append(arg.TimerTo, i.TimerTo)
	}
	p.Queue(func(d commit.DB) error { return q.InstanceInsert(p.Context(), d, arg) })
}

func (tx *Tx) update(p *commit.Pipe, round []*step) {
	arg := db.InstanceMoveParams{}
	for _, s := range round {
		i := &s.after
		arg.Tenants, arg.Machines, arg.Keys = append(arg.Tenants, i.Tenant), append(arg.Machines, i.Machine),
			append(arg.Keys, i.Key.Key)
		arg.States, arg.CameFrom = append(arg.States, i.State), append(arg.CameFrom, i.CameFrom)
		arg.Revisions, arg.Causes = append(arg.Revisions, i.Revision), append(arg.Causes, i.Cause)
		arg.TimerAt, arg.TimerTo = append(arg.TimerAt, i.TimerAt), append(arg.TimerTo, i.TimerTo)
		arg.Owners = append(arg.Owners, i.Owner)
		arg.ChangedAt = append(arg.ChangedAt, i.ChangedAt)
	}
	p.Queue(func(d commit.DB) error { return q.InstanceMove(p.Context(), d, arg) })
}

func (tx *Tx) flushHistory(p *commit.Pipe) {
	arg := db.HistoryInsertParams{}
	for i := range tx.steps {
		s := &tx.steps[i]
		a := &s.after
		arg.Tenants, arg.InstanceIds = append(arg.Tenants, a.Tenant), append(arg.InstanceIds, a.ID)
		arg.Revisions, arg.Versions = append(arg.Revisions, a.Revision), append(arg.Versions, a.Version)
		arg.Machines, arg.Keys = append(arg.Machines, a.Machine), append(arg.Keys, a.Key.Key)
		arg.FromStates, arg.ToStates = append(arg.FromStates, a.CameFrom), append(arg.ToStates, a.State)
		arg.Actors, arg.Causes = append(arg.Actors, string(s.actor)), append(arg.Causes, s.cause)
		arg.Reasons, arg.Inputs = append(arg.Reasons, s.reason), append(arg.Inputs, pg.JSON(s.inputs))
		arg.Principals = append(arg.Principals, s.caller.Principal)
		arg.RequestIds = append(arg.RequestIds, s.caller.RequestID)
		arg.RecordedAt = append(arg.RecordedAt, a.ChangedAt)
	}
	p.Queue(func(d commit.DB) error { return q.HistoryInsert(p.Context(), d, arg) })
}
