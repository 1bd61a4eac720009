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

// Disk is a small file system of a server's pg_wal.
type Disk struct {
	t    testing.TB
	d    *Durable
	dir  string
	stop chan struct{}
	done sync.WaitGroup
}

// WALDisk restarts the server with pg_wal on a file system of its own, until the test ends. The test is skipped where
// none can be mounted.
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
	// Old segments are deleted, not kept for later: the server needs room all the time.
	d.RestartWith(t, map[string]string{"wal_recycle": "off", "min_wal_size": "32MB", "max_wal_size": "32MB"})
	return k
}

func (k *Disk) run(program string, args ...string) {
	k.t.Helper()
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		k.t.Errorf("pgtest: %s %v: %v: %s", program, args, err, out)
	}
}

// Fill takes all room there is, and what the server gives up, until Free.
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
			_, _ = io.CopyN(filler, zeros{}, 1<<30) // until it is full
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
}

// Free gives the room back, and starts the server if it has ended.
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
	select {
	case <-k.d.Server.Done():
		k.d.Restart(k.t)
	default:
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
