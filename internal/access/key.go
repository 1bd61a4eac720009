package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/access/internal/db"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// KeyNotFound refuses a change of an API key that the tenant does not have.
var KeyNotFound = fault.Register(fault.Reason{Name: "API_KEY_NOT_FOUND", Class: fault.BadRequest,
	Code: fault.NotFound, Step: fault.Fix, Doc: "The tenant has no such API key, or it cannot be rotated any more."})

// Rights are the rights of an API key.
type Rights struct {
	Role      Role
	Scopes    *Scopes   // nil: all that the role allows
	Expires   time.Time // zero: it does not expire
	CallRate  int32     // calls a second on one server, at most MaxCalls; 0: no limit
	CallLimit int32     // calls in flight on one server, at most MaxCalls; 0: no limit
}

// MaxCalls bounds CallRate and CallLimit.
const MaxCalls = 1_000_000

// Rights returns the rights of the caller, which are the most that it may grant to others.
func (i Identity) Rights() Rights {
	r := Rights{i.Role, i.Scopes, i.Expires, i.CallRate, i.CallLimit}
	if !i.expiresAt.IsZero() {
		r.Expires = i.expiresAt
	}
	return r
}

// exceeds returns the first field in which rights exceed those of their grantor, or empty.
func (r Rights) exceeds(grantor Rights) (field string) {
	more := func(own, most int32) bool { return most > 0 && (own == 0 || own > most) }
	switch {
	case grantor.Role == Operator && r.Role != Operator: // its own rights are of another kind
	case !grantor.Role.Includes(r.Role):
		return "role"
	case !grantor.Scopes.includes(r.Scopes):
		return "scopes"
	case !grantor.Expires.IsZero() && (r.Expires.IsZero() || r.Expires.After(grantor.Expires)):
		return "expire_time"
	case more(r.CallRate, grantor.CallRate):
		return "call_rate"
	case more(r.CallLimit, grantor.CallLimit):
		return "call_limit"
	}
	return ""
}

// Key describes an API key without its secret.
type Key struct {
	ID, Principal string
	Rights
	Created   time.Time
	CreatedBy string
	Revoked   time.Time // zero: it is not
	RevokedBy string
	Used      time.Time // to a minute or so; zero: never
	// Secret is the whole key, with its secret, right after its creation; it cannot be read again.
	Secret string
	digest string // of the stored hash of the secret
}

// NewKey is an API key to create.
type NewKey struct {
	Principal string
	Rights
}

// check validates a key. Returns fault FIELD_INVALID.
func (n NewKey) check() error {
	field, problem := "", ""
	switch {
	case !principalName.MatchString(n.Principal):
		field, problem = "principal", "must be 1 to 64 printable ASCII characters without spaces"
	case n.Role < Read || n.Role > Operator:
		field, problem = "role", "must be read, write, admin or operator"
	case !n.Expires.IsZero() && (n.Expires.Before(time.Now()) || n.Expires.Year() > 9999):
		field, problem = "expire_time", "must be in the future, and before the year 10000"
	case n.CallRate < 0 || n.CallRate > MaxCalls:
		field, problem = "call_rate", fmt.Sprintf("must be 1 to %d, or 0 for no limit", MaxCalls)
	case n.CallLimit < 0 || n.CallLimit > MaxCalls:
		field, problem = "call_limit", fmt.Sprintf("must be 1 to %d, or 0 for no limit", MaxCalls)
	default:
		return nil
	}
	return fault.InvalidField(field, "%s", problem)
}

// CreateKey creates an API key of a tenant. Returns faults FIELD_INVALID, PERMISSION_DENIED.
func (a *Administration) CreateKey(ctx context.Context, tenant int32, n NewKey) (k Key, err error) {
	if err := cmp.Or(n.check(), a.mayGive(n.Rights)); err != nil {
		return Key{}, err
	}
	err = a.change(ctx, func(ctx context.Context, c *change) error {
		k, err = c.insertKey(ctx, tenant, n)
		return err
	})
	return k, err
}

// mayGive refuses rights that exceed those of the caller. Returns fault PERMISSION_DENIED.
func (a *Administration) mayGive(r Rights) error {
	if a.grantor == nil {
		return nil
	}
	if field := r.exceeds(*a.grantor); field != "" {
		problem := "exceeds the rights of the caller itself"
		if field == "expire_time" {
			problem = fmt.Sprintf("must be set, and at most %s, when the caller's own rights end",
				a.grantor.Expires.UTC().Format(time.RFC3339Nano))
		}
		return PermissionDenied.New("%s: %s", field, problem).WithField(field, problem)
	}
	return nil
}

