package access

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
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
	rows, err := q.PolicyList(ctx, from, tenant)
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
	list, err := ListPolicies(ctx, pool, tenant)
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
	return a.change(ctx, func(c *change) error { return q.PolicyUpsert(ctx, c.tx, arg) })
}

// DeletePolicy removes the policy of an operation. Returns fault POLICY_NOT_FOUND.
func (a *Administration) DeletePolicy(ctx context.Context, tenant int32, operation string) error {
	return a.change(ctx, func(c *change) error {
		n, err := q.PolicyDelete(ctx, c.tx, db.PolicyDeleteParams{TenantID: tenant, Operation: operation})
		if err == nil && n == 0 {
			return PolicyNotFound.New("the tenant has no policy for %s", operation)
		}
		return err
	})
}
