package main

import (
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

type policyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database with the policies." env:"DATABASE_URL"`

	Set    policySetCmd    `cmd:"" help:"Create or replace the policy of an operation. Servers apply it within 5 seconds."`
	List   policyListCmd   `cmd:"" help:"List a tenant's policies."`
	Delete policyDeleteCmd `cmd:"" help:"Remove the policy of an operation."`
}

func (c *policyCmd) open(e *env, tenant string) (pool *pgxpool.Pool, id int32, err error) {
	if pool, err = pg.Open(e.ctx, c.DatabaseURL, 1); err != nil {
		return nil, 0, err
	}
	if id, err = access.Tenant(e.ctx, pool, tenant); err != nil {
		pool.Close()
	}
	return pool, id, err
}

type policySetCmd struct {
	Tenant       string        `required:"" help:"Name of the tenant."`
	Operation    string        `arg:"" help:"Operation, such as ledger.transfer; '*' for all without a policy of their own."`
	RequireKey   bool          `help:"Refuse calls without Idempotency-Key."`
	RequireToken bool          `help:"Refuse calls without Submit-Token."`
	KeyLife      time.Duration `help:"Life of request keys, 1m to 744h, unless the call names one. Default: the server's --key-life."`
}

func (c *policySetCmd) Run(e *env, all *cli) error {
	if names := rpc.Operations(); c.Operation != access.Others && !slices.Contains(names, c.Operation) {
		return fmt.Errorf("there is no operation %s: use one of %v", c.Operation, names)
	}
	pool, tenant, err := all.Policy.open(e, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	return access.SetPolicy(e.ctx, pool, tenant, access.Policy{Operation: c.Operation, KeyRequired: c.RequireKey,
		TokenRequired: c.RequireToken, KeyLife: c.KeyLife})
}

type policyListCmd struct {
	Tenant string `required:"" help:"Name of the tenant."`
}

func (c *policyListCmd) Run(e *env, all *cli) error {
	pool, tenant, err := all.Policy.open(e, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	policies, err := access.ListPolicies(e.ctx, pool, tenant)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OPERATION\tKEY\tTOKEN\tKEY LIFE")
	demand := map[bool]string{true: "required", false: "-"}
	for _, r := range policies {
		life := "-"
		if r.KeyLife > 0 {
			life = r.KeyLife.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Operation, demand[r.KeyRequired], demand[r.TokenRequired], life)
	}
	return w.Flush()
}

type policyDeleteCmd struct {
	Tenant    string `required:"" help:"Name of the tenant."`
	Operation string `arg:"" help:"The operation, as in the OPERATION column of the list."`
}

func (c *policyDeleteCmd) Run(e *env, all *cli) error {
	pool, tenant, err := all.Policy.open(e, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	ok, err := access.DeletePolicy(e.ctx, pool, tenant, c.Operation)
	if err == nil && !ok {
		err = fmt.Errorf("tenant %s has no policy for %s", c.Tenant, c.Operation)
	}
	return err
}
