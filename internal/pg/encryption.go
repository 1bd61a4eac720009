package pg

import (
	"crypto/tls"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Encryption describes the connections that a database URL allows, by the weakest one.
type Encryption struct {
	SSLMode string // as in libpq, such as verify-full. Empty: all are local
	Plain   bool   // a connection to another machine may be unencrypted
}

// EncryptionOf reads the configuration of a pool. A host has several entries if connections to it may be tried both
// with and without TLS.
func EncryptionOf(pool *pgxpool.Pool) Encryption {
	c := pool.Config().ConnConfig
	all := append([]*pgconn.FallbackConfig{{Host: c.Host, TLSConfig: c.TLSConfig}}, c.Fallbacks...)
	var e Encryption
	encrypted := false
	worst := len(sslModes) - 1
	for _, f := range all {
		if local(f.Host) {
			continue
		}
		level := protection(f.TLSConfig)
		encrypted = encrypted || level > 0
		worst = min(worst, level)
		e.SSLMode = sslModes[worst]
	}
	e.Plain = e.SSLMode == sslModes[0]
	if e.Plain && encrypted {
		e.SSLMode = "prefer"
	}
	return e
}

var sslModes = []string{"disable", "require", "verify-ca", "verify-full"}

// protection returns the index of a configuration's sslmode.
func protection(c *tls.Config) int {
	switch {
	case c == nil:
		return 0
	case !c.InsecureSkipVerify:
		return 3
	case c.VerifyPeerCertificate != nil || c.VerifyConnection != nil:
		return 2
	}
	return 1
}

func local(host string) bool {
	ip := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || host == "localhost" || ip != nil && ip.IsLoopback()
}
