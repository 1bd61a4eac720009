package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// IssuerUnavailable refuses a call whose token cannot be checked now.
var IssuerUnavailable = fault.Register(fault.Reason{Name: "ISSUER_UNAVAILABLE", Class: fault.System,
	Code: fault.Unavailable, Step: fault.RetrySameKey,
	Doc: "The public keys of the token's issuer cannot be fetched now. Nothing was done."})

// Issuers authenticates callers by JSON Web Tokens of OpenID Connect issuers.
type Issuers struct {
	directory *directory
	byName    map[string]*issuer
}

// issuer is a configured issuer with its keys.
type issuer struct {
	Issuer
	keys *issuerKeys
}

const (
	maxToken = 16 << 10         // bytes
	leeway   = 30 * time.Second // of clocks
)

// algorithms are asymmetric: with a symmetric one, any caller could sign tokens with the public key.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
	jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// RefreshEvery is the time between two calls of Refresh.
const RefreshEvery = 10 * time.Minute

// NewIssuers makes an Issuers on a pool. It starts fetching keys and does not wait for them, so that the server can
// start while an issuer is unreachable.
func NewIssuers(pool *pgxpool.Pool, configured []Issuer, log *slog.Logger) *Issuers {
	all := &Issuers{newDirectory(pool), make(map[string]*issuer, len(configured))}
	for _, c := range configured {
		all.byName[c.Issuer] = &issuer{c, &issuerKeys{issuer: c.Issuer, log: log}}
		all.byName[c.Issuer].keys.fetch(0)
	}
	return all
}

// Refresh fetches the keys of all issuers again, because an issuer may have withdrawn one. It does not wait for them.
func (i *Issuers) Refresh(context.Context) error {
	for _, from := range i.byName {
		from.keys.fetch(0)
	}
	return nil
}

type authenticate = func(ctx context.Context, credential string) (Identity, error)

// Or returns a function that authenticates by API key or token. API keys begin with their prefix, tokens cannot.
func (i *Issuers) Or(key authenticate) authenticate {
	return func(ctx context.Context, credential string) (Identity, error) {
		if strings.HasPrefix(credential, prefix+"_") {
			return key(ctx, credential)
		}
		return i.Authenticate(ctx, credential)
	}
}

// Authenticate returns the identity of a token. Returns faults UNAUTHENTICATED, ISSUER_UNAVAILABLE,
// DATABASE_UNAVAILABLE.
func (i *Issuers) Authenticate(ctx context.Context, token string) (Identity, error) {
	return i.directory.identify(ctx, sha256.Sum256([]byte(token)), func(ctx context.Context) (caller, error) {
		if len(token) > maxToken {
			return caller{}, Unauthenticated.New("the token has more than %d bytes", maxToken)
		}
		parsed, err := jwt.ParseSigned(token, algorithms)
		if err != nil {
			return caller{}, Unauthenticated.New("the credential is neither an API key nor a token that is signed " +
				"with an asymmetric algorithm").Because(err)
		}
		var claims jwt.Claims
		if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil || i.byName[claims.Issuer] == nil {
			return caller{}, Unauthenticated.New("this server does not accept tokens of the token's issuer")
		}
		return i.byName[claims.Issuer].verify(ctx, parsed)
	})
}

// verify checks a token's signature and claims.
func (i *issuer) verify(ctx context.Context, token *jwt.JSONWebToken) (caller, error) {
	var standard jwt.Claims
	var claims map[string]any
	signed := func(key jose.JSONWebKey) bool { return token.Claims(key, &standard, &claims) == nil }
	id := token.Headers[0].KeyID
	if !slices.ContainsFunc(i.keys.cached(id), signed) {
		if err := i.keys.refresh(ctx); err != nil {
			return caller{}, err
		}
		if !slices.ContainsFunc(i.keys.cached(id), signed) {
			return caller{}, Unauthenticated.New("the token is not signed with a key of its issuer")
		}
	}
	err := standard.ValidateWithLeeway(jwt.Expected{Issuer: i.Issuer.Issuer, AnyAudience: jwt.Audience{i.Audience}},
		leeway)
	if err == nil && standard.Expiry == nil {
		err = errors.New("exp is missing")
	}
	if err != nil {
		return caller{}, Unauthenticated.New("the token is not valid: %s", strings.TrimPrefix(err.Error(),
			"go-jose/go-jose/jwt: ")).Because(err)
	}
	c, err := i.caller(claims)
	c.expires = standard.Expiry.Time()
	return c, err
}

// caller reads the claims that name the caller.
func (i *issuer) caller(claims map[string]any) (c caller, err error) {
	c.tenant = i.Tenant
	if c.tenant == "" {
		c.tenant, _ = claims[i.TenantClaim].(string)
	}
	if len(i.Tenants) > 0 && !slices.Contains(i.Tenants, c.tenant) {
		return c, Unauthenticated.New("the token's issuer may not name tenant %q", c.tenant)
	}
	c.principal, _ = claims[i.PrincipalClaim].(string)
	roles, list := claims[i.RoleClaim].([]any)
	if !list {
		roles = []any{claims[i.RoleClaim]}
	}
	for _, r := range roles {
		name, _ := r.(string)
		c.role = max(c.role, callerRoles[name])
	}
	if c.role == 0 {
		return c, Unauthenticated.New("the token's claim %s must be read, write or admin", i.RoleClaim)
	}
	return c, i.scopes(claims, &c)
}

// scopes reads the scopes of the caller. A token without the configured claim is refused: it would not be restricted.
func (i *issuer) scopes(claims map[string]any, c *caller) (err error) {
	if i.ScopesClaim == "" {
		return nil
	}
	list, ok := claims[i.ScopesClaim].([]any)
	if !ok {
		list = []any{claims[i.ScopesClaim]}
	}
	texts := make([]string, len(list))
	for n, x := range list {
		texts[n], _ = x.(string) // the empty scope is refused
	}
	if c.scopes, err = ParseScopes(texts); err != nil || c.scopes == nil {
		return Unauthenticated.New("the token's claim %s must have scopes such as ledger.get_*", i.ScopesClaim).
			Because(err)
	}
	return nil
}
