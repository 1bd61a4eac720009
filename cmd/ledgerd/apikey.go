package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
)

type apikeyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database with the keys." env:"DATABASE_URL"`

	Create apikeyCreateCmd `cmd:"" help:"Create a key, and print it once."`
	List   apikeyListCmd   `cmd:"" help:"List a tenant's keys."`
	Revoke apikeyRevokeCmd `cmd:"" help:"Revoke a key. Servers refuse it within 5 seconds."`
}

type apikeyCreateCmd struct {
	Tenant    string `required:"" help:"Name of the tenant, which is created if needed."`
	Principal string `required:"" help:"Name of the caller. Request keys are scoped by principal, so give a key's successor the same principal."`
	Role      string `default:"write" enum:"read,write,admin" help:"Role: read, write or admin."`
}

func (c *apikeyCreateCmd) Run(e *env, all *cli) error {
	pool, err := e.open(all.Apikey.DatabaseURL, 1)
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

type apikeyListCmd struct{ tenantFlag }

func (c *apikeyListCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Apikey.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		keys, err := access.List(e.ctx, pool, tenant)
		if err != nil {
			return err
		}
		return e.table("KEY\tPRINCIPAL\tROLE\tCREATED\tREVOKED", func(w io.Writer) {
			for _, k := range keys {
				revoked := ""
				if k.RevokedAt != nil {
					revoked = k.RevokedAt.UTC().Format(time.RFC3339)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", k.KeyID, k.Principal, k.Role,
					k.CreatedAt.UTC().Format(time.RFC3339), revoked)
			}
		})
	})
}

type apikeyRevokeCmd struct {
	tenantFlag
	Key string `arg:"" help:"The key: whole, or without its secret, or as in the KEY column of the list."`
}

func (c *apikeyRevokeCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Apikey.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		id, err := keyID(tenant, c.Key)
		if err != nil {
			return err
		}
		ok, err := access.Revoke(e.ctx, pool, tenant, id)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("tenant %s has no valid key %s", c.Tenant, id)
		}
		fmt.Fprintln(e.out, "revoked")
		return nil
	})
}

// keyID returns the id in ldg_TENANT_ID_SECRET or ldg_TENANT_ID. Other text is the id itself.
func keyID(tenant int32, key string) (string, error) {
	part := strings.Split(key, "_")
	if len(part) != 3 && len(part) != 4 {
		return key, nil
	}
	if part[1] != strconv.Itoa(int(tenant)) {
		return "", fmt.Errorf("the key %s is of another tenant", part[2])
	}
	return part[2], nil
}
