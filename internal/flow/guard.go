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
	Done(tx *Tx, r Result)
}

// RefusalNoter is a Guard, or a command, that adds metadata to a refusal, such as whether the token is spent.
type RefusalNoter interface{ NoteRefusal(f *fault.Fault) }

// NoteRefusal returns err with the addition of x, if err is a refusal and x a RefusalNoter.
func NoteRefusal(err error, x any) error {
	n, ok := x.(RefusalNoter)
	f := fault.Of(err)
	if !ok || f == nil || f.Reason.Class != fault.Refusal {
		return err
	}
	noted := *f
	noted.Metadata = maps.Clone(f.Metadata)
	n.NoteRefusal(&noted)
	return &noted
}
