package pgtest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Disk is a small file system for a server's pg_wal.
type Disk struct {
	t    testing.TB
	d    *Durable
	dir  string
	stop chan struct{}
	done sync.WaitGroup
}

// WALDisk restarts the server with pg_wal on a separate file system until the test ends. It skips the test
// where mounting is not permitted.
func (d *Durable) WALDisk(t testing.TB, mib int) *Disk {
	t.Helper()
	k := &Disk{t: t, d: d, dir: filepath.Join(d.Server.Dir(), "wal")}
	if err := os.Mkdir(k.dir, 0o700); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+strconv.Itoa(mib)+"m", "tmpfs",
		k.dir).CombinedOutput(); err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no file system can be mounted: %v: %s", err, out)
	}
	if err := errors.Join(os.Chmod(k.dir, 0o700), sameOwner(k.dir, d.dataDir(t))); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	wal := filepath.Join(d.dataDir(t), "pg_wal")
	t.Cleanup(func() {
		k.Free()
		_ = d.Server.Stop()
		k.run("rm", wal)
		k.run("cp", "-a", k.dir, wal)
		k.run("umount", k.dir)
		d.Restart(t)
	})
	if err := d.Server.Stop(); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	k.run("cp", "-a", wal+"/.", k.dir)
	k.run("rm", "-r", wal)
	k.run("ln", "-s", k.dir, wal)
	if err := sameOwner(wal, d.dataDir(t)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	// Old segments are deleted, not recycled, so the server needs free space continuously.
	d.RestartWith(t, map[string]string{"wal_recycle": "off", "min_wal_size": "32MB", "max_wal_size": "32MB"})
	return k
}

func (k *Disk) run(program string, args ...string) {
	k.t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		k.t.Errorf("pgtest: %s %v: %v: %s", program, args, err, out)
	}
}

// Fill uses up all free space, including space that the server frees, until Free.
func (k *Disk) Fill() {
	stop := make(chan struct{})
	k.stop = stop
	k.done.Go(func() {
		filler, err := os.Create(filepath.Join(k.dir, "filler"))
		if err != nil {
			k.t.Errorf("pgtest: %v", err)
			return
		}
		defer filler.Close()
		for {
			_, _ = io.CopyN(filler, zeros{}, 1<<30) // until the disk is full
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// Free frees the space, and restarts the server if it has ended.
func (k *Disk) Free() {
	k.t.Helper()
	if k.stop == nil {
		return
	}
	close(k.stop)
	k.stop = nil
	k.done.Wait()
	if err := os.Remove(filepath.Join(k.dir, "filler")); err != nil {
		k.t.Errorf("pgtest: %v", err)
	}
	k.d.restartEnded(k.t)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
