package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// program is the real binary.
type program struct {
	t    *testing.T
	file string
	env  []string
}

func build(t *testing.T, env ...string) *program {
	t.Helper()
	return &program{t: t, file: pgtest.Program(t, "github.com/ledgerd/ledgerd/cmd/ledgerd"),
		env: append(os.Environ(), env...)}
}

// run runs a subcommand to its end, and returns what it printed; if it failed, with its log.
func (p *program) run(args ...string) (out string, code int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.file, args...)
	cmd.Env = p.env
	var log bytes.Buffer
	cmd.Stderr = &log
	b, err := cmd.Output()
	if cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	if err != nil {
		b = append(b, log.Bytes()...)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

func (p *program) must(args ...string) string {
	p.t.Helper()
	out, code := p.run(args...)
	if code != 0 {
		p.t.Fatalf("ledgerd %s: %d\n%s", strings.Join(args, " "), code, out)
	}
	return strings.TrimSpace(out)
}

// serving is a running program that has logged its address.
type serving struct {
	t    *testing.T
	cmd  *exec.Cmd
	base string
	said *bytes.Buffer
	read chan struct{}
}

func (p *program) start(address *regexp.Regexp, args ...string) *serving {
	p.t.Helper()
	s := &serving{t: p.t, cmd: exec.Command(p.file, args...), said: new(bytes.Buffer), read: make(chan struct{})}
	s.cmd.Env = p.env
	pipe, err := s.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	s.cmd.Stderr = s.cmd.Stdout
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	found := make(chan string, 1)
	go func() {
		defer close(s.read)
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			s.said.WriteString(lines.Text() + "\n")
			if m := address.FindStringSubmatch(lines.Text()); m != nil && len(found) == 0 {
				found <- m[1]
			}
		}
	}()
	select {
	case at := <-found:
		s.base = "http://" + at
	case <-s.read:
		p.t.Fatalf("the program ended: %s", s.said)
	case <-time.After(2 * time.Minute):
		p.t.Fatal("the program does not listen")
	}
	return s
}

// end sends a signal and returns the program's whole output.
func (s *serving) end() string {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	<-s.read
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("at SIGTERM: %v\n%s", err, s.said)
	}
	return s.said.String()
}

