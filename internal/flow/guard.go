package flow

import (
	"maps"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Guard stands before a command: a submit token to spend, for example, or a page id to claim. It commits with the
// command. The effect of its method Guard survives if the command fails with a fault of class Refusal or Duplicate.
type Guard interface {
	// Need names the rows of the guard.
	Need(tx *Tx)
	// Guard runs before the command. Its error fails the call.
	Guard(tx *Tx) error
	// Apply runs after all guards, just before the command, and is undone with it.
	Apply(tx *Tx) error
	// Done receives the answer of a successful command.
	Done(tx *Tx, r Result) error
}

// Denial is a Guard that refuses its call, after the lookup of the request key: a repeat of a call that succeeded
// earlier gets its answer.
type Denial struct{ Err error }

func (d Denial) Need(*Tx)               {}
func (d Denial) Guard(*Tx) error        { return nil }
func (d Denial) Apply(*Tx) error        { return d.Err }
func (d Denial) Done(*Tx, Result) error { return nil }

// RefusalNoter is a guard that adds metadata to the refusal of its command, such as whether the token is spent.
type RefusalNoter interface{ NoteRefusal(f *fault.Fault) }

// NoteRefusal returns err with the guard's addition, if err is a refusal and the guard is a RefusalNoter.
func NoteRefusal(err error, guard any) error {
	n, ok := guard.(RefusalNoter)
	f := fault.Of(err)
	if !ok || f == nil || f.Reason.Class != fault.Refusal {
		return err
	}
	noted := *f
	noted.Metadata = maps.Clone(f.Metadata)
	n.NoteRefusal(&noted)
	return &noted
}
