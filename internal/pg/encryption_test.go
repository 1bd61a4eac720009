package pg_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pg"
)

// authorityPEM is any certificate: the test does not connect.
const authorityPEM = `-----BEGIN CERTIFICATE-----
MIIBbzCCARWgAwIBAgIUJlKx8jlEqlKpesFVRnL6FJhie74wCgYIKoZIzj0EAwIw
DDEKMAgGA1UEAwwBeDAgFw0yNjExMjUxMTAxNDNaGA8yMTI2MTEwMTExMDE0M1ow
DDEKMAgGA1UEAwwBeDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABM8h/ZK2vRag
CV2pU+JNgsRQOppLa1VI3UMJziEVhyv6zkDYZRBYU0XDE3ky+oOu8ZMEVdmdRAZZ
Z2jroN6EQA+jUzBRMB0GA1UdDgQWBBSTA25Wg3SRNudezCbTq+XehmdnDDAfBgNV
HSMEGDAWgBSTA25Wg3SRNudezCbTq+XehmdnDDAPBgNVHRMBAf8EBTADAQH/MAoG
CCqGSM49BAMCA0gAMEUCIQCar+N4lYUHtRGB0OUtP/VazEsHtjPi13yWRb9VCHxW
wwIgfbz+vhRtYo3NhP0B/O9JdXjtk+T5EhMSrQnPvWe82FA=
-----END CERTIFICATE-----
`

func TestEncryptionIsThatOfTheWeakestConnection(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, []byte(authorityPEM), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]pg.Encryption{
		"postgres://u@127.0.0.1/d":                                             {},
		"postgres://u@localhost/d?sslmode=disable":                             {},
		"postgres://u@[::1]/d":                                                 {},
		"host=/run/postgresql user=u":                                          {},
		"postgres://u@db1.example.com/d":                                       {SSLMode: "prefer", Plain: true},
		"postgres://u@db1.example.com/d?sslmode=allow":                         {SSLMode: "prefer", Plain: true},
		"postgres://u@10.1.2.3/d?sslmode=disable":                              {SSLMode: "disable", Plain: true},
		"postgres://u@127.0.0.1,10.1.2.3/d?sslmode=disable":                    {SSLMode: "disable", Plain: true},
		"postgres://u@db1.example.com/d?sslmode=require":                       {SSLMode: "require"},
		"postgres://u@db1.example.com/d?sslmode=require&sslrootcert=" + file:   {SSLMode: "verify-ca"},
		"postgres://u@db1.example.com/d?sslmode=verify-ca&sslrootcert=" + file: {SSLMode: "verify-ca"},
		"postgres://u@db1.example.com/d?sslmode=verify-full":                   {SSLMode: "verify-full"},
		"postgres://u@db1,db2/d?sslmode=verify-full":                           {SSLMode: "verify-full"},
	} {
		pool, err := pg.Open(t.Context(), url, 1)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if got := pg.EncryptionOf(pool); got != want {
			t.Errorf("%s: %+v, not %+v", url, got, want)
		}
		pool.Close()
	}
}
