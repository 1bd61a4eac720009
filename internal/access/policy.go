package access

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Policy is a tenant's requirements on calls of an operation.
type Policy struct {
	Operation     string // such as ledger.transfer; Others: operations without their own policy
	KeyRequired   bool
	TokenRequired bool
	KeyLife       time.Duration // 0: the server's default. Whole seconds, MinKeyLife to MaxKeyLife
}

// Others is the operation name of the default policy.
const Others = "*"

// Bounds of a policy's KeyLife.
const (
	MinKeyLife = time.Minute
	MaxKeyLife = 31 * 24 * time.Hour
)

// Policies are the policies of a tenant; nil is empty.
type Policies struct{ byOperation map[string]Policy }

// For returns the policy of an operation.
func (r *Policies) For(operation string) Policy {
	if r == nil {
		return Policy{}
	}
	if policy, own := r.byOperation[operation]; own {
		return policy
	}
	return r.byOperation[Others]
}

// ListPolicies lists the policies of a tenant by operation.
func ListPolicies(ctx context.Context, from db.DBTX, tenant int32) ([]Policy, error) {
	rows, err := q.PolicyList(pg.ForTenants(ctx, tenant), from, tenant)
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	policies := make([]Policy, len(rows))
	for i, row := range rows {
		policies[i] = Policy{Operation: row.Operation, KeyRequired: row.KeyRequired, TokenRequired: row.TokenRequired}
		if row.KeyLifeS != nil {
			policies[i].KeyLife = time.Duration(*row.KeyLifeS) * time.Second
		}
	}
	return policies, nil
}

func policiesOf(ctx context.Context, pool *pgxpool.Pool, tenant int32) (*Policies, error) {
	list, err := ListPolicies(ctx, pg.Planned{DB: pool}, tenant)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	policies := &Policies{make(map[string]Policy, len(list))}
	for _, r := range list {
		policies.byOperation[r.Operation] = r
	}
	return policies, nil
}

var operationName = regexp.MustCompile(`^([a-z_]+\.[a-z_]+|\*)$`)

// PutPolicy creates or replaces the policy of an operation. Servers apply it within rememberFor. Returns fault
// FIELD_INVALID.
func (a *Administration) PutPolicy(ctx context.Context, tenant int32, r Policy) error {
	arg := db.PolicyUpsertParams{TenantID: tenant, Operation: r.Operation, KeyRequired: r.KeyRequired,
		TokenRequired: r.TokenRequired}
	if !operationName.MatchString(r.Operation) {
		const problem = "must be an operation such as ledger.transfer, or * for all others"
		return fault.FieldInvalid.New("operation: %s", problem).WithField("operation", problem)
	}
	if r.KeyLife != 0 {
		if r.KeyLife < MinKeyLife || r.KeyLife > MaxKeyLife || r.KeyLife%time.Second != 0 {
			problem := fmt.Sprintf("must be whole seconds from %v to %v, not %v", MinKeyLife, MaxKeyLife, r.KeyLife)
			return fault.FieldInvalid.New("key_life: %s", problem).WithField("key_life", problem)
		}
		seconds := int32(r.KeyLife / time.Second)
		arg.KeyLifeS = &seconds
	}
	return a.change(ctx, func(c *change) error {
		before, err := c.lockPolicy(ctx, tenant, r.Operation)
		if err != nil {
			return err
		}
		if err := q.PolicyUpsert(ctx, c.tx, arg); err != nil {
			return err
		}
		return c.record(ctx, tenant, audit.Policy, r.Operation, before, r.settings())
	})
}

// DeletePolicy removes the policy of an operation. Returns fault POLICY_NOT_FOUND.
func (a *Administration) DeletePolicy(ctx context.Context, tenant int32, operation string) error {
	return a.change(ctx, func(c *change) error {
		before, err := c.lockPolicy(ctx, tenant, operation)
		if err == nil && before == nil {
			err = PolicyNotFound.New("the tenant has no policy for %s", operation)
		}
		if err != nil {
			return err
		}
		if err := q.PolicyDelete(ctx, c.tx, db.PolicyDeleteParams{TenantID: tenant, Operation: operation}); err != nil {
			return err
		}
		return c.record(ctx, tenant, audit.Policy, operation, before, nil)
	})
}

// policySettings are the settings of a policy in the audit log.
type policySettings struct {
	KeyRequired   bool   `json:"key_required"`
	TokenRequired bool   `json:"token_required"`
	KeyLife       string `json:"key_life,omitempty"` // empty: the server's default
}

func (p Policy) settings() policySettings {
	s := policySettings{KeyRequired: p.KeyRequired, TokenRequired: p.TokenRequired}
	if p.KeyLife > 0 {
		s.KeyLife = p.KeyLife.String()
	}
	return s
}

// lockPolicy locks a policy that is about to be changed, and returns its settings; nil: there is none.
func (c *change) lockPolicy(ctx context.Context, tenant int32, operation string) (any, error) {
	row, err := q.PolicyLock(ctx, c.tx, db.PolicyLockParams{TenantID: tenant, Operation: operation})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := Policy{Operation: operation, KeyRequired: row.KeyRequired, TokenRequired: row.TokenRequired,
		KeyLife: time.Duration(value(row.KeyLifeS)) * time.Second}
	return p.settings(), nil
}
