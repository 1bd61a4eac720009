package pgtest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// RestartWith restarts the server with additional settings, which later restarts keep.
func (d *Durable) RestartWith(t testing.TB, settings map[string]string) {
	t.Helper()
	if d.opts.Settings == nil {
		d.opts.Settings = map[string]string{}
	}
	maps.Copy(d.opts.Settings, settings)
	d.Restart(t)
}

// Clock is the wall clock of a server. Its monotonic clock is unaffected.
type Clock struct {
	t    testing.TB
	file string
}

// Clock restarts the server under libfaketime.
func (d *Durable) Clock(t testing.TB) *Clock {
	t.Helper()
	libraries, _ := filepath.Glob("/usr/lib/*/faketime/libfaketime.so.1")
	if len(libraries) == 0 {
		t.Skip("SKIPPED, NOT TESTED: libfaketime is not installed")
	}
	c := &Clock{t, filepath.Join(d.Server.Dir(), "clock")}
	c.Set(0)
	d.opts.Env = []string{"LD_PRELOAD=" + libraries[0], "FAKETIME_TIMESTAMP_FILE=" + c.file, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1"}
	d.Restart(t)
	return c
}

// Set sets the clock ahead of the machine's; a negative value sets it behind.
func (c *Clock) Set(ahead time.Duration) {
	c.t.Helper()
	next := c.file + ".next"
	err := os.WriteFile(next, fmt.Appendf(nil, "%+.3f\n", ahead.Seconds()), 0o644) // libfaketime requires a sign
	if err == nil {
		err = os.Chmod(next, 0o644) // the server runs under another account
	}
	if err == nil {
		err = os.Rename(next, c.file)
	}
	if err != nil {
		c.t.Fatalf("pgtest: set the clock: %v", err)
	}
}

// System changes a setting of the running server, or resets it with "", and waits until new transactions use it.
func (d *Durable) System(t testing.TB, name, value string) {
	t.Helper()
	sql := "ALTER SYSTEM RESET " + name
	if value != "" {
		sql = "ALTER SYSTEM SET " + name + " = '" + value + "'"
	}
	// ALTER SYSTEM works even if transactions are read-only by default.
	within(t, "set "+name, func(ctx context.Context) error {
		return d.cluster.execute(ctx, sql, "SELECT pg_reload_conf()")
	})
}
