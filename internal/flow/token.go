package flow

import (
	"github.com/ledgerd/ledgerd/internal/token"
)

// SubmitToken is the Condition that a submit token is spent by the change behind it.
type SubmitToken struct {
	token.Spend
	// Made names what the change made, from its answer, for those who come with the token later.
	Made func(answer any, existed bool) map[string]string
}

var (
	_ Condition = (*SubmitToken)(nil)
	_ Telling   = (*SubmitToken)(nil)
)

// Need names the token.
func (s *SubmitToken) Need(tx *Tx) { s.Spend.Need(tx.Tokens()) }

// Guard spends it, for the case that the change is refused.
func (s *SubmitToken) Guard(tx *Tx) error { return s.Spend.Guard(tx.Tokens()) }

// Apply spends one that survives refusals.
func (s *SubmitToken) Apply(tx *Tx) error { return s.Spend.Apply(tx.Tokens()) }

// Done notes what the change made. What was there before counts as made: it is what the form was for.
func (s *SubmitToken) Done(tx *Tx, answer any, existed bool) error {
	s.Spend.Done(tx.Tokens(), s.Made(answer, existed))
	return nil
}
