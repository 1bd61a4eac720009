package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

const securityPage = "../../docs/security.md"

// TestSecurityPageWorks runs the commands of the page in a folder, against the real program.
func TestSecurityPageWorks(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"curl", "openssl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip("SKIPPED, NOT TESTED: " + name + " is not installed (apt-get install " + name + ")")
		}
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	db := pgtest.New(t)
	app := build(t, "DATABASE_URL="+db.AppDSN, "LEDGERD_ADMIN_DATABASE_URL="+db.AdminDSN)
	app.must("apikey", "create", "--tenant", "acme", "--principal", "nobody")
	address, calls := "", 0
	for _, b := range blocks(t, securityPage) {
		switch {
		case b.info == "yaml":
			if err := os.WriteFile(in("oidc.yaml"), []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if issuers, err := access.ReadIssuers(in("oidc.yaml")); err != nil || len(issuers) != 2 {
				t.Errorf("line %d: %v, %v", b.line, issuers, err)
			}
		case b.info == "sh" && strings.HasPrefix(b.text, "curl"):
			calls++
			s := app.start(listening, "serve", "--listen", "127.0.0.1:0", "--tls-cert", in("server.pem"), "--tls-key",
				in("server.key"), "--tls-client-ca", in("client-ca.pem"))
			address = strings.TrimPrefix(s.base, "http://")
			script := "cd " + dir + "\ncurl() { command curl --fail-with-body --connect-to ledger.example.com:8443:" + address + " \"$@\"; }\n"
			if out := runBlock(t, securityPage, script+b.text, false); !strings.Contains(out, "{") {
				t.Errorf("line %d: %s", b.line, out)
			}
			runBlock(t, securityPage, script+strings.ReplaceAll(b.text, "--cert orders.pem --key orders.key", ""), true)
			said := s.end()
			for _, want := range []string{`"tls":true`, "connections use TLS", "the database is on this machine"} {
				if !strings.Contains(said, want) {
					t.Errorf("%q is not in %s", want, said)
				}
			}
			if strings.Contains(said, `"WARN"`) {
				t.Errorf("a warning: %s", said)
			}
		case b.info == "sh":
			runBlock(t, securityPage, fmt.Sprintf("cd %s\nexport DATABASE_URL='%s'\nledgerd() { %s \"$@\"; }\n%s", dir,
				db.AdminDSN, app.file, b.text), false)
		}
	}
	if calls != 1 {
		t.Errorf("the page has %d calls", calls)
	}
}

func TestServeWarnsOfCleartextAndRefusesHalfOfTLS(t *testing.T) {
	t.Parallel()
	app := build(t, "DATABASE_URL="+pgtest.New(t).AppDSN)
	file := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, flags := range map[string][]string{
		"set both":                            {"--tls-cert", file},
		"--tls-cert and --tls-key":            {"--tls-key", file},
		"or none and no --tls-client-ca":      {"--tls-client-ca", file},
		"failed to find any PEM data":         {"--tls-cert", file, "--tls-key", file},
		"there are no issuers":                {"--oidc", file},
		"/nowhere: no such file or directory": {"--oidc", "/nowhere"},
	} {
		if out, code := app.run(append([]string{"serve", "--listen", "127.0.0.1:0"}, flags...)...); code == 0 || !strings.Contains(out, want) {
			t.Errorf("%v: %d %s", flags, code, out)
		}
	}
	const warning = "the server listens beyond this machine without TLS"
	for listen, want := range map[string]bool{"0.0.0.0:0": true, "127.0.0.1:0": false} {
		said := app.start(listening, "serve", "--listen", listen).end()
		if strings.Contains(said, warning) != want || !strings.Contains(said, `"tls":false`) {
			t.Errorf("%s: %s", listen, said)
		}
	}
	help := app.must("serve", "--help")
	for _, flag := range []string{"--tls-cert", "--tls-key", "--tls-client-ca", "--oidc", "LEDGERD_TLS_CERT", "docs/security.md"} {
		if !strings.Contains(help, flag) {
			t.Errorf("%s is not in the help", flag)
		}
	}
}
