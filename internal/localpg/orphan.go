package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	shmPatience = 10 * time.Second
	ipcStat     = 2 // IPC_STAT, the same on Linux and macOS; x/sys names it only for Linux
)

type processState int

const (
	processGone   processState = iota
	processZombie              // dead, but not reaped by its parent: the pid still answers
	processRuns
)

// pidFile is the content of postmaster.pid.
type pidFile struct {
	pid   int
	shmID int // System V segment of the server's processes; -1: not written yet
	ready bool
}

// readPidFile wraps fs.ErrNotExist if there is no file.
func readPidFile(dataDir string) (pidFile, error) {
	text, err := os.ReadFile(filepath.Join(dataDir, "postmaster.pid"))
	if err != nil {
		return pidFile{}, err
	}
	lines := strings.Split(string(text), "\n")
	pf := pidFile{shmID: -1}
	if pf.pid, err = strconv.Atoi(strings.TrimSpace(lines[0])); err != nil || pf.pid <= 0 {
		return pidFile{}, fmt.Errorf("postmaster.pid in %s begins with %q instead of a process id", dataDir, lines[0])
	}
	if len(lines) > 6 {
		if key := strings.Fields(lines[6]); len(key) == 2 {
			if id, err := strconv.Atoi(key[1]); err == nil {
				pf.shmID = id
			}
		}
	}
	if len(lines) > 7 {
		state := strings.TrimSpace(lines[7])
		pf.ready = state == "ready" || state == "standby"
	}
	return pf, nil
}

// clearOldPostmasters clears the data directory of every version: the old server may be of another version and
// hold the same socket.
func clearOldPostmasters(ctx context.Context, dir string, log *logTail) error {
	for _, major := range dataMajors(dir) {
		if err := clearOldPostmaster(ctx, filepath.Join(dir, fmt.Sprintf("data-%d", major)), log); err != nil {
			return err
		}
	}
	return nil
}

// clearOldPostmaster removes what an earlier run left behind, so that the new postmaster can start. The caller
// holds the directory lock, so no other start is running.
//
//   - A running postmaster has lost its owner: it is stopped.
//   - A zombie, or a pid reused by another program, would make Postgres refuse to start: the file is removed if
//     no backend is left.
//   - A pid without a process is handled by Postgres itself.
func clearOldPostmaster(ctx context.Context, dataDir string, log *logTail) error {
	pf, err := readPidFile(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if isPostmaster(pf.pid, dataDir) {
		if err = stopOrphan(ctx, pf.pid, dataDir, log); err != nil {
			return err
		}
	}
	// Backends notice the death of their postmaster with a delay.
	free, err := waitUntil(ctx, shmPatience, func() bool { return !shmAttached(pf.shmID) })
	if err != nil || !free {
		return err // still attached: leave the error message to Postgres
	}
	if state, _ := inspect(pf.pid); state == processGone {
		return nil
	}
	// The postmaster ended in the meantime, or died without removing its file.
	err = os.Remove(filepath.Join(dataDir, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		log.printf("removed the stale postmaster.pid of process %d", pf.pid)
	}
	return err
}

// isPostmaster reports whether the process serves this data directory. A zombie has no arguments, so it does not.
func isPostmaster(pid int, dataDir string) bool {
	state, args := inspect(pid)
	return state == processRuns && len(args) > 0 &&
		strings.HasPrefix(filepath.Base(args[0]), "postgres") && slices.Contains(args[1:], dataDir)
}

func stopOrphan(ctx context.Context, pid int, dataDir string, log *logTail) error {
	log.printf("stopping postgres (pid %d), left running by an earlier run", pid)
	steps := []struct {
		signal   syscall.Signal
		patience time.Duration
	}{
		{syscall.SIGINT, fastStopPatience},
		{syscall.SIGQUIT, immediateStopPatience},
	}
	for _, step := range steps {
		if err := syscall.Kill(pid, step.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the old postgres (pid %d): %w", pid, err)
		}
		ended, err := waitUntil(ctx, step.patience, func() bool { return !isPostmaster(pid, dataDir) })
		if err != nil || ended {
			return err
		}
	}
	return fmt.Errorf("an earlier postgres (pid %d) serves %s and does not stop: stop it manually", pid, dataDir)
}

// shmAttached reports whether processes use the segment. A segment that does not exist, or is inaccessible to
// this user, counts as unused.
func shmAttached(id int) bool {
	var segment unix.SysvShmDesc
	if id < 0 {
		return false
	}
	_, err := unix.SysvShmCtl(id, ipcStat, &segment)
	return err == nil && segment.Nattch > 0
}

// waitUntil returns false when patience runs out and an error when the context ends.
func waitUntil(ctx context.Context, patience time.Duration, done func() bool) (bool, error) {
	deadline := time.After(patience)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-deadline:
			return false, nil
		case <-tick.C:
		}
	}
	return true, nil
}
