package token

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// IssueCommand issues tokens, all alike. Its answer is Issued.
type IssueCommand struct {
	commit.Caller
	Tokens           []string // of New: a batch that runs again issues the same
	Subject, Purpose string   // empty: not asked for when the token is spent
	Life             time.Duration
	SurvivesRefusal  bool
}

// Issued tells until when tokens can be spent.
type Issued struct{ ExpiresAt time.Time }

// Need has nothing to look up: nobody had the tokens before.
func (c *IssueCommand) Need(*Tx) {}

// Apply issues the tokens.
func (c *IssueCommand) Apply(tx *Tx) (any, error) {
	r := binding{c.Subject, c.Purpose, c.Life, c.SurvivesRefusal}.of(c.Caller, tx.Now)
	for _, t := range c.Tokens {
		tx.Add(key{c.Tenant, hashOf(t)}, r)
	}
	return Issued{r.expiresAt}, nil
}
