package rpc

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	"github.com/ledgerd/ledgerd/internal/machine"
)

var actors = map[pb.Actor]machine.Actor{pb.Actor_ACTOR_CALLER: machine.ByCaller, pb.Actor_ACTOR_TIMER: machine.ByTimer,
	pb.Actor_ACTOR_FLOW: machine.ByFlow}

var actorNames = inverse(actors)

// definition decodes a machine. Lists without an order are sorted, so that the same machine has the same content.
func (d *decoder) definition(path string, r *pb.Definition) *machine.Definition {
	m := new(machine.Definition)
	for i, s := range r.GetStates() {
		state := machine.State{Name: s.GetName(), Code: s.GetExternalCode(), Initial: s.GetInitial(),
			Parts: orderParts[s.GetOrderParts()],
			Label: d.printable(fmt.Sprintf("%sstates[%d].label", path, i), s.GetLabel())}
		if t := s.GetTimer(); t != nil {
			state.Timer = &machine.Timer{AfterMs: milliseconds(t.GetAfter()), To: t.GetTo(), Reason: t.GetReason()}
		}
		m.States = append(m.States, state)
	}
	for i, a := range r.GetMoves() {
		for j, p := range a.GetPrincipals() {
			d.name(fmt.Sprintf("%smoves[%d].principals[%d]", path, i, j), p)
		}
		by := each(a.GetBy(), func(x pb.Actor) machine.Actor { return actors[x] })
		slices.Sort(by)
		m.Moves = append(m.Moves, machine.Allowed{From: a.GetFrom(), To: a.GetTo(), Back: a.GetBack(), By: by,
			Principals: slices.Sorted(slices.Values(a.GetPrincipals())), Require: a.GetRequire(),
			StayMs: milliseconds(a.GetStay()), Publish: a.GetPublish()})
	}
	return m
}

func milliseconds(d *durationpb.Duration) int64 { return d.AsDuration().Milliseconds() }

// duration encodes a number of milliseconds. 0 means none.
func duration(ms int64) *durationpb.Duration {
	if ms == 0 {
		return nil
	}
	return durationpb.New(time.Duration(ms) * time.Millisecond)
}

func renderMachine(v machine.Version) *pb.Machine {
	d := new(pb.Definition)
	for _, s := range v.Definition.States {
		state := &pb.State{Name: s.Name, Label: s.Label, ExternalCode: s.Code, Initial: s.Initial,
			OrderParts: orderPartNames[s.Parts]}
		if t := s.Timer; t != nil {
			state.Timer = &pb.Timer{After: duration(t.AfterMs), To: t.To, Reason: t.Reason}
		}
		d.States = append(d.States, state)
	}
	for _, a := range v.Definition.Moves {
		d.Moves = append(d.Moves, &pb.AllowedMove{From: a.From, To: a.To, Back: a.Back,
			By:         each(a.By, func(x machine.Actor) pb.Actor { return actorNames[x] }),
			Principals: a.Principals, Require: a.Require, Stay: duration(a.StayMs), Publish: a.Publish})
	}
	return &pb.Machine{Machine: v.Machine, Version: v.Number, Definition: d, Principal: v.Principal,
		RequestId: v.RequestID, CreateTime: timestamp(v.CreatedAt)}
}

func renderInstance(i machine.Instance) *pb.Instance {
	return &pb.Instance{Id: i.ID, Machine: i.Machine, Key: i.Key.Key, Version: i.Version, State: i.State,
		CameFrom: i.CameFrom, Revision: i.Revision, Cause: i.Cause, Owner: i.Owner, TimerTime: timestamp(i.TimerAt),
		TimerTo: i.TimerTo, CreateTime: timestamp(i.CreatedAt), UpdateTime: timestamp(i.ChangedAt)}
}

func renderMove(e machine.Entry) *pb.HistoryEntry {
	return &pb.HistoryEntry{Revision: e.Revision, From: e.From, To: e.To, Actor: actorNames[e.Actor], Cause: e.Cause,
		Reason: e.Reason, Inputs: e.Inputs, Principal: e.Principal, RequestId: e.RequestID,
		RecordTime: timestamp(e.RecordedAt)}
}
