package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

type apikeyCmd struct {
	DatabaseURL string `required:"" help:"URL of the Postgres database with the keys, with a login role that is a member of ledgerd_admin." env:"LEDGERD_ADMIN_DATABASE_URL,DATABASE_URL"`

	Create apikeyCreateCmd `cmd:"" help:"Create a key, and print it once."`
	List   apikeyListCmd   `cmd:"" help:"List a tenant's keys."`
	Rotate apikeyRotateCmd `cmd:"" help:"Create a successor with the same rights, and print it once. The old key ends after the overlap."`
	Revoke apikeyRevokeCmd `cmd:"" help:"Revoke a key. Servers refuse it within 5 seconds."`
}

// lifeFlag sets when a new key expires.
type lifeFlag struct {
	Life *time.Duration `help:"Time after which the key expires, such as 2160h. Required for the successor of a key that expires. Default: never."`
}

func (f lifeFlag) expires() (time.Time, error) {
	if f.Life == nil {
		return time.Time{}, nil
	}
	if *f.Life <= 0 {
		return time.Time{}, errors.New("--life: must be positive, such as 2160h; without it a key never expires")
	}
	return time.Now().Add(*f.Life), nil
}

type apikeyCreateCmd struct {
	lifeFlag
	Tenant    string   `required:"" help:"Name of the tenant, which is created if needed."`
	Principal string   `required:"" help:"Name of the caller. Request keys are scoped by principal, so give a key's successor the same principal."`
	Role      string   `default:"write" enum:"read,write,admin,operator" help:"Role: read, write, admin (also administers the tenant), operator (administers all tenants, and nothing else)."`
	Scope     []string `sep:"none" help:"Scope that restricts the role, such as 'ledger.transfer(from=user:*)'; may be repeated (docs/security.md). Default: all."`
	CallRate  int32    `help:"Calls a second that each server admits. Default: no limit."`
	CallLimit int32    `help:"Calls in flight that each server admits. Default: no limit."`
}

func (c *apikeyCreateCmd) Run(e *env, all *cli) error {
	end, err := c.expires()
	if err != nil {
		return err
	}
	n := access.NewKey{Principal: c.Principal, Rights: access.Rights{Expires: end, CallRate: c.CallRate,
		CallLimit: c.CallLimit}}
	if n.Role, err = access.ParseRole(c.Role); err != nil {
		return err
	}
	if n.Scopes, err = rpc.ParseScopes(n.Role, c.Scope); err != nil {
		return asFlags(err)
	}
	pool, err := e.openAdmin(all.Apikey.DatabaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	admin := access.Administer(pool)
	tenant, existed, err := admin.CreateTenant(e.ctx, c.Tenant)
	if err != nil {
		return asFlags(err)
	}
	if !existed {
		e.log.Info("created a tenant", "tenant", c.Tenant)
	}
	key, err := admin.CreateKey(e.ctx, tenant, n)
	if err != nil {
		return asFlags(err)
	}
	fmt.Fprintln(e.out, key.Secret)
	return nil
}

// flagNames are the flags and arguments of fields that are named differently.
var flagNames = map[string]string{"name": "--tenant", "scopes": "--scope", "expire_time": "--life", "key_name": "key",
	"approval_required": "--require-approval", "operation": "operation", "channel": "channel", "scope": "scope",
	"window": "window", "max_messages": "most"}

// asFlags replaces the name of the field in a refusal by that of its flag or argument.
func asFlags(err error) error {
	f := fault.Of(err)
	if f == nil || len(f.Fields) != 1 || f.Reason.Code == fault.NotFound {
		return err
	}
	field, _, _ := strings.Cut(f.Fields[0].Path, "[")
	name := flagNames[field]
	if name == "" {
		name = "--" + strings.ReplaceAll(field, "_", "-")
	}
	problem := strings.ReplaceAll(f.Fields[0].Description, "approval_required", flagNames["approval_required"])
	return fmt.Errorf("%s: %s", name, problem)
}

type apikeyListCmd struct{ tenantFlag }

// listPage is the number of keys read at a time.
const listPage = 1000

func (c *apikeyListCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Apikey.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		var keys []access.Key
		for after, more := (access.KeyPlace{}), true; more; {
			page, err := access.ListKeys(e.ctx, pool, tenant, after, listPage)
			if err != nil {
				return err
			}
			keys, more = append(keys, page...), len(page) == listPage
			if more {
				after = page[listPage-1].Place()
			}
		}
		const header = "KEY\tPRINCIPAL\tROLE\tCREATED\tBY\tUSED\tEXPIRES\tREVOKED\tBY\tRATE\tLIMIT\tSCOPES"
		return e.table(header, func(w io.Writer) {
			for _, k := range keys {
				fmt.Fprintln(w, strings.Join([]string{k.ID, k.Principal, k.Role.String(), moment(k.Created),
					k.CreatedBy, moment(k.Used), moment(k.Expires), moment(k.Revoked), dash(k.RevokedBy),
					number(k.CallRate), number(k.CallLimit), dash(strings.Join(k.Scopes.Texts(), "; "))}, "\t"))
			}
		})
	})
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func number(n int32) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(int(n))
}

func moment(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// keyArg names a key of a tenant.
type keyArg struct {
	tenantFlag
	Key string `arg:"" help:"The key: whole, or without its secret, or as in the KEY column of the list."`
}

// id returns the id in ldg_TENANT_ID_SECRET or ldg_TENANT_ID. Other text is the id itself.
func (k keyArg) id(tenant int32) (string, error) {
	part := strings.Split(k.Key, "_")
	if len(part) != 3 && len(part) != 4 || part[0] != "ldg" {
		return k.Key, nil
	}
	if part[1] != strconv.Itoa(int(tenant)) {
		return "", fmt.Errorf("the key %s belongs to another tenant", part[2])
	}
	return part[2], nil
}

type apikeyRotateCmd struct {
	lifeFlag
	keyArg
	Overlap time.Duration `default:"24h" help:"How long the old key remains valid, 0 to 2160h."`
}

func (c *apikeyRotateCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Apikey.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		id, err := c.id(tenant)
		if err != nil {
			return err
		}
		end, err := c.expires()
		if err != nil {
			return err
		}
		successor, _, err := access.Administer(pool).RotateKey(e.ctx, tenant, id, c.Overlap, end)
		if err != nil {
			return asFlags(err)
		}
		fmt.Fprintln(e.out, successor.Secret)
		return nil
	})
}

type apikeyRevokeCmd struct{ keyArg }

func (c *apikeyRevokeCmd) Run(e *env, all *cli) error {
	return c.with(e, all.Apikey.DatabaseURL, func(pool *pgxpool.Pool, tenant int32) error {
		id, err := c.id(tenant)
		if err != nil {
			return err
		}
		k, existed, err := access.Administer(pool).RevokeKey(e.ctx, tenant, id)
		switch {
		case err != nil:
			return err
		case existed:
			fmt.Fprintf(e.out, "was revoked at %s by %s\n", k.Revoked.UTC().Format(time.RFC3339), k.RevokedBy)
		default:
			fmt.Fprintln(e.out, "revoked")
		}
		return nil
	})
}
