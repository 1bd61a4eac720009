package server_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/server"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, key: newKey(t)}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert = a.sign(template, template, &a.key.PublicKey)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (a *authority) sign(template, parent *x509.Certificate, key *ecdsa.PublicKey) *x509.Certificate {
	a.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert
}

// issue signs a certificate for 127.0.0.1 and client authentication, after a change of it.
func (a *authority) issue(change func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if change != nil {
		change(template)
	}
	key := newKey(a.t)
	cert := a.sign(template, a.cert, &key.PublicKey)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
}

// named issues a client certificate with URIs.
func (a *authority) named(uris ...string) tls.Certificate {
	a.t.Helper()
	return a.issue(func(c *x509.Certificate) {
		for _, text := range uris {
			u, err := url.Parse(text)
			if err != nil {
				a.t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
	})
}

// pool returns a pool of this authority alone.
func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// write writes the authority's certificate to a file.
func (a *authority) write(name string) {
	a.t.Helper()
	replace(a.t, name, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// writePair writes a certificate and then its key: for a moment they do not match.
func writePair(t testing.TB, files *server.TLSFiles, c tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	replace(t, files.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}))
	replace(t, files.Key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
}

// replace replaces a file in one step, as tools that renew certificates do.
func replace(t testing.TB, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// newFiles writes the TLS files of a server: a certificate issued by own and, unless nil, clients as the authority of
// client certificates.
func newFiles(t testing.TB, own, clients *authority) *server.TLSFiles {
	t.Helper()
	dir := t.TempDir()
	files := &server.TLSFiles{Cert: filepath.Join(dir, "server.pem"), Key: filepath.Join(dir, "server.key")}
	writePair(t, files, own.issue(nil))
	if clients != nil {
		files.ClientCA = filepath.Join(dir, "clients.pem")
		clients.write(files.ClientCA)
	}
	return files
}

// httpsClient trusts the authority, and presents the certificates.
func httpsClient(t testing.TB, trusted *authority, h2 bool, certs ...tls.Certificate) *http.Client {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 100,
		TLSClientConfig: &tls.Config{RootCAs: trusted.pool(), Certificates: certs}}
	transport.Protocols.SetHTTP1(!h2)
	transport.Protocols.SetHTTP2(h2)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}

// served returns the serial number of the certificate that a new connection gets.
func served(t testing.TB, address string, trusted *authority) *big.Int {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: trusted.pool()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber
}

func sameSerial(a *big.Int, c tls.Certificate) bool {
	return bytes.Equal(a.Bytes(), c.Leaf.SerialNumber.Bytes())
}
