package token

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// IssueCommand issues tokens with the same binding. Its answer is Issued.
type IssueCommand struct {
	commit.Caller
	Tokens           []string // made by New; a rerun of the batch issues the same tokens
	Subject, Purpose string   // empty: not checked when the token is spent
	Life             time.Duration
	SurvivesRefusal  bool
}

// Issued is the answer to an IssueCommand.
type Issued struct{ ExpiresAt time.Time }

// Need names nothing: new tokens have no rows yet.
func (c *IssueCommand) Need(*Tx) {}

func (c *IssueCommand) Apply(tx *Tx) (any, error) {
	r := binding{c.Subject, c.Purpose, c.Life, c.SurvivesRefusal}.of(c.Caller, tx.Now)
	for _, t := range c.Tokens {
		tx.Add(key{c.Tenant, hashOf(t)}, r)
	}
	return Issued{r.expiresAt}, nil
}
