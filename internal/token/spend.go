package token

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Spend is the use of a token for a submit: what stands before a change, or is one itself. Its methods are
// called in the order in which they stand here, in every attempt of a batch.
type Spend struct {
	commit.Caller
	Token            string // as it came: empty is Missing
	Subject, Purpose string // as the caller names them; what the token was not bound to is not compared
	Operation        string // what is submitted, such as ledger.transfer
	Next             bool   // issue the token that follows, if all goes well

	row *commit.Row[key, row]
}

// Need names the token.
func (s *Spend) Need(tx *Tx) {
	if s.row = nil; s.Token != "" {
		s.row = tx.Want(key{s.Tenant, hashOf(s.Token)})
	}
}

// Guard looks whether the token is good, and spends it, unless it is one that survives a refusal. Until Done
// says otherwise the submit counts as refused: what Guard did stays then, and nothing else does.
func (s *Spend) Guard(tx *Tx) error {
	if err := s.good(tx); err != nil || s.row.Value.survivesRefusal {
		return err
	}
	s.spend(tx, refused)
	return nil
}

// Apply spends a token that survives a refusal: so a refusal takes it back.
func (s *Spend) Apply(tx *Tx) error {
	if !s.row.Value.survivesRefusal {
		return nil
	}
	if err := s.good(tx); err != nil { // not spent by Guard, so perhaps by an operation since
		return err
	}
	s.spend(tx, spent)
	return nil
}

// Done notes that the submit went well and what it made, by name, and issues the next token.
func (s *Spend) Done(tx *Tx, result map[string]string) {
	r := tx.Change(s.row)
	r.state, r.result = spent, result
	if s.Next {
		tx.Add(key{s.Tenant, hashOf(Next(s.Token))}, r.of(s.Caller, tx.Now))
	}
}

// Refused tells the caller in the refusal of his submit what became of the token.
func (s *Spend) Refused(f *fault.Fault) {
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

// good tells why the token cannot be spent, if so. What the first submit made is told to none but those
// who hold the token and know what it was issued for.
func (s *Spend) good(tx *Tx) error {
	if s.row == nil {
		return Missing.New("header Submit-Token (in SpendToken: token) is missing; fetch one with IssueTokens")
	}
	r := &s.row.Value
	if !s.row.Exists || !tx.Now.Before(r.forgetAt) {
		return Unknown.New("there is no such submit token")
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
		return Foreign.New("the submit token was issued for another %s", strings.Join(differs, " and ")).
			With("differs", strings.Join(differs, ","))
	case r.state != open:
		return r.first()
	case !tx.Now.Before(r.expiresAt):
		return Expired.New("the form has expired: load it again").With("expire_time",
			r.expiresAt.UTC().Format(time.RFC3339Nano))
	}
	return nil
}

// first names the submit that spent the token, and what it made.
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

// SpendCommand spends a token for something that is done elsewhere. Its answer is Used.
type SpendCommand struct {
	Spend
	// Result names, for those who come later, what the submit made; empty: nothing.
	Result string
}

// Used tells when a token was spent.
type Used struct{ SpentAt time.Time }

// Apply spends the token for good.
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
