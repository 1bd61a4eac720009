package access

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
)

// Rule is what a tenant demands of the calls of an operation.
type Rule struct {
	Operation     string // such as ledger.transfer; Others: those without a rule of their own
	KeyRequired   bool
	TokenRequired bool
	KeyLife       time.Duration // 0: as the server is told. Whole seconds, LeastKeyLife to GreatestKeyLife
}

// Others is the operation of the rule for all that have none of their own.
const Others = "*"

// How long request keys may be told to live.
const (
	LeastKeyLife    = time.Minute
	GreatestKeyLife = 31 * 24 * time.Hour
)

// Rules are a tenant's; nil has none.
type Rules struct{ byOperation map[string]Rule }

// For is the rule for an operation.
func (r *Rules) For(operation string) Rule {
	if r == nil {
		return Rule{}
	}
	if rule, own := r.byOperation[operation]; own {
		return rule
	}
	return r.byOperation[Others]
}

// ListRules lists a tenant's rules by operation.
func ListRules(ctx context.Context, pool *pgxpool.Pool, tenant int32) ([]Rule, error) {
	rows, err := q.RuleList(ctx, pool, tenant)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	rules := make([]Rule, len(rows))
	for i, row := range rows {
		rules[i] = Rule{Operation: row.Operation, KeyRequired: row.KeyRequired, TokenRequired: row.TokenRequired}
		if row.KeyLifeS != nil {
			rules[i].KeyLife = time.Duration(*row.KeyLifeS) * time.Second
		}
	}
	return rules, nil
}

func rulesOf(ctx context.Context, pool *pgxpool.Pool, tenant int32) (*Rules, error) {
	list, err := ListRules(ctx, pool, tenant)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	rules := &Rules{make(map[string]Rule, len(list))}
	for _, r := range list {
		rules.byOperation[r.Operation] = r
	}
	return rules, nil
}

var operationName = regexp.MustCompile(`^([a-z_]+\.[a-z_]+|\*)$`)

// SetRule makes or replaces the rule of an operation. Servers follow within rememberFor.
func SetRule(ctx context.Context, pool *pgxpool.Pool, tenant int32, r Rule) error {
	if !operationName.MatchString(r.Operation) {
		return fmt.Errorf("%q is no operation: name one such as ledger.transfer, or * for all others", r.Operation)
	}
	arg := db.RuleUpsertParams{TenantID: tenant, Operation: r.Operation, KeyRequired: r.KeyRequired, TokenRequired: r.TokenRequired}
	if r.KeyLife != 0 {
		if r.KeyLife < LeastKeyLife || r.KeyLife > GreatestKeyLife {
			return fmt.Errorf("request keys can live %v to %v, not %v", LeastKeyLife, GreatestKeyLife, r.KeyLife)
		}
		seconds := int32(r.KeyLife / time.Second)
		arg.KeyLifeS = &seconds
	}
	if err := q.RuleUpsert(ctx, pool, arg); err != nil {
		return fmt.Errorf("set a rule: %w", err)
	}
	return nil
}

// DeleteRule removes the rule of an operation; ok is false when it has none.
func DeleteRule(ctx context.Context, pool *pgxpool.Pool, tenant int32, operation string) (ok bool, err error) {
	n, err := q.RuleDelete(ctx, pool, db.RuleDeleteParams{TenantID: tenant, Operation: operation})
	return n > 0, err
}
