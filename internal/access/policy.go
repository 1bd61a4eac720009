package access

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
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

func ListPolicies(ctx context.Context, pool *pgxpool.Pool, tenant int32) ([]Policy, error) {
	rows, err := q.PolicyList(pg.ForTenants(ctx, tenant), pg.Planned{DB: pool}, tenant)
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

// SetPolicy creates or replaces the policy of an operation. Servers apply it within rememberFor.
func SetPolicy(ctx context.Context, pool *pgxpool.Pool, tenant int32, r Policy) error {
	if !operationName.MatchString(r.Operation) {
		return fmt.Errorf("%q is not an operation: use a name such as ledger.transfer, or * for all others",
			r.Operation)
	}
	arg := db.PolicyUpsertParams{TenantID: tenant, Operation: r.Operation, KeyRequired: r.KeyRequired,
		TokenRequired: r.TokenRequired}
	if r.KeyLife != 0 {
		if r.KeyLife < MinKeyLife || r.KeyLife > MaxKeyLife {
			return fmt.Errorf("the life of request keys must be %v to %v, not %v", MinKeyLife, MaxKeyLife,
				r.KeyLife)
		}
		seconds := int32(r.KeyLife / time.Second)
		arg.KeyLifeS = &seconds
	}
	if err := q.PolicyUpsert(pg.ForTenants(ctx, tenant), pg.Planned{DB: pool}, arg); err != nil {
		return fmt.Errorf("set a policy: %w", err)
	}
	return nil
}

// DeletePolicy removes the policy of an operation; ok is false if there is none.
func DeletePolicy(ctx context.Context, pool *pgxpool.Pool, tenant int32, operation string) (ok bool, err error) {
	n, err := q.PolicyDelete(pg.ForTenants(ctx, tenant), pg.Planned{DB: pool},
		db.PolicyDeleteParams{TenantID: tenant, Operation: operation})
	return n > 0, err
}
