package localpg

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAbandonedDirectoriesAreRemoved(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	old := filepath.Join(parent, "run-1")
	lock := filepath.Join(old, "lock")
	if err := os.Mkdir(old, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	age := func() {
		t.Helper()
		longAgo := time.Now().Add(-2 * time.Hour)
		if err := os.Chtimes(lock, longAgo, longAgo); err != nil {
			t.Fatal(err)
		}
	}
	stays := func(want bool, when string) {
		t.Helper()
		RemoveAbandoned(filepath.Join(parent, "run-*"), time.Hour)
		if _, err := os.Stat(old); (err == nil) != want {
			t.Errorf("exists %t: %s", err == nil, when)
		}
	}
	stays(true, "in its first hour")
	held, err := lockDir(old)
	if err != nil {
		t.Fatal(err)
	}
	age()
	stays(true, "while a run owns it")
	held.release()
	age()
	stays(false, "when no run owns it")
}
