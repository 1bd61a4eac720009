package access

import (
	"context"
	"errors"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// caller has the claims of a verified certificate or token about its holder.
type caller struct {
	tenant, principal string
	role              Role
	scopes            *Scopes
	expires           time.Time // of the certificate or token
}

// callerRoles are the roles that a certificate or token can grant. Each is limited to one tenant.
var callerRoles = map[string]Role{"read": Read, "write": Write, "admin": Admin}

var principalName = regexp.MustCompile(`^[!-~]{1,64}$`)

// directory finds the tenants of callers.
type directory struct {
	pool *pgxpool.Pool
	*identities
}

func newDirectory(pool *pgxpool.Pool) *directory { return &directory{pool, newIdentities()} }

// identify returns the identity behind a credential, which sum identifies. verify checks the credential, unless its
// identity is cached.
func (d *directory) identify(ctx context.Context, sum [32]byte,
	verify func(context.Context) (caller, error)) (Identity, error) {
	return d.find(ctx, sum, func(ctx context.Context) (Identity, error) {
		c, err := verify(ctx)
		if err != nil {
			return Identity{}, err
		}
		return d.lookup(ctx, c)
	})
}

func (d *directory) lookup(ctx context.Context, c caller) (Identity, error) {
	if !principalName.MatchString(c.principal) {
		return Identity{}, Unauthenticated.New("the caller's principal must be 1 to 64 printable ASCII characters " +
			"without spaces")
	}
	done, err := d.turn(ctx)
	if err != nil {
		return Identity{}, err
	}
	defer done()
	tenant, err := q.TenantGet(pg.ForAllTenants(ctx), pg.Planned{DB: d.pool}, c.tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return Identity{}, Unauthenticated.New("there is no tenant %q", c.tenant)
	}
	if err != nil {
		return Identity{}, fault.DatabaseUnavailable.New("the tenant cannot be read now").Because(err)
	}
	policies, err := policiesOf(ctx, d.pool, tenant)
	if err != nil {
		return Identity{}, fault.DatabaseUnavailable.New("the tenant's policies cannot be read now").Because(err)
	}
	return Identity{Tenant: tenant, Principal: c.principal, Role: c.role, Scopes: c.scopes, Expires: c.expires,
		Policies: policies}, nil
}
