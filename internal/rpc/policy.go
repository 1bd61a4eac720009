package rpc

import (
	"cmp"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/token"
)

// policy is what the tenant requires of a call that does operations, the call's own first: what is required of one is
// required of the whole. Tokens are for what they guard, not for getting them.
func (c *call) policy(operations ...string) (all access.Policy) {
	for _, name := range operations {
		r := c.identity.Policies.For(name)
		all.KeyRequired = all.KeyRequired || r.KeyRequired
		all.TokenRequired = all.TokenRequired || r.TokenRequired && !strings.HasPrefix(name, "idempotency.")
		all.KeyLife = cmp.Or(all.KeyLife, r.KeyLife)
	}
	return all
}

// requireToken puts the condition that refuses before a call that has no token and needs one. A condition, so
// that the request key is looked at first.
func (c *call) requireToken(r access.Policy) {
	if r.TokenRequired && c.token == nil {
		c.token = &flow.SubmitToken{Spend: token.Spend{Caller: c.caller()}}
		c.conditions = append(c.conditions, c.token)
	}
}

// requestKey is the call's request key, or nil; the tenant may require one.
func (s *Mutations) requestKey(c *call, operation string, r access.Policy, request proto.Message) (*commit.Key, error) {
	switch {
	case c.key != "":
		return &commit.Key{Principal: c.identity.Principal, Operation: operation, Key: c.key,
			Fingerprint: s.fingerprint(request),
			Life:        s.life(c, r)}, nil
	case r.KeyRequired:
		return nil, keyMissing(operation)
	}
	return nil, nil
}

func keyMissing(operation string) error {
	return commit.KeyMissing.New("the tenant's policy for %s requires the header %s", operation, KeyHeader)
}

// life is how long the keys of a call live: as it says, or else the tenant, or else the server.
func (s *Mutations) life(c *call, r access.Policy) time.Duration {
	return cmp.Or(c.keyLife, r.KeyLife, s.KeyLife)
}
