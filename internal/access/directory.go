package access

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// caller is what a verified certificate or token says about its holder.
type caller struct {
	tenant, principal string
	role              Role
}

// callerRoles are the roles that a certificate or token can give. None reaches beyond a tenant.
var callerRoles = map[string]Role{"read": Read, "write": Write, "admin": Admin}

var principalName = regexp.MustCompile(`^[!-~]{1,64}$`)

// identity makes the identity of a caller whose tenant was looked up.
func (c caller) identity(tenant int32, policies *Policies) Identity {
	return Identity{Tenant: tenant, Principal: c.principal, Role: c.role, Policies: policies}
}

// directory finds the tenants of callers, and caches identities by credential for rememberFor, as Keys does.
type directory struct {
	pool    *pgxpool.Pool
	lookups chan struct{} // bounds the connections that callers of unknown tenants can use
	mu      sync.RWMutex
	known   map[[32]byte]*remembered
}

func newDirectory(pool *pgxpool.Pool) *directory {
	return &directory{pool: pool, lookups: make(chan struct{}, maxLookups), known: make(map[[32]byte]*remembered)}
}

// identify returns the identity behind a credential, which sum identifies. verify checks the credential, unless its
// identity is cached.
func (d *directory) identify(ctx context.Context, sum [32]byte,
	verify func(context.Context) (caller, error)) (Identity, error) {
	d.mu.RLock()
	r := d.known[sum]
	d.mu.RUnlock()
	now := time.Now()
	if r != nil && now.Before(r.until) && (now.Before(r.renew) || !r.renewing.CompareAndSwap(false, true)) {
		return r.identity, nil
	}
	c, err := verify(ctx)
	var id Identity
	if err == nil {
		id, err = d.lookup(ctx, c)
	}
	if err != nil && r != nil && now.Before(r.until) && !fault.Is(err, Unauthenticated) {
		r.renewing.Store(false)
		return r.identity, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		delete(d.known, sum)
		return Identity{}, err
	}
	if len(d.known) >= maxKnown {
		clear(d.known)
	}
	d.known[sum] = &remembered{identity: id, renew: now.Add(renewAfter), until: now.Add(rememberFor)}
	return id, nil
}

func (d *directory) lookup(ctx context.Context, c caller) (Identity, error) {
	if !principalName.MatchString(c.principal) {
		return Identity{}, Unauthenticated.New("the caller's principal must be 1 to 64 printable ASCII characters without spaces")
	}
	select {
	case d.lookups <- struct{}{}:
		defer func() { <-d.lookups }()
	case <-ctx.Done():
		return Identity{}, fault.NotRun.New("the call timed out or was cancelled before its tenant was found").
			Because(ctx.Err())
	}
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
	return c.identity(tenant, policies), nil
}