func (c *change) insertKey(ctx context.Context, tenant int32, n NewKey) (Key, error) {
	id, secret := random(8), random(32)
	hash := sha256.Sum256([]byte(secret))
	made, err := q.APIKeyInsert(ctx, c.tx, db.APIKeyInsertParams{TenantID: tenant, KeyID: id, Principal: n.Principal,
		Role: n.Role.String(), Scopes: n.Scopes.Texts(), CallRate: null(n.CallRate), CallLimit: null(n.CallLimit),
		SecretHash: hash[:], CreatedBy: c.author, ExpiresAt: null(n.Expires)})
	if err != nil {
		return Key{}, fmt.Errorf("make an API key: %w", err)
	}
	k := Key{ID: id, Principal: n.Principal, Rights: n.Rights, Created: made.CreatedAt, CreatedBy: c.author,
		digest: made.SecretDigest, Secret: fmt.Sprintf("%s_%d_%s_%s", prefix, tenant, id, secret)}
	return k, c.record(ctx, tenant, audit.Key, id, nil, k.settings())
}

// keySettings are the settings of an API key in the audit log.
type keySettings struct {
	Principal string     `json:"principal"`
	Role      string     `json:"role"`
	Scopes    []string   `json:"scopes,omitempty"`
	Expires   *time.Time `json:"expire_time,omitempty"`
	Revoked   *time.Time `json:"revoke_time,omitempty"`
	CallRate  int32      `json:"call_rate,omitempty"`
	CallLimit int32      `json:"call_limit,omitempty"`
	// SecretDigest is the SHA-256 of the stored hash: verify notices another secret by it.
	SecretDigest string `json:"secret_digest"`
}

func (k *Key) settings() keySettings {
	return keySettings{k.Principal, k.Role.String(), k.Scopes.Texts(), null(k.Expires.UTC()), null(k.Revoked.UTC()),
		k.CallRate, k.CallLimit, k.digest}
}

// null returns nil for the zero value.
func null[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never returns an error
	return encoding.EncodeToString(b)
}

// MaxOverlap bounds how long a rotated key remains valid.
const MaxOverlap = 90 * 24 * time.Hour

// RotateKey creates a successor with the rights of a key. The old key expires after the overlap, or at its own expiry
// if that is earlier. If the old key expires, the successor must expire too; the zero time means no expiry. Returns
// faults API_KEY_NOT_FOUND, FIELD_INVALID, PERMISSION_DENIED.
func (a *Administration) RotateKey(ctx context.Context, tenant int32, id string, overlap time.Duration,
	expires time.Time) (successor, old Key, err error) {
	if overlap < 0 || overlap > MaxOverlap {
		problem := fmt.Sprintf("must be 0 to %v", MaxOverlap)
		return Key{}, Key{}, fault.FieldInvalid.New("overlap: %s", problem).WithField("overlap", problem)
	}
	err = a.change(ctx, func(ctx context.Context, c *change) error {
		var now time.Time
		if old, now, err = c.lockKey(ctx, tenant, id); err != nil {
			return err
		}
		if !old.Revoked.IsZero() || !old.Expires.IsZero() && !old.Expires.After(now) {
			return KeyNotFound.New("API key %s is not valid any more: create another", id).
				WithField("key_name", "must be a key that is valid")
		}
		if expires.IsZero() && !old.Expires.IsZero() {
			return fault.InvalidField("expire_time", "must be set, because the key expires")
		}
		end := now.Add(overlap)
		if !old.Expires.IsZero() && old.Expires.Before(end) {
			end = old.Expires
		}
		if !expires.IsZero() && expires.Before(end) {
			problem := fmt.Sprintf("must not be before the end of the old key, %s", end.UTC().Format(time.RFC3339Nano))
			return fault.FieldInvalid.New("expire_time: %s", problem).WithField("expire_time", problem)
		}
		n := NewKey{old.Principal, old.Rights}
		n.Expires = expires
		if err := cmp.Or(n.check(), a.mayGive(n.Rights)); err != nil {
			return ofKey(err)
		}
		if successor, err = c.insertKey(ctx, tenant, n); err != nil {
			return err
		}
		if !end.Equal(old.Expires) {
			before := old.settings()
			old.Expires = end
			if err := q.APIKeyExpire(ctx, c.tx, db.APIKeyExpireParams{TenantID: tenant, KeyID: id,
				ExpiresAt: &end}); err != nil {
				return err
			}
			return c.record(ctx, tenant, audit.Key, id, before, old.settings())
		}
		return nil
	})
	return successor, old, err
}

