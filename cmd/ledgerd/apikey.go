package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
)

type apikeyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database with the keys." env:"DATABASE_URL"`

	Create apikeyCreateCmd `cmd:"" help:"Create a key, and print it once."`
	List   apikeyListCmd   `cmd:"" help:"List a tenant's keys."`
	Revoke apikeyRevokeCmd `cmd:"" help:"Revoke a key. Servers refuse it within 5 seconds."`
}

func (c *apikeyCmd) pool(e *env) (*pgxpool.Pool, error) { return pg.Open(e.ctx, c.DatabaseURL, 1) }

type apikeyCreateCmd struct {
	Tenant    string `required:"" help:"Name of the tenant, which is created if needed."`
	Principal string `required:"" help:"Name of the caller. Request keys are scoped by principal, so give a key's successor the same principal."`
	Role      string `default:"write" enum:"read,write,admin" help:"Role: read, write or admin."`
}

func (c *apikeyCreateCmd) Run(e *env, all *cli) error {
	pool, err := all.Apikey.pool(e)
	if err != nil {
		return err
	}
	defer pool.Close()
	role, err := access.ParseRole(c.Role)
	if err != nil {
		return err
	}
	tenant, err := access.EnsureTenant(e.ctx, pool, c.Tenant)
	if err != nil {
		return err
	}
	key, err := access.Create(e.ctx, pool, tenant, c.Principal, role)
	if err != nil {
		return err
	}
	fmt.Fprintln(e.out, key)
	return nil
}

type apikeyListCmd struct {
	Tenant string `required:"" help:"Name of the tenant."`
}

func (c *apikeyListCmd) Run(e *env, all *cli) error {
	pool, err := all.Apikey.pool(e)
	if err != nil {
		return err
	}
	defer pool.Close()
	tenant, err := access.Tenant(e.ctx, pool, c.Tenant)
	if err != nil {
		return err
	}
	keys, err := access.List(e.ctx, pool, tenant)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tPRINCIPAL\tROLE\tCREATED\tREVOKED")
	for _, k := range keys {
		revoked := ""
		if k.RevokedAt != nil {
			revoked = k.RevokedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.KeyID, k.Principal, k.Role, k.CreatedAt.UTC().Format(time.RFC3339),
			revoked)
	}
	return w.Flush()
}

type apikeyRevokeCmd struct {
	Tenant string `required:"" help:"Name of the tenant."`
	Key    string `arg:"" help:"The key, as in the KEY column of the list."`
}

func (c *apikeyRevokeCmd) Run(e *env, all *cli) error {
	pool, err := all.Apikey.pool(e)
	if err != nil {
		return err
	}
	defer pool.Close()
	tenant, err := access.Tenant(e.ctx, pool, c.Tenant)
	if err != nil {
		return err
	}
	ok, err := access.Revoke(e.ctx, pool, tenant, c.Key)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("tenant %s has no valid key %s", c.Tenant, c.Key)
	}
	fmt.Fprintln(e.out, "revoked")
	return nil
}
