// Package access authenticates calls: tenants, their API keys, roles and policies. It owns the tables access_*.
// A key is shown once, at its creation; the database stores a hash of its secret.
package access

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Reasons of access.
var (
	Unauthenticated = fault.Define(fault.Reason{Name: "UNAUTHENTICATED", Class: fault.BadRequest,
		Code: fault.Unauthenticated, Step: fault.Fix,
		Doc: "The call has no valid API key, token or client certificate: send Authorization: Bearer KEY."})
	PermissionDenied = fault.Define(fault.Reason{Name: "PERMISSION_DENIED", Class: fault.BadRequest,
		Code: fault.PermissionDenied, Step: fault.Fix,
		Doc: "The caller's role does not allow the call."})
)

// Role is the permission level of a key; each role includes the lesser ones.
type Role int

const (
	Read Role = iota + 1
	Write
	Admin
)

var roleNames = map[string]Role{"read": Read, "write": Write, "admin": Admin}

func (r Role) String() string { return [...]string{"", "read", "write", "admin"}[r] }

// ParseRole parses a role's name.
func ParseRole(s string) (Role, error) {
	r, ok := roleNames[s]
	if !ok {
		return 0, fmt.Errorf("there is no role %q: use read, write or admin", s)
	}
	return r, nil
}

// Identity is the authenticated caller.
type Identity struct {
	Tenant    int32
	Principal string
	KeyID     string // of the API key; empty: a certificate or a token
	Role      Role
	Policies  *Policies // of the tenant
}

// Keys checks API keys. Valid keys are cached for rememberFor, so a revoked key may work for that long.
type Keys struct {
	pool    *pgxpool.Pool
	lookups chan struct{} // bounds the connections that invalid keys can use
	mu      sync.RWMutex
	known   map[[32]byte]*remembered
}

type remembered struct {
	identity Identity
	renew    time.Time   // from then on one caller refreshes the entry
	renewing atomic.Bool // a refresh is running; other callers use the cached entry
	until    time.Time
}

const (
	rememberFor = 5 * time.Second
	renewAfter  = 3 * time.Second
	maxKnown    = 10_000
	maxLookups  = 4
	prefix      = "ldg"
)