// ofKey turns a fault about the rights of a successor into one about key_name, because a rotation has no fields for
// role, scopes and limits.
func ofKey(err error) error {
	f := fault.Of(err)
	if f == nil || f.Fields[0].Path == "expire_time" {
		return err
	}
	problem := "may do more than the caller: its " + strings.ReplaceAll(f.Fields[0].Path, "_", " ")
	return PermissionDenied.New("key_name: %s", problem).WithField("key_name", problem)
}

// lockKey locks a key, and returns it with the time of the database. Returns fault API_KEY_NOT_FOUND.
func (c *change) lockKey(ctx context.Context, tenant int32, id string) (k Key, now time.Time, err error) {
	r, err := q.APIKeyLock(ctx, c.tx, db.APIKeyLockParams{TenantID: tenant, KeyID: id})
	if errors.Is(err, pgx.ErrNoRows) {
		return k, now, KeyNotFound.New("the tenant has no API key %s", id).
			WithField("key_name", "must be a key of the tenant")
	}
	if err != nil {
		return Key{}, now, err
	}
	k, err = keyOf(&db.APIKeyListRow{KeyID: r.KeyID, Principal: r.Principal, Role: r.Role, Scopes: r.Scopes,
		CallRate: r.CallRate, CallLimit: r.CallLimit, CreatedAt: r.CreatedAt, CreatedBy: r.CreatedBy,
		ExpiresAt: r.ExpiresAt, RevokedAt: r.RevokedAt, RevokedBy: r.RevokedBy, UsedAt: r.UsedAt,
		SecretDigest: r.SecretDigest})
	return k, r.Now, err
}

// RevokeKey revokes a key. Servers refuse it within rememberFor. If the key was revoked before, RevokeKey returns it
// unchanged, with existed. Returns faults API_KEY_NOT_FOUND and PERMISSION_DENIED.
func (a *Administration) RevokeKey(ctx context.Context, tenant int32, id string) (k Key, existed bool, err error) {
	err = a.change(ctx, func(ctx context.Context, c *change) error {
		before, now, err := c.lockKey(ctx, tenant, id)
		if err != nil {
			return err
		}
		if a.grantor != nil && before.Role == Operator && a.grantor.Role != Operator {
			return PermissionDenied.New("the key belongs to an operator: only an operator can revoke it")
		}
		if k, existed = before, !before.Revoked.IsZero(); existed {
			return nil
		}
		k.Revoked, k.RevokedBy = now, c.author
		if err := q.APIKeyRevoke(ctx, c.tx, db.APIKeyRevokeParams{TenantID: tenant, KeyID: id, RevokedAt: &k.Revoked,
			RevokedBy: &k.RevokedBy}); err != nil {
			return err
		}
		return c.record(ctx, tenant, audit.Key, id, before.settings(), k.settings())
	})
	return k, existed, err
}

// KeyPlace is a position in the list of a tenant's keys. The zero value is the beginning.
type KeyPlace struct {
	Created time.Time
	ID      string
}

// Place returns the position after a key.
func (k Key) Place() KeyPlace { return KeyPlace{k.Created, k.ID} }

// ListKeys lists keys of a tenant in the order of their creation, after a position.
func ListKeys(ctx context.Context, from db.DBTX, tenant int32, after KeyPlace, size int) ([]Key, error) {
	rows, err := q.APIKeyList(ctx, from, db.APIKeyListParams{TenantID: tenant, AfterTime: after.Created,
		AfterID: after.ID, Size: int32(size)})
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	keys := make([]Key, len(rows))
	for i := range rows {
		if keys[i], err = keyOf(&rows[i]); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func keyOf(r *db.APIKeyListRow) (Key, error) {
	scopes, err := ParseScopes(r.Scopes)
	if err != nil {
		return Key{}, fmt.Errorf("a scope of the API key %s: %w", r.KeyID, err)
	}
	return Key{ID: r.KeyID, Principal: r.Principal, Created: r.CreatedAt, CreatedBy: r.CreatedBy,
		Rights: Rights{Role: roleNames[r.Role], Scopes: scopes, Expires: value(r.ExpiresAt),
			CallRate: value(r.CallRate), CallLimit: value(r.CallLimit)},
		Revoked: value(r.RevokedAt), RevokedBy: value(r.RevokedBy), Used: value(r.UsedAt), digest: r.SecretDigest}, nil
}

// value returns the zero value for null.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
