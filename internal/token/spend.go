package token

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Spend is the use of a token for a submission, as a guard before another change or as the change itself. Its
// methods are called in declaration order in every attempt of a batch.
type Spend struct {
	commit.Caller
	Token            string // as sent; empty is Missing
	Subject, Purpose string // as named by the caller; compared only if the token is bound to them
	Operation        string // the submitted operation, such as ledger.transfer
	Next             bool   // issue the next token on success

	row *commit.Row[key, row]
}

// Need names the token.
func (s *Spend) Need(tx *Tx) {
	if s.row = nil; s.Token != "" {
		s.row = tx.Want(key{s.Tenant, hashOf(s.Token)})
	}
}

// Guard checks the token, and spends it unless it is of the kind that survives a refusal. The token records a refused
// submission until Done is called, because only Guard's changes are kept after a refusal.
func (s *Spend) Guard(tx *Tx) error {
	if err := s.check(tx); err != nil || s.row.Value.survivesRefusal {
		return err
	}
	s.spend(tx, refused)
	return nil
}

// Apply spends a token that survives a refusal: a refusal undoes the changes of Apply.
func (s *Spend) Apply(tx *Tx) error {
	if !s.row.Value.survivesRefusal {
		return nil
	}
	if err := s.check(tx); err != nil { // check again: an operation may have spent it since Guard
		return err
	}
	s.spend(tx, spent)
	return nil
}

// Done records the success of the submission and the names of its results, and issues the next token.
func (s *Spend) Done(tx *Tx, result map[string]string) {
	r := tx.Change(s.row)
	r.state, r.result = spent, result
	if s.Next {
		tx.Add(key{s.Tenant, hashOf(Next(s.Token))}, r.of(s.Caller, tx.Now))
	}
}

// NoteRefusal adds the token's state to the refusal of the submission.
func (s *Spend) NoteRefusal(f *fault.Fault) {
	switch {
	case s.row == nil:
	case s.row.Value.survivesRefusal:
		f.With("submit_token", "kept")
	default:
		f.With("submit_token", "spent").Step = fault.NewToken
	}
}

func (s *Spend) spend(tx *Tx, state string) {
	r := tx.Change(s.row)
	r.state, r.spentAt, r.forgetAt = state, tx.Now, r.expiresAt.Add(spentKept)
	r.spentBy, r.requestID, r.operation = s.Principal, s.RequestID, s.Operation
}

// check returns the reason why the token cannot be spent, or nil. The result of the first submission is
// disclosed only to callers that present the token with its subject and purpose.
func (s *Spend) check(tx *Tx) error {
	if s.row == nil {
		return Missing.New("header Submit-Token (in SpendToken: token) is missing; fetch one with IssueTokens")
	}
	r := &s.row.Value
	if !s.row.Exists || !tx.Now.Before(r.forgetAt) {
		return Unknown.New("there is no such submit token")
	}
	if r.reopened {
		return commit.ErrLater
	}
	var differs []string
	if r.subject != "" && r.subject != s.Subject {
		differs = append(differs, "subject")
	}
	if r.purpose != "" && r.purpose != s.Purpose {
		differs = append(differs, "purpose")
	}
	switch {
	case len(differs) > 0:
		return Foreign.New("the submit token was issued for another %s: send the right one, or fetch another token",
			strings.Join(differs, " and ")).
			With("differs", strings.Join(differs, ","))
	case r.state != open:
		return r.first()
	case !tx.Now.Before(r.expiresAt):
		return Expired.New("the form has expired: load it again").With("expire_time",
			r.expiresAt.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// first describes the submission that spent the token, and its result.
func (r *row) first() error {
	f := Spent.New("the form was already submitted").With("first_operation", r.operation).With("first_request_id",
		r.requestID).
		With("first_time", r.spentAt.UTC().Format(time.RFC3339Nano))
	if r.state == refused {
		f.Message = "the form was already submitted, and refused: load it again"
		f.Step = fault.NewToken
		return f.With("first_outcome", "refused")
	}
	for _, name := range slices.Sorted(maps.Keys(r.result)) {
		f.With("first_"+name, r.result[name])
	}
	return f.With("first_outcome", "done")
}

// SpendCommand spends a token for a submission to another system. Its answer is Used.
type SpendCommand struct {
	Spend
	// Result names what the submission created, for later callers; empty: nothing.
	Result string
}

// Used is the answer to a SpendCommand.
type Used struct{ SpentAt time.Time }

// Apply spends the token permanently.
func (c *SpendCommand) Apply(tx *Tx) (any, error) {
	if err := c.Spend.Apply(tx); err != nil {
		return nil, err
	}
	var result map[string]string
	if c.Result != "" {
		result = map[string]string{"result": c.Result}
	}
	c.Done(tx, result)
	return Used{tx.Now}, nil
}
