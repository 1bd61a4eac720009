package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// TLSFiles are PEM files. The server reads them again when their content changes.
type TLSFiles struct {
	Cert     string // the server's certificate, then those of intermediate authorities
	Key      string
	ClientCA string // authorities of client certificates. Empty: certificates identify no caller
}

// reloadPause is the interval between two reads of the files.
const reloadPause = 2 * time.Second

// transport holds the configuration of connections. One goroutine at a time reads the files.
type transport struct {
	files    TLSFiles
	log      *slog.Logger
	current  atomic.Pointer[tls.Config]
	used     [][]byte // the content of the files in current
	failures int      // of reading them again, in a row
}

// newTransport reads the files.
func newTransport(files TLSFiles, log *slog.Logger) (*transport, error) {
	t := &transport{files: files, log: log}
	if files.Cert == "" || files.Key == "" {
		return nil, errors.New("TLS needs both a certificate and its key")
	}
	read, err := t.readFiles()
	if err == nil {
		err = t.use(read)
	}
	return t, err
}

func (t *transport) readFiles() (read [][]byte, err error) {
	for _, name := range []string{t.files.Cert, t.files.Key, t.files.ClientCA} {
		var text []byte
		if name != "" {
			if text, err = os.ReadFile(name); err != nil {
				return nil, err
			}
		}
		read = append(read, text)
	}
	return read, nil
}

// use configures connections with the content of the files.
func (t *transport) use(read [][]byte) error {
	pair, err := tls.X509KeyPair(read[0], read[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", t.files.Cert, t.files.Key, err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{pair}}
	if t.files.ClientCA != "" {
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(read[2]) {
			return fmt.Errorf("%s: has no certificate in PEM", t.files.ClientCA)
		}
		config.SessionTicketsDisabled = true // a resumed session would not present its certificate again
	}
	t.used = read
	t.current.Store(config)
	t.log.Info("connections use TLS", "certificate", t.files.Cert, "not_after", pair.Leaf.NotAfter,
		"client_ca", t.files.ClientCA)
	return nil
}

// reload reads the files again. While they are invalid, the last valid content stays in use. The first failure is not
// logged: a tool may be replacing the files one by one.
func (t *transport) reload(context.Context) error {
	read, err := t.readFiles()
	if err == nil && !slices.EqualFunc(read, t.used, bytes.Equal) {
		err = t.use(read)
	}
	if err == nil {
		t.failures = 0
		return nil
	}
	if t.failures++; t.failures == 2 {
		t.log.Error("the TLS files cannot be used: the previous certificate stays in use", "error", err)
	}
	return nil
}

// authorities returns the authorities of client certificates.
func (t *transport) authorities() *x509.CertPool { return t.current.Load().ClientCAs }

// serve accepts connections until shutdown: TLS only, or cleartext only.
func (s *Server) serve() error {
	if s.transport == nil {
		return s.http.Serve(s.listener)
	}
	s.http.Protocols.SetUnencryptedHTTP2(false)
	s.http.Protocols.SetHTTP2(true)
	s.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.transport.current.Load(), nil }}
	return s.http.ServeTLS(s.listener, "", "")
}

// identify adds tokens and client certificates to the credentials that a gate accepts.
func (s *Server) identify(gate *rpc.Gate) {
	if len(s.options.Issuers) > 0 {
		s.issuers = access.NewIssuers(s.keyring, s.options.Issuers, s.log)
		gate.Authenticate = s.issuers.Or(gate.Authenticate)
	}
	if s.transport != nil && s.transport.files.ClientCA != "" {
		gate.Certificate = access.NewCertificates(s.keyring, s.transport.authorities).Authenticate
	}
}

// warnPlain warns if the listener sends keys and books unencrypted over a network.
func (s *Server) warnPlain() {
	if a, ok := s.listener.Addr().(*net.TCPAddr); ok && s.transport == nil && !a.IP.IsLoopback() {
		s.log.Warn("the server listens beyond this machine without TLS: use --tls-cert and --tls-key, unless a proxy "+
			"on the same private network speaks TLS for it", "address", s.Addr())
	}
}

// logEncryption logs how connections to the database are encrypted.
func (s *Server) logEncryption() {
	e := pg.EncryptionOf(s.reads)
	switch {
	case e.SSLMode == "":
		s.log.Info("the database is on this machine: connections stay there")
	case e.Plain:
		s.log.Warn("connections to the database may be unencrypted: add sslmode=verify-full to its URL", "sslmode",
			e.SSLMode)
	default:
		s.log.Info("connections to the database are encrypted", "sslmode", e.SSLMode,
			"certificate_verified", e.SSLMode != "require")
	}
}
