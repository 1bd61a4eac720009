package access

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.yaml.in/yaml/v3"
)

// Issuer configures an OpenID Connect issuer whose tokens are accepted.
type Issuer struct {
	Issuer   string `yaml:"issuer"`   // its URL, as in the claim iss
	Audience string `yaml:"audience"` // must be in the claim aud
	// Tenant is the tenant of all tokens. Empty: the claim TenantClaim names the tenant, which must be in Tenants
	// unless Tenants is empty.
	Tenant         string   `yaml:"tenant"`
	TenantClaim    string   `yaml:"tenant_claim"` // default tenant
	Tenants        []string `yaml:"tenants"`
	PrincipalClaim string   `yaml:"principal_claim"` // default sub
	RoleClaim      string   `yaml:"role_claim"`      // default role; a text or a list
	// ScopesClaim has the scopes of the caller, a text or a list. Empty: its role alone restricts the caller.
	ScopesClaim string `yaml:"scopes_claim"`
}

// ReadIssuers reads a file of issuers: YAML, or JSON, which is a subset of YAML.
func ReadIssuers(name string) ([]Issuer, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var file struct {
		Issuers []Issuer `yaml:"issuers"`
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(file.Issuers) == 0 {
		return nil, fmt.Errorf("%s: there are no issuers", name)
	}
	names := map[string]bool{}
	for n := range file.Issuers {
		i := &file.Issuers[n]
		if err := i.complete(); err != nil {
			return nil, fmt.Errorf("%s: issuers[%d]: %w", name, n, err)
		}
		if names[i.Issuer] {
			return nil, fmt.Errorf("%s: issuers[%d]: issuer: %s occurs twice", name, n, i.Issuer)
		}
		names[i.Issuer] = true
	}
	return file.Issuers, nil
}

// complete validates the settings and sets defaults.
func (i *Issuer) complete() error {
	if err := trustworthy(i.Issuer); err != nil {
		return fmt.Errorf("issuer: %w", err)
	}
	switch {
	case i.Audience == "":
		return errors.New("audience: is missing; tokens for other services must not be accepted")
	case i.Tenant != "" && (i.TenantClaim != "" || len(i.Tenants) > 0):
		return errors.New("tenant: cannot be combined with tenant_claim and tenants")
	}
	i.TenantClaim = cmp.Or(i.TenantClaim, "tenant")
	i.PrincipalClaim = cmp.Or(i.PrincipalClaim, "sub")
	i.RoleClaim = cmp.Or(i.RoleClaim, "role")
	return nil
}

// trustworthy refuses URLs whose answers an attacker on the network could forge.
func trustworthy(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil {
		return fmt.Errorf("%q is not a URL such as https://login.example.com", text)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		return nil
	}
	return fmt.Errorf("%q must begin with https://", text)
}

const (
	fetchTimeout = 3 * time.Second
	fetchPause   = 5 * time.Second // between two fetches for calls: tokens of unknown keys must not flood the issuer
	maxDocument  = 1 << 20         // bytes
)

// issuerKeys caches the public keys of an issuer. While the issuer is unreachable, cached keys stay in use.
type issuerKeys struct {
	issuer string
	log    *slog.Logger

	mu       sync.Mutex
	keys     []jose.JSONWebKey
	err      error         // of the last fetch
	ended    time.Time     // when the last fetch ended
	fetching chan struct{} // closed at the end of the fetch in flight; nil: there is none
}

// cached returns the known keys with an id; all of them for a token that names none.
func (k *issuerKeys) cached(id string) (found []jose.JSONWebKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range k.keys {
		if id == "" || id == key.KeyID {
			found = append(found, key)
		}
	}
	return found
}

// refresh fetches the keys for a call, unless that was done a moment ago. Returns fault ISSUER_UNAVAILABLE.
func (k *issuerKeys) refresh(ctx context.Context) error {
	select {
	case <-k.fetch(fetchPause):
	case <-ctx.Done():
		return IssuerUnavailable.New("the token's issuer did not answer in time").Because(ctx.Err())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return IssuerUnavailable.New("the keys of the token's issuer cannot be fetched now").Because(k.err)
	}
	return nil
}

// fetch starts a fetch of the keys, unless one is in flight or ended less than a pause ago. The channel is closed when
// the fetch, or the one in flight, has ended; after a recent fetch it is closed already.
func (k *issuerKeys) fetch(pause time.Duration) <-chan struct{} {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fetching != nil {
		return k.fetching
	}
	fetching := make(chan struct{})
	if time.Since(k.ended) < pause {
		close(fetching)
		return fetching
	}
	k.fetching = fetching
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
		defer cancel()
		keys, err := fetchKeys(ctx, k.issuer)
		k.mu.Lock()
		defer k.mu.Unlock()
		switch {
		case err == nil:
			if k.keys = keys; k.err != nil {
				k.log.Info("the keys of an issuer of tokens were fetched again", "issuer", k.issuer)
			}
		case k.err == nil:
			k.log.Warn("the keys of an issuer of tokens cannot be fetched", "issuer", k.issuer, "error", err)
		}
		k.err, k.ended, k.fetching = err, time.Now(), nil
		close(fetching)
	}()
	return fetching
}

// fetchKeys finds the keys of an issuer by OpenID Connect discovery. It skips those that cannot sign tokens.
func fetchKeys(ctx context.Context, issuer string) (keys []jose.JSONWebKey, err error) {
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := getJSON(ctx, strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", &about); err != nil {
		return nil, err
	}
	if about.Issuer != issuer {
		return nil, fmt.Errorf("the issuer calls itself %q: configure exactly that name", about.Issuer)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := getJSON(ctx, about.Keys, &set); err != nil {
		return nil, err
	}
	for _, text := range set.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(text, &key) == nil && key.IsPublic() && key.Use != "enc" {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s has no keys for signatures", about.Keys)
	}
	return keys, nil
}

var issuerClient = &http.Client{CheckRedirect: func(r *http.Request, before []*http.Request) error {
	if len(before) > 3 {
		return errors.New("there are more than 3 redirects")
	}
	return trustworthy(r.URL.String())
}}

func getJSON(ctx context.Context, address string, into any) error {
	if err := trustworthy(address); err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	res, err := issuerClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", address, res.Status)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxDocument)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}
