package access

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
	"github.com/ledgerd/ledgerd/internal/amount"
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
	// ApprovalRequired refuses calls that another principal has not approved; not for Others. ApprovalAbove is the
	// greatest amount that needs no approval; nil: every call needs it.
	ApprovalRequired bool
	ApprovalAbove    *amount.Decimal
}

// ApprovalRequired refuses a call that another principal has to approve.
var ApprovalRequired = fault.Register(fault.Reason{Name: "APPROVAL_REQUIRED", Class: fault.BadRequest,
	Code: fault.FailedPrecondition, Step: fault.Fix,
	Doc: "The tenant's policy wants another principal's approval of the operation: " +
		"request it with ApprovalService.RequestApproval. Nothing was done. The metadata has the operation, " +
		"as policy, and the amount above which it needs approval, if there is one."})

// NeedsApproval is the fault for a call that needs approval.
func (p Policy) NeedsApproval() error {
	if p.ApprovalAbove == nil {
		return ApprovalRequired.New("%s needs the approval of another principal: "+
			"request it with ApprovalService.RequestApproval",
			p.Operation).With("policy", p.Operation)
	}
	return ApprovalRequired.New("%s above %s needs the approval of another principal: "+
		"request it with ApprovalService.RequestApproval",
		p.Operation, p.ApprovalAbove).With("policy", p.Operation).With("approval_above", p.ApprovalAbove)
}

// Others is the operation name of the default policy.
const Others = "*"

// Bounds of a policy's KeyLife.
const (
	MinKeyLife = time.Minute
	MaxKeyLife = 31 * 24 * time.Hour
)

// Policies are the policies of a tenant; nil is empty.
type Policies struct {
	byOperation map[string]Policy
	approvals   bool // a policy has ApprovalRequired
}

// RequireApprovals reports whether any operation may need approval.
func (r *Policies) RequireApprovals() bool { return r != nil && r.approvals }

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

// Without returns the policies except that of an operation.
func (r *Policies) Without(operation string) *Policies {
	if r == nil {
		return nil
	}
	others := &Policies{byOperation: maps.Clone(r.byOperation), approvals: r.approvals}
	delete(others.byOperation, operation)
	return others
}

// ListPolicies lists the policies of a tenant by operation.
func ListPolicies(ctx context.Context, from db.DBTX, tenant int32) ([]Policy, error) {
	rows, err := q.PolicyList(pg.ForTenants(ctx, tenant), from, tenant)
	if err != nil {
		return nil, fmt.Errorf("list policies: %w", err)
	}
	policies := make([]Policy, len(rows))
	for i, row := range rows {
		policies[i] = Policy{Operation: row.Operation, KeyRequired: row.KeyRequired, TokenRequired: row.TokenRequired,
			KeyLife:          time.Duration(value(row.KeyLifeS)) * time.Second,
			ApprovalRequired: row.ApprovalRequired}
		if policies[i].ApprovalAbove, err = readAbove(row.ApprovalAbove); err != nil {
			return nil, err
		}
	}
	return policies, nil
}

// readAbove reads a column that may be null.
func readAbove(text *string) (*amount.Decimal, error) {
	if text == nil {
		return nil, nil
	}
	d, err := amount.ParseDecimal(*text)
	if err != nil {
		return nil, fmt.Errorf("read a policy: %w", err)
	}
	return &d, nil
}

func policiesOf(ctx context.Context, pool *pgxpool.Pool, tenant int32) (*Policies, error) {
	list, err := ListPolicies(ctx, pg.Planned{DB: pool}, tenant)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	policies := &Policies{byOperation: make(map[string]Policy, len(list))}
	for _, r := range list {
		policies.byOperation[r.Operation] = r
		policies.approvals = policies.approvals || r.ApprovalRequired
	}
	return policies, nil
}

// TenantPolicies caches the policies that require approval, for callers without credentials, such as consumers of
// brokers.
type TenantPolicies struct {
	pool *pgxpool.Pool
	*identities
}

// NewTenantPolicies makes a TenantPolicies on a pool.
func NewTenantPolicies(pool *pgxpool.Pool) *TenantPolicies {
	return &TenantPolicies{pool, newIdentities()}
}

// RequiringApproval returns the policies of a tenant that require approval, without their other requirements. They are
// at most rememberFor old. Returns fault DATABASE_UNAVAILABLE.
func (t *TenantPolicies) RequiringApproval(ctx context.Context, tenant int32) (*Policies, error) {
	var sum [32]byte // key of the identity cache: the tenant instead of the hash of a credential
	binary.BigEndian.PutUint32(sum[:], uint32(tenant))
	id, err := t.find(ctx, sum, func(ctx context.Context) (id Identity, err error) {
		all, err := policiesOf(ctx, t.pool, tenant)
		if err != nil {
			return id, fault.DatabaseUnavailable.New("the tenant's policies cannot be read now").Because(err)
		}
		if !all.RequireApprovals() {
			return id, nil
		}
		id.Policies = &Policies{byOperation: make(map[string]Policy, len(all.byOperation)), approvals: true}
		for name, p := range all.byOperation {
			id.Policies.byOperation[name] = Policy{Operation: name, ApprovalRequired: p.ApprovalRequired,
				ApprovalAbove: p.ApprovalAbove}
		}
		return id, nil
	})
	return id.Policies, err
}

var operationName = regexp.MustCompile(`^([a-z_]+\.[a-z_]+|\*)$`)

// PutPolicy creates or replaces the policy of an operation. Servers apply it within rememberFor. Returns fault
// FIELD_INVALID.
func (a *Administration) PutPolicy(ctx context.Context, tenant int32, p Policy) error {
	_, err := a.ChangePolicy(ctx, tenant, p.Operation, func(x *Policy) error { *x = p; return nil })
	return err
}