func post(t *testing.T, url, key, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

const listAssets = "/ledgerd.ledger.v1.LedgerService/ListAssets"

func TestProgramFromMigrationToItsEnd(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	name := db.Name + "_e2e" // an empty database beside the test's own
	execute := func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(context.Background(), db.SuperDSN)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("create database " + name)
	t.Cleanup(func() { execute("drop database " + name + " with (force)") })
	owner := build(t, "DATABASE_URL="+strings.ReplaceAll(db.SuperDSN, db.Name, name))
	app := &program{t: t, file: owner.file,
		env: append(os.Environ(), "DATABASE_URL="+strings.ReplaceAll(db.AppDSN, db.Name, name),
			"LEDGERD_ADMIN_DATABASE_URL="+strings.ReplaceAll(db.AdminDSN, db.Name, name))}

	if out, code := app.run("serve", "--listen", "127.0.0.1:0"); code != 1 ||
		!strings.Contains(out, "ledgerd migrate") {
		t.Errorf("serve without a schema: %d %s", code, out)
	}
	owner.must("migrate")
	owner.must("migrate")
	if out, code := owner.run("serve", "--listen", "127.0.0.1:0"); code != 1 ||
		!strings.Contains(out, "a member of ledgerd_app only: this one") {
		t.Errorf("serve as a superuser: %d %s", code, out)
	}
	key := app.must("apikey", "create", "--tenant", "acme", "--principal", "orders", "--role", "read")
	part := strings.Split(key, "_")
	if len(part) != 4 || part[0] != "ldg" {
		t.Fatalf("key %q", key)
	}
	if list := app.must("apikey", "list", "--tenant", "acme"); !strings.Contains(list, part[2]) ||
		strings.Contains(list, part[3]) ||
		!strings.Contains(list, "orders") {
		t.Errorf("list: %s", list)
	}
	app.must("policy", "set", "--tenant", "acme", "ledger.transfer", "--require-key", "--key-life", "48h")
	app.must("policy", "set", "--tenant", "acme", "*", "--require-token")
	if list := app.must("policy", "list", "--tenant", "acme"); !regexp.MustCompile(
		`(?s)\*\s+-\s+required\s+-.*ledger.transfer\s+required\s+-\s+48h0m0s`).MatchString(list) {
		t.Errorf("policies: %s", list)
	}
	app.must("policy", "set", "--tenant", "acme", "ledger.hold", "--key-life", "72h")
	if list := app.must("policy", "list", "--tenant",
		"acme"); !regexp.MustCompile(`(?s)ledger.hold\s+-\s+required\s+72h`).MatchString(list) {
		t.Errorf("a new policy is not like that of *: %s", list)
	}
	app.must("policy", "delete", "--tenant", "acme", "ledger.hold")
	app.must("policy", "delete", "--tenant", "acme", "*")
	app.must("policy", "set", "--tenant", "acme", "ledger.freeze_account", "--require-approval")
	app.must("policy", "set", "--tenant", "acme", "ledger.reverse", "--require-approval", "--approval-above", "1000.50")
	if list := app.must("policy", "list", "--tenant",
		"acme"); !regexp.MustCompile(
		`(?s)ledger.freeze_account\s+-\s+-\s+-\s+required.*ledger.reverse\s+-\s+-\s+-\s+above 1000.5\s`).
		MatchString(list) {
		t.Errorf("policies: %s", list)
	}
	for _, bad := range [][]string{{"policy", "set", "--tenant", "acme", "ledger.nothing"},
		{"policy", "list", "--tenant", "beta", "--tenant", "acme"},
		{"policy", "set", "--tenant", "acme", "ledger.hold", "--require-key", "--no-require-key"},
		{"policy", "set", "--tenant", "acme", "*", "--key-life", "1s"},
		{"policy", "set", "--tenant", "acme", "*", "--require-approval"},
		{"policy", "set", "--tenant", "acme", "ledger.reverse", "--require-approval", "--approval-above", "1e3"},
		{"policy", "set", "--tenant", "acme", "ledger.hold", "--approval-above", "1"},
		{"policy", "set", "--tenant", "acme", "ledger.reverse"},
		{"apikey", "create", "--tenant", "acme", "--principal", "x", "--life", "0s"},
		{"apikey", "create", "--tenant", "A B", "--principal", "x"},
		{"apikey", "create", "--tenant", "acme", "--principal", "x", "--scope", "ledger.transfer(form=user:*)"},
		{"limit", "set", "--tenant", "acme", "fax", "tenant", "60s", "1"},
		{"policy", "set", "--tenant", "acme", "lock.acquire", "--require-approval"},
		{"policy", "set", "--tenant", "nobody", "*"}, {"policy", "delete", "--tenant", "acme", "*"},
		{"apikey", "create", "--tenant", "Not Good", "--principal", "x"}, {"apikey", "list", "--tenant", "nobody"},
		{"apikey", "revoke", "--tenant", "acme", "nothing"},
		{"apikey", "create", "--tenant", "acme", "--principal", "x", "--role", "king"}, {"nonsense"}} {
		if out, code := app.run(bad...); code == 0 || strings.Contains(out, "panic") {
			t.Errorf("%v: %d %s", bad, code, out)
		}
	}
	if out, code := app.run("policy", "list", "--tenant", "acme", "--database-url", " "); code != 2 ||
		!strings.Contains(out, "--database-url must not be empty") {
		t.Errorf("an empty URL: %d %s", code, out)
	}
	// Settings without a flag stay unchanged, so that an approval is not removed by mistake.
	if set := app.must("policy", "set", "--tenant", "acme", "ledger.reverse", "--require-key"); !regexp.MustCompile(
		`ledger.reverse\s+required\s+-\s+-\s+above 1000.5`).MatchString(set) {
		t.Errorf("changed to: %s", set)
	}
	if set := app.must("policy", "set", "--tenant", "acme", "ledger.reverse",
		"--no-require-approval"); !regexp.MustCompile(
		`ledger.reverse\s+required\s+-\s+-\s+-`).MatchString(set) {
		t.Errorf("changed to: %s", set)
	}
	// The server's login cannot read keys: commands must not report that there are none, or that a valid key does not
	// exist.
	server := &program{t: t, file: app.file, env: append(slices.Clone(app.env), "LEDGERD_ADMIN_DATABASE_URL= ")}
	for _, command := range [][]string{{"apikey", "list", "--tenant", "acme"},
		{"apikey", "revoke", "--tenant", "acme", key},
		{"policy", "list", "--tenant", "acme"}, {"limit", "list", "--tenant", "acme"},
		{"apikey", "create", "--tenant", "acme", "--principal", "x"}} {
		if out, code := server.run(command...); code == 0 ||
			!strings.Contains(out, "must be a member of ledgerd_admin") {
			t.Errorf("%v by the login of the server: %d %s", command, code, out)
		}
	}
	app.must("limit", "set", "--tenant", "acme", "sms", "recipient", "24h", "10")
	app.must("limit", "set", "--tenant", "acme", "*", "tenant", "1m", "2000")
	app.must("limit", "set", "--tenant", "acme", "sms", "recipient", "24h", "12")
	if list := app.must("limit", "list", "--tenant", "acme"); !regexp.MustCompile(
		`(?s)\*\s+tenant\s+1m0s\s+2000.*sms\s+recipient\s+24h0m0s\s+12`).MatchString(list) {
		t.Errorf("limits: %s", list)
	}
	app.must("limit", "delete", "--tenant", "acme", "*", "tenant", "1m")
	for _, bad := range [][]string{{"limit", "set", "--tenant", "acme", "fax", "tenant", "1m", "1"},
		{"limit", "set", "--tenant", "acme", "sms", "street", "1m", "1"},
		{"limit", "set", "--tenant", "acme", "sms", "tenant", "1ms", "1"},
		{"limit", "set", "--tenant", "acme", "sms", "tenant", "1m", "--", "-1"},
		{"limit", "delete", "--tenant", "acme", "*", "tenant", "1m"}, {"limit", "list", "--tenant", "nobody"},
		{"serve", "--listen", "127.0.0.1:0", "--phone-region", "cn"},
		{"serve", "--listen", "127.0.0.1:0", "--secrets-file", "/nowhere"}} {
		if out, code := app.run(bad...); code == 0 || strings.Contains(out, "panic") {
			t.Errorf("%v: %d %s", bad, code, out)
		}
	}
	if out := owner.must("notify", "drop-proofs", "--months", "24"); out != "0 partitions were dropped" {
		t.Errorf("old proofs: %s", out)
	}
	for months, p := range map[string]*program{"3": owner, "24": app} {
		if out, code := p.run("notify", "drop-proofs", "--months", months); code != 1 ||
			strings.Contains(out, "panic") {
			t.Errorf("proofs of %s months: %d %s", months, code, out)
		}
	}
	s := app.start(listening, "serve", "--listen", "127.0.0.1:0")
	if code, body := post(t, s.base+listAssets, key, "{}"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, body := post(t, s.base+listAssets, "", "{}"); code != 401 {
		t.Errorf("without a key: %d %s", code, body)
	}
	for _, path := range []string{"/", "/ledgerd.ledger.v1.LedgerService/Nothing"} {
		if code, body := post(t, s.base+path, key, "{}"); code != 404 || !strings.Contains(body, `"UNSUPPORTED"`) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	whole := app.must("apikey", "create", "--tenant", "acme", "--principal", "orders")
	if out := app.must("apikey", "revoke", "--tenant", "acme", whole); out != "revoked" {
		t.Errorf("revoke a whole key: %s", out)
	}
	if out, code := app.run("apikey", "revoke", "--tenant", "acme", whole); code != 0 ||
		!strings.HasPrefix(out, "was revoked at 2") {
		t.Errorf("revoke it again: %d %s", code, out)
	}
	begin := app.must("apikey", "create", "--tenant", "acme", "--principal", "orders")
	begin = begin[:strings.LastIndexByte(begin, '_')]
	if out, code := app.run("apikey", "revoke", "--tenant", "acme",
		"ldg_999"+begin[strings.LastIndexByte(begin, '_'):]); code != 1 ||
		!strings.Contains(out, "another tenant") {
		t.Errorf("revoke a key of another tenant: %d %s", code, out)
	}
	if out := app.must("apikey", "revoke", "--tenant", "acme", begin); out != "revoked" {
		t.Errorf("revoke a key by its beginning: %s", out)
	}
	if out := app.must("apikey", "revoke", "--tenant", "acme", part[2]); out != "revoked" {
		t.Errorf("revoke: %s", out)
	}
	ended := time.NewTimer(10 * time.Second)
	for code := 0; code != 401; {
		select {
		case <-ended.C:
			t.Fatal("the revoked key still works")
		case <-time.After(50 * time.Millisecond):
			code, _ = post(t, s.base+listAssets, key, "{}")
		}
	}
	said := s.end()
	if strings.Contains(said, part[3]) || !strings.Contains(said, "waiting for calls in flight") {
		t.Errorf("log: %s", said)
	}
}

func devDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "ledgerd-dev-") // short, because it must hold a socket path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = localpg.Remove(dir) })
	if err := os.Chmod(dir, 0o711); err != nil { // under root another account must be able to enter
		t.Fatal(err)
	}
	return dir
}

// Commands behind a pooler that loses prepared statements work, or name the setting that they need.
func TestCommandsBehindAPoolerWorkOrNameTheSetting(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	u := pgtest.Pooler(t, db.AdminDSN)
	for _, mode := range []string{"&default_query_exec_mode=cache_describe", ""} {
		u.RawQuery = "sslmode=disable" + mode
		admin := build(t, "LEDGERD_ADMIN_DATABASE_URL="+u.String())
		for range 4 { // over other connections of the pooler
			for _, command := range [][]string{{"apikey", "create", "--principal", "p"}, {"apikey", "list"}} {
				out, code := admin.run(append(command, "--tenant", "acme")...)
				named := code == 1 && strings.Contains(out, "add default_query_exec_mode=cache_describe to the URL")
				if mode == "" && !named || mode != "" && code != 0 {
					t.Errorf("%v %q: %d %s", command, mode, code, out)
				}
			}
		}
	}
}

func TestDevNeedsNoSetupAndKeepsItsData(t *testing.T) {
	t.Parallel()
	dir := devDir(t)
	p := build(t, "LEDGERD_DIR="+filepath.Join(dir, "data"), "DATABASE_URL=")
	if out, code := p.run("dev", "--listen", "0.0.0.0:0"); code != 1 ||
		!strings.Contains(out, "loopback addresses only") {
		t.Errorf("dev on all addresses: %d %s", code, out)
	}
	const transfer = `{"bizNo":"order-1","postings":[{"from":"user:1001:wallet","to":"merchant:shop","asset":"CNY",` +
		`"amount":"12.30"}]}`
	address := regexp.MustCompile(`ready at http://([0-9.:]+),`)
	var auditor []string
	for turn := range 2 {
		s := p.start(address, "dev", "--listen", "127.0.0.1:0")
		code, body := post(t, s.base+"/ledgerd.ledger.v1.LedgerService/Transfer", "", transfer)
		if code != 200 || strings.Contains(body, `"existed":true`) != (turn == 1) ||
			!strings.Contains(body, `"balanceAfter":"987.70"`) {
			t.Errorf("turn %d: %d %s", turn, code, body)
		}
		code, body = post(t, s.base+"/ledgerd.notify.v1.NotifyService/Send", "",
			`{"channel":"CHANNEL_SMS","recipient":"+8613812345678","content":{"text":"hello"},"bizNo":"sms-1"}`)
		if code != 200 || strings.Contains(body, `"existed":true`) != (turn == 1) {
			t.Errorf("turn %d: %d %s", turn, code, body)
		}
		said := s.end()
		if strings.Contains(said, "creating a PostgreSQL") != (turn == 0) {
			t.Errorf("turn %d: wrong notes about creating the cluster: %s", turn, said)
		}
		if auditor = regexp.MustCompile(`psql '(.*)'`).FindStringSubmatch(said); auditor == nil {
			t.Fatalf("turn %d: no psql command: %s", turn, said)
		}
	}
	// Accepted messages are delivered before shutdown, or after the next start.
	if sent, err := os.ReadFile(filepath.Join(dir, "data.messages")); err != nil ||
		strings.Count(string(sent), "\n") != 1 || !strings.Contains(string(sent), `"text":"hello"`) {
		t.Errorf("%s, %v", sent, err)
	}

	s := p.start(address, "dev", "--listen", "127.0.0.1:0")
	conn, err := pgx.Connect(t.Context(), auditor[1])
	if err != nil {
		t.Fatal(err)
	}
	var entries int
	if err := conn.QueryRow(t.Context(),
		"select count(*) from audit.statement where biz_no = 'order-1'").Scan(&entries); err != nil || entries != 2 {
		t.Errorf("an auditor sees %d entries, %v", entries, err)
	}
	if _, err := conn.Exec(t.Context(), "delete from ledger_entries"); err == nil ||
		!strings.Contains(err.Error(), "permission denied") {
		t.Errorf("an auditor deletes: %v", err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	p.env = append(p.env, "LEDGERD_DIR="+filepath.Join(dir, "other"))
	taken := strings.TrimPrefix(s.base, "http://")
	if out, code := p.run("dev", "--listen", taken); code != 1 || !strings.Contains(out, "address already in use") ||
		strings.Contains(out, "Postgres stopped") {
		t.Errorf("dev on a used address: %d %s", code, out)
	}
	if made, _ := filepath.Glob(filepath.Join(dir, "other*")); len(made) > 0 {
		t.Errorf("dev on a used address made %v", made)
	}
	pid, err := filepath.Glob(filepath.Join(dir, "data", "data-*", "postmaster.pid"))
	if err != nil || len(pid) != 1 {
		t.Fatal(pid, err)
	}
	text, err := os.ReadFile(pid[0])
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	execute(t, strings.Replace(auditor[1], devAuditor, localpg.Superuser, 1),
		"insert into goose_db_version (version_id, is_applied) values (9999, true)")
	if err := syscall.Kill(postmaster, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.read
	if err := s.cmd.Wait(); s.cmd.ProcessState.ExitCode() != 1 ||
		!strings.Contains(s.said.String(), "the private Postgres stopped unexpectedly") {
		t.Errorf("after Postgres died: %v %s", err, s.said)
	}
	p.env = append(p.env, "LEDGERD_DIR="+filepath.Join(dir, "data"))
	if out, code := p.run("dev", "--listen", "127.0.0.1:0"); code != 1 ||
		!strings.Contains(out, "does not know: number 9999") ||
		!strings.Contains(out, "remove the folder "+filepath.Join(dir, "data")+"\n") {
		t.Errorf("dev with the data of a newer ledgerd: %d %s", code, out)
	}
}

// TestDevInterruptedDuringStartReportsIt has an initdb that never finishes.
func TestDevInterruptedDuringStartReportsIt(t *testing.T) {
	t.Parallel()
	dir := devDir(t)
	for name, script := range map[string]string{"postgres": "echo 'postgres (PostgreSQL) 18.1'",
		"initdb": "exec sleep 60"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := build(t, "LEDGERD_DIR="+filepath.Join(dir, "data"), "LEDGERD_PG_BIN="+dir, "DATABASE_URL=")
	s := p.start(regexp.MustCompile(`creating a PostgreSQL ([0-9.]+)`), "dev", "--listen", "127.0.0.1:0")
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	<-s.read
	_ = s.cmd.Wait()
	if code := s.cmd.ProcessState.ExitCode(); code != 1 ||
		!strings.HasSuffix(s.said.String(), "\nledgerd: interrupted\n") {
		t.Errorf("%d %s", code, s.said)
	}
}