var (
	q        db.Queries
	encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

// NewKeys makes a Keys on a pool.
func NewKeys(pool *pgxpool.Pool) *Keys {
	return &Keys{pool: pool, lookups: make(chan struct{}, maxLookups), known: make(map[[32]byte]*remembered)}
}

// Authenticate returns the identity of an API key. Returns faults UNAUTHENTICATED, DATABASE_UNAVAILABLE.
func (k *Keys) Authenticate(ctx context.Context, key string) (Identity, error) {
	sum := sha256.Sum256([]byte(key))
	k.mu.RLock()
	r := k.known[sum]
	k.mu.RUnlock()
	now := time.Now()
	if r != nil && now.Before(r.until) && (now.Before(r.renew) || !r.renewing.CompareAndSwap(false, true)) {
		return r.identity, nil
	}
	id, err := k.lookup(ctx, key)
	if err != nil && r != nil && now.Before(r.until) && !fault.Is(err, Unauthenticated) {
		r.renewing.Store(false)
		return r.identity, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		delete(k.known, sum)
		return Identity{}, err
	}
	if len(k.known) >= maxKnown {
		clear(k.known)
	}
	k.known[sum] = &remembered{identity: id, renew: now.Add(renewAfter), until: now.Add(rememberFor)}
	return id, nil
}

func (k *Keys) lookup(ctx context.Context, key string) (Identity, error) {
	bad := Unauthenticated.New("the API key is unknown, wrong or revoked")
	part := strings.Split(key, "_")
	if len(part) != 4 || part[0] != prefix {
		return Identity{}, bad
	}
	tenant, err := strconv.ParseInt(part[1], 10, 32)
	if err != nil || !utf8.ValidString(part[2]) { // Postgres would reject the parameter
		return Identity{}, bad
	}
	select {
	case k.lookups <- struct{}{}:
		defer func() { <-k.lookups }()
	case <-ctx.Done():
		return Identity{}, fault.NotRun.New("the call timed out or was cancelled before its API key was checked").Because(ctx.Err())
	}
	row, err := q.APIKeyGet(pg.ForTenants(ctx, int32(tenant)), pg.Planned{DB: k.pool},
		db.APIKeyGetParams{TenantID: int32(tenant), KeyID: part[2]})
	if errors.Is(err, pgx.ErrNoRows) {
		return Identity{}, bad
	}
	if err != nil {
		return Identity{}, fault.DatabaseUnavailable.New("the API key cannot be checked now").Because(err)
	}
	hash := sha256.Sum256([]byte(part[3]))
	if subtle.ConstantTimeCompare(hash[:], row.SecretHash) != 1 || row.RevokedAt != nil {
		return Identity{}, bad
	}
	policies, err := policiesOf(ctx, k.pool, int32(tenant))
	if err != nil {
		return Identity{}, fault.DatabaseUnavailable.New("the tenant's policies cannot be read now").Because(err)
	}
	return Identity{int32(tenant), row.Principal, part[2], roleNames[row.Role], policies}, nil
}

// EnsureTenant returns the number of a tenant, creating it if necessary.
func EnsureTenant(ctx context.Context, pool *pgxpool.Pool, name string) (int32, error) {
	ctx = pg.ForAllTenants(ctx)
	id, err := q.TenantGet(ctx, pg.Planned{DB: pool}, name)
	if errors.Is(err, pgx.ErrNoRows) {
		id, err = createTenant(ctx, pool, name)
	}
	if err != nil {
		return 0, fmt.Errorf("tenant %q: %w", name, err)
	}
	return id, nil
}

// createTenant creates a tenant, unless another process has done so meanwhile. It tries again while other tenants take
// the number.
func createTenant(ctx context.Context, pool *pgxpool.Pool, name string) (id int32, err error) {
	for {
		if id, err = q.TenantInsert(ctx, pg.Planned{DB: pool}, name); errors.Is(err, pgx.ErrNoRows) {
			id, err = q.TenantGet(ctx, pg.Planned{DB: pool}, name)
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return id, err
		}
	}
}

// ErrNoTenant means that no tenant has the name.
var ErrNoTenant = errors.New("there is no such tenant")

// Tenant returns the number of an existing tenant.
func Tenant(ctx context.Context, pool *pgxpool.Pool, name string) (int32, error) {
	id, err := q.TenantGet(pg.ForAllTenants(ctx), pg.Planned{DB: pool}, name)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("%w: %s", ErrNoTenant, name)
	}
	return id, err
}

// Create creates an API key and returns it. The key cannot be read again.
func Create(ctx context.Context, pool *pgxpool.Pool, tenant int32, principal string, role Role) (string, error) {
	id, secret := random(8), random(32)
	hash := sha256.Sum256([]byte(secret))
	err := q.APIKeyInsert(pg.ForTenants(ctx, tenant), pg.Planned{DB: pool}, db.APIKeyInsertParams{TenantID: tenant,
		KeyID: id, Principal: principal, Role: role.String(), SecretHash: hash[:]})
	if err != nil {
		return "", fmt.Errorf("make an API key: %w", err)
	}
	return fmt.Sprintf("%s_%d_%s_%s", prefix, tenant, id, secret), nil
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never returns an error
	return encoding.EncodeToString(b)
}

// Key describes an API key without its secret.
type Key = db.APIKeyListRow

func List(ctx context.Context, pool *pgxpool.Pool, tenant int32) ([]Key, error) {
	return q.APIKeyList(pg.ForTenants(ctx, tenant), pg.Planned{DB: pool}, tenant)
}

// Revoke revokes a key; ok is false if there is no such active key.
func Revoke(ctx context.Context, pool *pgxpool.Pool, tenant int32, id string) (ok bool, err error) {
	n, err := q.APIKeyRevoke(pg.ForTenants(ctx, tenant), pg.Planned{DB: pool},
		db.APIKeyRevokeParams{TenantID: tenant, KeyID: id})
	return n > 0, err
}
