package access

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Certificates authenticates callers by client certificates. The authority that signs a certificate vouches for its
// holder, which the certificate has as an alternative name: ledgerd://TENANT/PRINCIPAL?role=ROLE&scope=SCOPE.
type Certificates struct {
	directory   *directory
	authorities func() *x509.CertPool
}

// NewCertificates makes a Certificates on a pool. authorities returns the current authorities of clients.
func NewCertificates(pool *pgxpool.Pool, authorities func() *x509.CertPool) *Certificates {
	return &Certificates{newDirectory(pool), authorities}
}

// Authenticate returns the identity of a client's certificate, which comes first in its chain. It verifies the chain
// again, because connections outlive certificates and authorities. Returns faults UNAUTHENTICATED,
// DATABASE_UNAVAILABLE.
func (c *Certificates) Authenticate(ctx context.Context, chain []*x509.Certificate) (Identity, error) {
	return c.directory.identify(ctx, sha256.Sum256(chain[0].Raw), func(context.Context) (caller, error) {
		between := x509.NewCertPool()
		for _, cert := range chain[1:] {
			between.AddCert(cert)
		}
		if _, err := chain[0].Verify(x509.VerifyOptions{Roots: c.authorities(), Intermediates: between,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			return caller{}, Unauthenticated.New("the client certificate is invalid or has expired").Because(err)
		}
		return holder(chain[0])
	})
}

const certificateScheme = "ledgerd"

// holder reads the URI that names the holder of a certificate.
func holder(cert *x509.Certificate) (caller, error) {
	var names []*url.URL
	for _, u := range cert.URIs {
		if u.Scheme == certificateScheme {
			names = append(names, u)
		}
	}
	if len(names) != 1 {
		return caller{}, Unauthenticated.New("the client certificate must have one alternative name such as " +
			"URI:ledgerd://TENANT/PRINCIPAL?role=write")
	}
	u := names[0]
	// Refuse unknown parts: they may be meant to restrict the holder.
	query, err := url.ParseQuery(u.RawQuery)
	known := 0
	if query.Has("role") {
		known++
	}
	if query.Has("scope") {
		known++
	}
	if err != nil || u.User != nil || u.Fragment != "" || len(query) != known || len(query["role"]) > 1 {
		return caller{}, Unauthenticated.New("the client certificate's name must be ledgerd://TENANT/PRINCIPAL, " +
			"with no parameters but one role and scopes")
	}
	scopes, err := ParseScopes(query["scope"])
	if err != nil {
		return caller{}, Unauthenticated.New("a scope in the client certificate's name: %v", err)
	}
	role := Read
	if query.Has("role") {
		if role = callerRoles[query.Get("role")]; role == 0 {
			return caller{}, Unauthenticated.New("the role in the client certificate's name must be read, " +
				"write or admin")
		}
	}
	return caller{tenant: u.Host, principal: strings.TrimPrefix(u.Path, "/"), role: role,
		scopes: scopes, expires: cert.NotAfter}, nil
}
