package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// secured starts a server with TLS files.
func secured(t testing.TB, files *server.TLSFiles) *servertest.Site {
	t.Helper()
	db := pgtest.New(t)
	s := &servertest.Site{T: t, DB: db, Pool: pgtest.Pool(t, db.SuperDSN), Log: &servertest.Log{}}
	s.Start(server.Options{TLS: files})
	s.Base = "https://" + s.Server.Addr()
	return s
}

func TestTLSIsHTTP1AndHTTP2AndNothingElse(t *testing.T) {
	t.Parallel()
	own := newAuthority(t)
	s := secured(t, newFiles(t, own, nil))
	key := s.Key("mine", "boss", access.Admin)
	for _, h2 := range []bool{false, true} {
		client := httpsClient(t, own, h2)
		res, err := client.Get(s.Base + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || (res.ProtoMajor == 2) != h2 {
			t.Errorf("HTTP/2 %v: %s %d", h2, res.Proto, res.StatusCode)
		}
		options := []connect.ClientOption{connect.WithInterceptors(servertest.WithKey(key))}
		if h2 {
			options = append(options, connect.WithGRPC())
		}
		ledger := ledgerv1connect.NewLedgerServiceClient(client, s.Base, options...)
		if _, err := ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{}); err != nil {
			t.Errorf("HTTP/2 %v: %v", h2, err)
		}
	}
	for version, good := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true,
		tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", s.Server.Addr(),
			&tls.Config{RootCAs: own.pool(), MinVersion: version, MaxVersion: version})
		if (err == nil) != good {
			t.Errorf("%s: %v", tls.VersionName(version), err)
		}
		if err == nil {
			conn.Close()
		}
	}
	for _, client := range []*http.Client{servertest.HTTP1, servertest.HTTP2} {
		if res, err := client.Get("http://" + s.Server.Addr() + "/healthz"); err == nil {
			if res.Body.Close(); res.StatusCode != http.StatusBadRequest {
				t.Errorf("cleartext: %d", res.StatusCode)
			}
		}
	}
}

// TestCertificateIsReplacedUnderLoad has calls on kept and on new connections meanwhile.
func TestCertificateIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	own := newAuthority(t)
	files := newFiles(t, own, nil)
	s := secured(t, files)
	key := s.Key("mine", "boss", access.Admin)
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	var calls atomic.Int64
	for i := range 4 {
		client := httpsClient(t, own, i%2 == 0)
		ledger := ledgerv1connect.NewLedgerServiceClient(client, s.Base,
			connect.WithInterceptors(servertest.WithKey(key)))
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := ledger.ListAssets(t.Context(), &ledgerv1.ListAssetsRequest{}); err != nil {
					t.Errorf("caller %d: %v", i, err)
					return
				}
				calls.Add(1)
				if i >= 2 {
					client.CloseIdleConnections()
				}
			}
		})
	}
	address := s.Server.Addr()
	replaceAndWait := func() {
		t.Helper()
		next := own.issue(nil)
		writePair(t, files, next)
		servertest.Eventually(t, 20*time.Second, "the new certificate",
			func() bool { return sameSerial(served(t, address, own), next) })
	}
	replaceAndWait()
	replaceAndWait()

	good := served(t, address, own)
	replace(t, files.Key, []byte("no key"))
	const kept = "the TLS files cannot be used: the previous certificate stays in use"
	servertest.Eventually(t, 20*time.Second, "the error is logged",
		func() bool { return len(s.Log.With("msg", kept)) == 1 })
	if level := s.Log.With("msg", kept)[0]["level"]; level != "ERROR" {
		t.Errorf("level %v", level)
	}
	if now := served(t, address, own); now.Cmp(good) != 0 {
		t.Error("the certificate changed")
	}
	replaceAndWait()
	stop()
	callers.Wait()
	if calls.Load() < 100 {
		t.Errorf("only %d calls", calls.Load())
	}
	if n := len(s.Log.With("msg", kept)); n != 1 {
		t.Errorf("%d errors are logged", n)
	}
}

func TestServerWithoutUsableTLSFilesDoesNotStart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	own, other := newAuthority(t), newAuthority(t)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	replace(t, empty, nil)
	for what, change := range map[string]func(*server.TLSFiles){
		"no key":              func(f *server.TLSFiles) { f.Key = "" },
		"no certificate":      func(f *server.TLSFiles) { f.Cert = "" },
		"missing file":        func(f *server.TLSFiles) { f.Cert += "x" },
		"another key":         func(f *server.TLSFiles) { f.Key = newFiles(t, other, nil).Key },
		"no authorities":      func(f *server.TLSFiles) { f.ClientCA = empty },
		"missing authorities": func(f *server.TLSFiles) { f.ClientCA = empty + "x" },
	} {
		files := newFiles(t, own, nil)
		change(files)
		s, err := server.Start(t.Context(), server.Options{DatabaseURL: db.AppDSN, Listen: "127.0.0.1:0", TLS: files,
			Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			s.Stop()
			t.Errorf("%s: the server started", what)
		}
	}
}

// body returns the answer to a GET.
func body(t testing.TB, client *http.Client, address string) (int, string) {
	t.Helper()
	res, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestServerLogsHowTheDatabaseIsReached(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]string{
		"prefer": `"level":"WARN","msg":"connections to the database may be unencrypted: ` +
			`add sslmode=verify-full to its URL","sslmode":"prefer"`,
		"require": `"msg":"connections to the database are ` +
			`encrypted","sslmode":"require","certificate_verified":false`,
		"verify-full": `"msg":"connections to the database are ` +
			`encrypted","sslmode":"verify-full","certificate_verified":true`,
	} {
		log := &servertest.Log{}
		s, err := server.Start(t.Context(), server.Options{DatabaseURL: "postgres://u@database.invalid/d?sslmode=" + mode,
			Listen: "127.0.0.1:0", Log: slog.New(slog.NewJSONHandler(log, nil))})
		if err == nil {
			s.Stop()
			t.Fatal("the server reached a database that does not exist")
		}
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s: %s", mode, log)
		}
	}
}
