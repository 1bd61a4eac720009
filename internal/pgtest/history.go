package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/localpg"
)

// Restore dumps a database of another cluster and restores it on this server under the same name.
func (d *Durable) Restore(t testing.TB, from *DB) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db := d.cluster.db(from.Name)
	if err := d.cluster.execute(ctx, "CREATE DATABASE "+pgx.Identifier{db.Name}.Sanitize()); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	file := filepath.Join(t.TempDir(), "dump")
	program(ctx, t, "pg_dump", "--format=custom", "--file="+file, from.SuperDSN)
	program(ctx, t, "pg_restore", "--exit-on-error", "--dbname="+db.SuperDSN, file)
	t.Cleanup(func() { db.finish(t) })
	return db
}

// Reload dumps the database and restores it in place: its name and oid remain. It must have no other connections.
func (db *DB) Reload(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	file := filepath.Join(t.TempDir(), "dump")
	program(ctx, t, "pg_dump", "--format=custom", "--file="+file, db.SuperDSN)
	super, err := pgx.Connect(ctx, db.SuperDSN)
	if err == nil {
		_, err = super.Exec(ctx, "drop schema public, audit cascade; create schema public")
		err = errors.Join(err, super.Close(ctx))
	}
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	program(ctx, t, "pg_restore", "--exit-on-error", "--dbname="+db.SuperDSN, file)
}

// Standby starts a standby with asynchronous streaming replication, read-only until Promote.
func (d *Durable) Standby(t testing.TB) *Durable {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dir, err := newDir()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	primary := d.dataDir(t)
	data := filepath.Join(dir, filepath.Base(primary))
	program(ctx, t, "pg_basebackup", "--checkpoint=fast", "--write-recovery-conf", "--pgdata="+data,
		"--dbname="+d.SuperDSN)
	if err := sameOwner(data, primary); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	s := &Durable{opts: localpg.Options{Dir: dir, Durable: true, Log: t.Output()}}
	if s.Server, err = localpg.Start(ctx, s.opts); err != nil {
		t.Fatalf("pgtest: start the standby: %v", err)
	}
	s.stopAtEnd(t)
	s.DB = newCluster(s.Server).db(d.Name)
	return s
}

// Promote makes a standby a primary with its own timeline. The invariants are checked on it at the end of the test.
func (d *Durable) Promote(t testing.TB) {
	t.Helper()
	within(t, "promote the standby", func(ctx context.Context) error {
		return d.cluster.execute(ctx, "SELECT 1 / pg_promote()::integer")
	})
	t.Cleanup(func() { d.finish(t) })
}

func (d *Durable) dataDir(t testing.TB) string {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(d.Server.Dir(), "data-*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("pgtest: the data of %s: %v, %v", d.Server.Dir(), dirs, err)
	}
	return dirs[0]
}

// sameOwner gives a directory tree to the owner of another directory: under root the server has its own account.
func sameOwner(dir, as string) error {
	info, err := os.Stat(as)
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("the owner of %s is unknown", as)
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}

func program(ctx context.Context, t testing.TB, name string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: %s is not installed", name)
	}
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("pgtest: %s: %v\n%s", name, err, out)
	}
}
