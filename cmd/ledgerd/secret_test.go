package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// TestMasterKeyIsReplacedAsDocumented runs the commands of docs/operating.md, against the real program.
func TestMasterKeyIsReplacedAsDocumented(t *testing.T) {
	t.Parallel()
	db, dir := pgtest.New(t), t.TempDir()
	file := filepath.Join(dir, "ledgerd.secret")
	if err := os.WriteFile(file, []byte("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	app, owner := build(t, "DATABASE_URL="+db.AppDSN), build(t, "DATABASE_URL="+db.SuperDSN)
	serve := []string{"serve", "--listen", "127.0.0.1:0", "--secrets-file", file}
	app.start(listening, serve...).end()
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	for _, b := range blocks(t, "../../docs/operating.md") {
		if b.info != "sh" {
			continue
		}
		steps++
		script := "cd " + dir + "\nledgerd() { DATABASE_URL='" + db.SuperDSN + "' " + owner.file + " \"$@\"; }\n" +
			b.text
		if steps == 2 {
			out, code := owner.run("secret", "reseal", "--check", "--secrets-file", file)
			if code == 0 || !strings.Contains(out, "an older master key is needed") {
				t.Errorf("before resealing: %d %s", code, out)
			}
		}
		runBlock(t, "docs/operating.md", script, false)
		app.start(listening, serve...).end()
	}
	keys, err := os.ReadFile(file)
	if err != nil || steps != 3 || strings.Count(string(keys), "\n") != 1 || string(keys) == string(old) {
		t.Errorf("after %d steps: %q, %v", steps, keys, err)
	}
	if err := os.WriteFile(file, old, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{serve, {"secret", "reseal", "--secrets-file", file}} {
		if out, code := owner.run(args...); code == 0 || !strings.Contains(out, "needs the master key ") &&
			args[0] == "secret" {
			t.Errorf("%v with the old key: %d %s", args, code, out)
		}
	}
	if out, code := app.run(serve...); code == 0 || !strings.Contains(out, "needs the master key ") {
		t.Errorf("a server with the old key: %d %s", code, out)
	}
}
