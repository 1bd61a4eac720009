package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

type policyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database with the policies, with a login role that is a member of ledgerd_admin." env:"LEDGERD_ADMIN_DATABASE_URL,DATABASE_URL"`

	Set    policySetCmd    `cmd:"" help:"Create or change the policy of an operation, and print it. Settings without a flag stay unchanged; a new policy begins as that of '*'. Servers apply it within 5 seconds."`
	List   policyListCmd   `cmd:"" help:"List a tenant's policies."`
	Delete policyDeleteCmd `cmd:"" help:"Remove the policy of an operation."`
}

type policySetCmd struct {
	tenantFlag
	Operation       string         `arg:"" help:"Operation, such as ledger.transfer; '*' for all without a policy of their own."`
	RequireKey      *bool          `negatable:"" help:"Refuse calls without Idempotency-Key."`
	RequireToken    *bool          `negatable:"" help:"Refuse calls without Submit-Token."`
	KeyLife         *time.Duration `help:"Life of request keys, 1m to 744h, unless the call names one; 0s: the server's --key-life."`
	RequireApproval *bool          `negatable:"" help:"Refuse calls that another principal has not approved."`
	ApprovalAbove   *string        `help:"With --require-approval: only calls with a greater amount need approval, such as 100.00; empty: every call."`
}

func (c *policySetCmd) Run(e *env, all *cli) error {
	if c.KeyLife == nil && c.ApprovalAbove == nil && cmp.Or(c.RequireKey, c.RequireToken, c.RequireApproval) == nil {
		return errors.New("name at least one flag, such as --require-key; ledgerd policy delete removes a policy")
	}
	return c.with(e, all.Policy.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		p, err := access.Administer(pool).ChangePolicy(e.ctx, tenant, c.Operation, func(p *access.Policy) error {
			if err := c.apply(p); err != nil {
				return err
			}
			return rpc.CheckPolicy(*p)
		})
		if err != nil {
			return asFlags(err)
		}
		return e.policies([]access.Policy{p})
	})
}

// apply changes the settings that flags name.
func (c *policySetCmd) apply(p *access.Policy) error {
	set(&p.KeyRequired, c.RequireKey)
	set(&p.TokenRequired, c.RequireToken)
	set(&p.KeyLife, c.KeyLife)
	set(&p.ApprovalRequired, c.RequireApproval)
	if !p.ApprovalRequired && c.ApprovalAbove == nil {
		p.ApprovalAbove = nil
	}
	if c.ApprovalAbove == nil {
		return nil
	}
	if *c.ApprovalAbove == "" {
		p.ApprovalAbove = nil
		return nil
	}
	above, err := amount.ParseDecimal(*c.ApprovalAbove)
	if err != nil {
		return fmt.Errorf("--approval-above: must be a decimal number such as 100.00, not %.50q: %w",
			*c.ApprovalAbove, err)
	}
	p.ApprovalAbove = &above
	return nil
}

// set changes a setting, if there is a flag for it.
func set[T any](setting, flag *T) {
	if flag != nil {
		*setting = *flag
	}
}

type policyListCmd struct{ tenantFlag }

func (c *policyListCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Policy.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		policies, err := access.ListPolicies(e.ctx, pool, tenant)
		if err != nil {
			return err
		}
		return e.policies(policies)
	})
}

// policies prints policies.
func (e *env) policies(all []access.Policy) error {
	required := map[bool]string{true: "required", false: "-"}
	return e.table("OPERATION\tKEY\tTOKEN\tKEY LIFE\tAPPROVAL", func(w io.Writer) {
		for _, p := range all {
			life := "-"
			if p.KeyLife > 0 {
				life = p.KeyLife.String()
			}
			approval := required[p.ApprovalRequired]
			if p.ApprovalAbove != nil {
				approval = "above " + p.ApprovalAbove.String()
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Operation, required[p.KeyRequired], required[p.TokenRequired],
				life, approval)
		}
	})
}

type policyDeleteCmd struct {
	tenantFlag
	Operation string `arg:"" help:"The operation, as in the OPERATION column of the list."`
}

func (c *policyDeleteCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Policy.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		return access.Administer(pool).DeletePolicy(e.ctx, tenant, c.Operation)
	})
}
