package main

import (
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

	Set    policySetCmd    `cmd:"" help:"Create or replace the policy of an operation. Servers apply it within 5 seconds."`
	List   policyListCmd   `cmd:"" help:"List a tenant's policies."`
	Delete policyDeleteCmd `cmd:"" help:"Remove the policy of an operation."`
}

type policySetCmd struct {
	tenantFlag
	Operation    string        `arg:"" help:"Operation, such as ledger.transfer; '*' for all without a policy of their own."`
	RequireKey   bool          `help:"Refuse calls without Idempotency-Key."`
	RequireToken bool          `help:"Refuse calls without Submit-Token."`
	KeyLife      time.Duration `help:"Life of request keys, 1m to 744h, unless the call names one. Default: the server's --key-life."`

	RequireApproval bool   `help:"Refuse calls that another principal has not approved."`
	ApprovalAbove   string `help:"With --require-approval: only calls with a greater amount need approval, such as 100.00."`
}

func (c *policySetCmd) Run(e *env, all *cli) error {
	p := access.Policy{Operation: c.Operation, KeyRequired: c.RequireKey, TokenRequired: c.RequireToken,
		KeyLife: c.KeyLife, ApprovalRequired: c.RequireApproval}
	if c.ApprovalAbove != "" {
		above, err := amount.ParseDecimal(c.ApprovalAbove)
		if err != nil {
			return fmt.Errorf("--approval-above: %w", err)
		}
		p.ApprovalAbove = &above
	}
	if err := rpc.CheckPolicy(p); err != nil {
		return err
	}
	return c.with(e, all.Policy.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		return access.Administer(pool).PutPolicy(e.ctx, tenant, p)
	})
}

type policyListCmd struct{ tenantFlag }

func (c *policyListCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Policy.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		policies, err := access.ListPolicies(e.ctx, pool, tenant)
		if err != nil {
			return err
		}
		required := map[bool]string{true: "required", false: "-"}
		return e.table("OPERATION\tKEY\tTOKEN\tKEY LIFE\tAPPROVAL", func(w io.Writer) {
			for _, p := range policies {
				life := "-"
				if p.KeyLife > 0 {
					life = p.KeyLife.String()
				}
				approval := required[p.ApprovalRequired]
				if p.ApprovalAbove != nil {
					approval = "above " + p.ApprovalAbove.String()
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Operation, required[p.KeyRequired],
					required[p.TokenRequired], life, approval)
			}
		})
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
