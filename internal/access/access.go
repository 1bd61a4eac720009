// Package access authenticates calls: tenants, their API keys, roles and policies. It owns the tables access_*.
// A key is shown once, at its creation; the database stores a hash of its secret.
package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	Unauthenticated = fault.Register(fault.Reason{Name: "UNAUTHENTICATED", Class: fault.BadRequest,
		Code: fault.Unauthenticated, Step: fault.Fix,
		Doc: "The call has no valid API key, token or client certificate: send Authorization: Bearer KEY."})
	PermissionDenied = fault.Register(fault.Reason{Name: "PERMISSION_DENIED", Class: fault.BadRequest,
		Code: fault.PermissionDenied, Step: fault.Fix,
		Doc: "The caller's role or scopes do not allow the call."})
)

// Role is a caller's set of permissions. Admin includes Write, and Write includes Read. Operator includes no other.
type Role int

const (
	Read Role = iota + 1
	Write
	Admin    // also changes the settings that limit callers: account limits, machines, gateways, API keys of its tenant
	Operator // administers all tenants by AdminService, reads /metrics, and does nothing else
)

var roleNames = map[string]Role{"read": Read, "write": Write, "admin": Admin, "operator": Operator}

func (r Role) String() string { return [...]string{"", "read", "write", "admin", "operator"}[r] }

// ParseRole parses a role's name.
func ParseRole(s string) (Role, error) {
	r, ok := roleNames[s]
	if !ok {
		return 0, fmt.Errorf("there is no role %q: use read, write, admin or operator", s)
	}
	return r, nil
}

// Includes reports whether a role may do all that another one may.
func (r Role) Includes(o Role) bool { return r == o || r != Operator && r > o }

// Identity is the authenticated caller.
type Identity struct {
	Tenant    int32
	Principal string
	KeyID     string // of the API key; empty: a certificate or a token
	Role      Role
	Scopes    *Scopes   // nil: all that the role allows
	Expires   time.Time // of the credential, by the clock of this process; zero: it does not expire
	CallRate  int32     // calls a second of an API key; 0: no limit
	CallLimit int32     // calls in flight of an API key; 0: no limit
	Calls     *Calls    // the calls of the key in this process
	Policies  *Policies // of the tenant

	expiresAt time.Time // of an API key, as the database has it
}

// Keys checks API keys.
type Keys struct {
	pool *pgxpool.Pool
	*identities
	recording chan struct{} // semaphore: a process records one use at a time
}

const prefix = "ldg"

var (
	q        db.Queries
	encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

// NewKeys makes a Keys on a pool.
func NewKeys(pool *pgxpool.Pool) *Keys {
	return &Keys{pool, newIdentities(), make(chan struct{}, 1)}
}

// Authenticate returns the identity of an API key. Returns faults UNAUTHENTICATED, DATABASE_UNAVAILABLE.
func (k *Keys) Authenticate(ctx context.Context, key string) (Identity, error) {
	return k.find(ctx, sha256.Sum256([]byte(key)),
		func(ctx context.Context) (Identity, error) { return k.lookup(ctx, key) })
}

func (k *Keys) lookup(ctx context.Context, key string) (Identity, error) {
	bad := Unauthenticated.New("the API key is unknown, wrong or revoked")
	part := strings.Split(key, "_")
	if len(part) != 4 || part[0] != prefix {
		return Identity{}, bad
	}
	tenant, err := strconv.ParseInt(part[1], 10, 32)
	if err != nil || strconv.FormatInt(tenant, 10) != part[1] || // each spelling would have its own call limits
		!utf8.ValidString(part[2]) { // Postgres would reject the parameter
		return Identity{}, bad
	}
	done, err := k.turn(ctx)
	if err != nil {
		return Identity{}, err
	}
	defer done()
	named := db.APIKeyGetParams{TenantID: int32(tenant), KeyID: part[2]}
	asked := time.Now()
	row, err := q.APIKeyGet(pg.ForTenants(ctx, int32(tenant)), pg.Planned{DB: k.pool}, named)
	if errors.Is(err, pgx.ErrNoRows) {
		return Identity{}, bad
	}
	if err != nil {
		return Identity{}, fault.DatabaseUnavailable.New("the API key cannot be checked now").Because(err)
	}
	hash := sha256.Sum256([]byte(part[3]))
	switch {
	case subtle.ConstantTimeCompare(hash[:], row.SecretHash) != 1 || row.RevokedAt != nil:
		return Identity{}, bad
	case row.LifeS <= 0:
		return Identity{}, Unauthenticated.New("the API key has expired: use its successor")
	}
	scopes, err := ParseScopes(row.Scopes)
	if err != nil {
		return Identity{}, fmt.Errorf("a scope of the API key %s: %w", part[2], err)
	}
	policies, err := policiesOf(ctx, k.pool, int32(tenant))
	if err != nil {
		return Identity{}, fault.DatabaseUnavailable.New("the tenant's policies cannot be read now").Because(err)
	}
	if row.Stale {
		k.touch(db.APIKeyUsedParams(named))
	}
	id := Identity{Tenant: int32(tenant), Principal: row.Principal, KeyID: part[2], Role: roleNames[row.Role],
		Scopes: scopes, CallRate: value(row.CallRate), CallLimit: value(row.CallLimit), Policies: policies}
	id.Calls = newCalls(id.CallRate, id.CallLimit)
	if life := time.Duration(row.LifeS * float64(time.Second)); row.LifeS < maxLife.Seconds() {
		id.Expires, id.expiresAt = asked.Add(life), value(row.ExpiresAt)
	}
	return id, nil
}

// maxLife keeps lives within time.Duration: a key with a longer remaining life counts as one without expiry.
const maxLife = 100 * 365 * 24 * time.Hour

// touch records the use of a key asynchronously. While another recording runs it does nothing: a later call records.
func (k *Keys) touch(key db.APIKeyUsedParams) {
	select {
	case k.recording <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-k.recording }()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = q.APIKeyUsed(pg.ForTenants(ctx, key.TenantID), pg.Planned{DB: k.pool}, key)
	}()
}
