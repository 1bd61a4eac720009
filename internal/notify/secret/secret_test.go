package secret_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

var known = base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))

func TestDerivedKeysNeverChange(t *testing.T) {
	t.Parallel()
	m, err := secret.Parse(known + "\n")
	if err != nil {
		t.Fatal(err)
	}
	// HKDF-SHA256 without salt; info is the parts, each prefixed with its length.
	const want = "95e73cd6c8c0af8b6b8baebb67b79b1a4cfd711efcf8aa0dd1c67d7cb3852831"
	if got := hex.EncodeToString(m.Derive("notify.test", "1")); got != want {
		t.Errorf("derived %s, want %s: stored hashes would be lost", got, want)
	}
}

func TestKeysDifferByEveryPart(t *testing.T) {
	t.Parallel()
	m, other := secret.New(), secret.New()
	keys := map[string]string{}
	for _, parts := range [][]string{{"a"}, {"a", ""}, {"a", "b"}, {"ab"}, {"a", "b", ""}, {"", "ab"}, {"b", "a"}} {
		key := string(m.Derive(parts[0], parts[1:]...))
		if before, ok := keys[key]; ok || len(key) != secret.Size {
			t.Errorf("%q: key of %d bytes, equal to that of %q", parts, len(key), before)
		}
		keys[key] = fmt.Sprint(parts)
		if key == string(other.Derive(parts[0], parts[1:]...)) {
			t.Error("two masters derive the same key")
		}
	}
}

func TestInvalidMasterKeyIsRefusedAndNotPrinted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "hunter2", known[:40], known + known, strings.Repeat("!", 44)} {
		if _, err := secret.Parse(text); err == nil || len(text) > 0 && strings.Contains(err.Error(), text) {
			t.Errorf("Parse(%q) = %v", text, err)
		}
	}
	var none *secret.Master
	if err := none.Check(); !fault.Is(err, secret.Missing) {
		t.Errorf("none = %v", err)
	}
	if err := secret.New().Check(); err != nil {
		t.Error(err)
	}
}

func TestMasterKeyIsNeverPrinted(t *testing.T) {
	t.Parallel()
	m, err := secret.Parse(known)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("options", "master", m, "in", struct{ M *secret.Master }{m})
	slog.New(slog.NewTextHandler(&log, nil)).Info("options", "master", m)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		fmt.Fprintf(&log, verb, m)
		fmt.Fprintf(&log, verb, *m)
		fmt.Fprintf(&log, verb, struct {
			m *secret.Master
			n secret.Master
		}{m, *m})
	}
	encoded, _ := json.Marshal(struct{ M *secret.Master }{m})
	log.Write(encoded)
	for _, told := range []string{known[:20], "0123456789abcdef", "3031323334", "48 49 50"} {
		if strings.Contains(log.String(), told) {
			t.Errorf("the key is printed: %s", log.String())
		}
	}
}

func TestFileReadableByOthersIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(known), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.ReadFile(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := secret.ReadFile(path); err == nil {
		t.Error("a world-readable file was accepted")
	}
}

func TestConcurrentKeepFileMakesOneKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "secret")
	keys := make([]string, 16)
	var group sync.WaitGroup
	for i := range keys {
		group.Go(func() {
			m, err := secret.KeepFile(path)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = string(m.Derive("x"))
		})
	}
	group.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Fatal("two keys were created")
		}
	}
	again, err := secret.KeepFile(path)
	if err != nil || string(again.Derive("x")) != keys[0] {
		t.Errorf("the next start has another key: %v", err)
	}
}

func TestOnlyTheSameKeyOpensSealedText(t *testing.T) {
	t.Parallel()
	m, text := secret.New(), []byte(`{"text":"123456"}`)
	kept := m.Seal(text, "notify.test", "1")
	if bytes.Contains(kept, []byte("123456")) || bytes.Equal(kept, m.Seal(text, "notify.test", "1")) {
		t.Errorf("sealed: %q", kept)
	}
	if got, err := m.Open(kept, "notify.test", "1"); err != nil || !bytes.Equal(got, text) {
		t.Errorf("opened: %q, %v", got, err)
	}
	changed := bytes.Clone(kept)
	changed[len(changed)-1] ^= 1
	for what, open := range map[string]func() ([]byte, error){
		"another part":    func() ([]byte, error) { return m.Open(kept, "notify.test", "2") },
		"another purpose": func() ([]byte, error) { return m.Open(kept, "notify.other", "1") },
		"another master":  func() ([]byte, error) { return secret.New().Open(kept, "notify.test", "1") },
		"no master":       func() ([]byte, error) { return (*secret.Master)(nil).Open(kept, "notify.test", "1") },
		"changed":         func() ([]byte, error) { return m.Open(changed, "notify.test", "1") },
		"cut off":         func() ([]byte, error) { return m.Open(kept[:5], "notify.test", "1") },
	} {
		if got, err := open(); err == nil {
			t.Errorf("%s: %q", what, got)
		}
	}
	if got, err := (*secret.Master)(nil).Open(text, "notify.test", "1"); err != nil || !bytes.Equal(got, text) {
		t.Errorf("unsealed text: %q, %v", got, err)
	}
}
