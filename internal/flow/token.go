package flow

import (
	"github.com/ledgerd/ledgerd/internal/token"
)

// SubmitToken is the Guard that spends a submit token.
type SubmitToken struct {
	token.Spend
	// Made returns the names of the resource in an answer. Later calls with the token get these names.
	Made func(Result) map[string]string
}

var (
	_ Guard        = (*SubmitToken)(nil)
	_ RefusalNoter = (*SubmitToken)(nil)
)

// Need names the token.
func (s *SubmitToken) Need(tx *Tx) { s.Spend.Need(tx.Tokens()) }

// Guard spends the token. It stays spent if the command is refused.
func (s *SubmitToken) Guard(tx *Tx) error { return s.Spend.Guard(tx.Tokens()) }

// Apply spends a token issued with survives_refusal: a refusal undoes it.
func (s *SubmitToken) Apply(tx *Tx) error { return s.Spend.Apply(tx.Tokens()) }

// Done records the resource that the command made or found.
func (s *SubmitToken) Done(tx *Tx, r Result) { s.Spend.Done(tx.Tokens(), s.Made(r)) }
