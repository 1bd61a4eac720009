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

type ruleCmd struct {
	DatabaseURL string `required:"" help:"Postgres with the rules." env:"DATABASE_URL"`

	Set    ruleSetCmd    `cmd:"" help:"Make or replace the rule of an operation. Servers follow within 5 seconds."`
	List   ruleListCmd   `cmd:"" help:"List a tenant's rules."`
	Delete ruleDeleteCmd `cmd:"" help:"Remove the rule of an operation."`
}

func (c *ruleCmd) open(e *env, tenant string) (pool *pgxpool.Pool, id int32, err error) {
	if pool, err = pg.Open(e.ctx, c.DatabaseURL, 1); err != nil {
		return nil, 0, err
	}
	if id, err = access.Tenant(e.ctx, pool, tenant); err != nil {
		pool.Close()
	}
	return pool, id, err
}

type ruleSetCmd struct {
	Tenant       string        `required:"" help:"Name of the tenant."`
	Operation    string        `arg:"" help:"Such as ledger.transfer; '*' for all that have no rule of their own."`
	RequireKey   bool          `help:"Refuse calls without Idempotency-Key."`
	RequireToken bool          `help:"Refuse calls without Submit-Token."`
	KeyLife      time.Duration `help:"How long request keys live, unless the call says it: 1m to 744h. Default: what the server is told."`
}

func (c *ruleSetCmd) Run(e *env, all *cli) error {
	if names := rpc.Operations(); c.Operation != access.Others && !slices.Contains(names, c.Operation) {
		return fmt.Errorf("there is no operation %s: there are %v", c.Operation, names)
	}
	pool, tenant, err := all.Rule.open(e, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	return access.SetRule(e.ctx, pool, tenant, access.Rule{Operation: c.Operation, KeyRequired: c.RequireKey,
		TokenRequired: c.RequireToken, KeyLife: c.KeyLife})
}

type ruleListCmd struct {
	Tenant string `required:"" help:"Name of the tenant."`
}

func (c *ruleListCmd) Run(e *env, all *cli) error {
	pool, tenant, err := all.Rule.open(e, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	rules, err := access.ListRules(e.ctx, pool, tenant)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "OPERATION\tKEY\tTOKEN\tKEY LIFE")
	demand := map[bool]string{true: "required", false: "-"}
	for _, r := range rules {
		life := "-"
		if r.KeyLife > 0 {
			life = r.KeyLife.String()
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Operation, demand[r.KeyRequired], demand[r.TokenRequired], life)
	}
	return w.Flush()
}

type ruleDeleteCmd struct {
	Tenant    string `required:"" help:"Name of the tenant."`
	Operation string `arg:"" help:"The OPERATION column of the list."`
}

func (c *ruleDeleteCmd) Run(e *env, all *cli) error {
	pool, tenant, err := all.Rule.open(e, c.Tenant)
	if err != nil {
		return err
	}
	defer pool.Close()
	ok, err := access.DeleteRule(e.ctx, pool, tenant, c.Operation)
	if err == nil && !ok {
		err = fmt.Errorf("tenant %s has no rule for %s", c.Tenant, c.Operation)
	}
	return err
}