// ChangePolicy changes or creates the policy of an operation, as PutPolicy does. The function gets the policy in force:
// that of the operation, or else that of Others. It runs again if another transaction creates the policy first.
func (a *Administration) ChangePolicy(ctx context.Context, tenant int32, operation string,
	by func(*Policy) error) (p Policy, err error) {
	if !operationName.MatchString(operation) {
		return p, fault.InvalidField("operation", "must be an operation such as ledger.transfer, or * for all others")
	}
	err = a.change(ctx, func(ctx context.Context, c *change) error {
		for {
			before, err := c.lockPolicy(ctx, tenant, operation)
			if err != nil {
				return err
			}
			p = Policy{}
			var settings any
			switch {
			case before != nil:
				p, settings = *before, before.settings()
			case operation != Others:
				if others, err := c.lockPolicy(ctx, tenant, Others); err != nil {
					return err
				} else if others != nil {
					p = *others
				}
			}
			p.Operation = operation
			if err := by(&p); err != nil {
				return err
			}
			if err := p.check(); err != nil {
				return err
			}
			arg := p.row(tenant)
			if before != nil {
				err = q.PolicyUpsert(ctx, c.tx, db.PolicyUpsertParams(arg))
			} else if made, failed := q.PolicyInsert(ctx, c.tx, arg); failed == nil && made == 0 {
				continue // another transaction created the policy
			} else {
				err = failed
			}
			if err != nil {
				return err
			}
			return c.record(ctx, tenant, audit.Policy, operation, settings, p.settings())
		}
	})
	return p, err
}

func (p Policy) row(tenant int32) db.PolicyInsertParams {
	row := db.PolicyInsertParams{TenantID: tenant, Operation: p.Operation, KeyRequired: p.KeyRequired,
		TokenRequired: p.TokenRequired, ApprovalRequired: p.ApprovalRequired}
	if p.ApprovalAbove != nil {
		text := p.ApprovalAbove.String()
		row.ApprovalAbove = &text
	}
	if p.KeyLife != 0 {
		seconds := int32(p.KeyLife / time.Second)
		row.KeyLifeS = &seconds
	}
	return row
}

// check validates all but the name. Returns fault FIELD_INVALID.
func (p Policy) check() error {
	field, problem := "", ""
	switch {
	case p.ApprovalRequired && p.Operation == Others:
		field, problem = "approval_required", "must not be set for *: name the operations that need approval"
	case p.ApprovalAbove != nil && !p.ApprovalRequired:
		field, problem = "approval_above", "must not be set without approval_required"
	case p.ApprovalAbove != nil && p.ApprovalAbove.Coef.Sign() < 0:
		field, problem = "approval_above", "must not be negative"
	case p.KeyLife != 0 && (p.KeyLife < MinKeyLife || p.KeyLife > MaxKeyLife || p.KeyLife%time.Second != 0):
		field, problem = "key_life", fmt.Sprintf("must be whole seconds from %v to %v, not %v", MinKeyLife, MaxKeyLife,
			p.KeyLife)
	default:
		return nil
	}
	return fault.InvalidField(field, "%s", problem)
}

// DeletePolicy removes the policy of an operation. Returns fault POLICY_NOT_FOUND.
func (a *Administration) DeletePolicy(ctx context.Context, tenant int32, operation string) error {
	return a.change(ctx, func(ctx context.Context, c *change) error {
		before, err := c.lockPolicy(ctx, tenant, operation)
		if err == nil && before == nil {
			err = PolicyNotFound.New("the tenant has no policy for %s", operation).
				WithField("operation", "must have a policy of its own")
		}
		if err != nil {
			return err
		}
		if err := q.PolicyDelete(ctx, c.tx, db.PolicyDeleteParams{TenantID: tenant, Operation: operation}); err != nil {
			return err
		}
		return c.record(ctx, tenant, audit.Policy, operation, before.settings(), nil)
	})
}

// policySettings are the settings of a policy in the audit log.
type policySettings struct {
	KeyRequired   bool   `json:"key_required"`
	TokenRequired bool   `json:"token_required"`
	KeyLife       string `json:"key_life,omitempty"` // empty: the server's default
	// ApprovalAbove is empty if every call needs approval.
	ApprovalRequired bool   `json:"approval_required,omitempty"`
	ApprovalAbove    string `json:"approval_above,omitempty"`
}

func (p Policy) settings() policySettings {
	s := policySettings{KeyRequired: p.KeyRequired, TokenRequired: p.TokenRequired,
		ApprovalRequired: p.ApprovalRequired}
	if p.ApprovalAbove != nil {
		s.ApprovalAbove = p.ApprovalAbove.String()
	}
	if p.KeyLife > 0 {
		s.KeyLife = p.KeyLife.String()
	}
	return s
}

// lockPolicy locks a policy that is about to be changed, and returns it; nil: there is none.
func (c *change) lockPolicy(ctx context.Context, tenant int32, operation string) (*Policy, error) {
	row, err := q.PolicyLock(ctx, c.tx, db.PolicyLockParams{TenantID: tenant, Operation: operation})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := Policy{Operation: operation, KeyRequired: row.KeyRequired, TokenRequired: row.TokenRequired,
		KeyLife: time.Duration(value(row.KeyLifeS)) * time.Second, ApprovalRequired: row.ApprovalRequired}
	if p.ApprovalAbove, err = readAbove(row.ApprovalAbove); err != nil {
		return nil, err
	}
	return &p, nil
}
