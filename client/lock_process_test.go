package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// holderURL makes the test binary hold a lock on that server.
const holderURL = "LEDGERD_TEST_HOLDER_URL"

const holderPause = 200 * time.Millisecond

// holdUntilLost runs in another process: it works under a lock, printing a line for each piece of work, until
// its context ends, and then tries its fence.
func holdUntilLost(url string) {
	c := client.New(url)
	l, err := c.Lock(context.Background(), "a", client.LockLease(2*time.Second), client.LockHolder("process"))
	if err != nil {
		fmt.Println("error", err)
		return
	}
	fmt.Println("fence", l.Fence())
	for l.Context().Err() == nil {
		fmt.Println("work")
		<-time.After(holderPause)
	}
	fmt.Println("ended", errors.Is(context.Cause(l.Context()), client.ReasonLockLost))
	_, err = c.Locks.Renew(context.Background(), &lockv1.RenewRequest{Name: "a", Fence: l.Fence()})
	fmt.Println("renewal", client.ReasonOf(err))
	fmt.Println("unlock", errors.Is(l.Unlock(), client.ReasonLockLost))
}

// holder is such a process.
type holder struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Scanner
}

func startHolder(t *testing.T, url string) *holder {
	t.Helper()
	h := &holder{t: t, cmd: exec.Command(os.Args[0])}
	h.cmd.Env = append(os.Environ(), holderURL+"="+url)
	h.cmd.Stderr = os.Stderr
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.out = bufio.NewScanner(out)
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	})
	if line := h.next(); !strings.HasPrefix(line, "fence ") {
		t.Fatalf("the process printed %q", line)
	}
	return h
}

func (h *holder) next() string {
	h.t.Helper()
	if !h.out.Scan() {
		h.t.Fatalf("the process has ended: %v", h.out.Err())
	}
	return h.out.Text()
}

func (h *holder) signal(s syscall.Signal) {
	h.t.Helper()
	if err := h.cmd.Process.Signal(s); err != nil {
		h.t.Fatal(err)
	}
}

// A killed holder does not release its lock; the lease expires and the next holder continues.
func TestTheLockOfAKilledHolderExpires(t *testing.T) {
	t.Parallel()
	url := startServer(t, pgtest.New(t))
	h := startHolder(t, url)
	for range 15 { // longer than a lease
		if line := h.next(); line != "work" {
			t.Fatalf("the process printed %q", line)
		}
	}
	c := newClient(t, url)
	if _, err := c.Lock(context.Background(), "a", client.LockWait(0)); !errors.Is(err, client.ReasonLockHeld) {
		t.Errorf("acquisition while the holder works: %v", err)
	}
	h.signal(syscall.SIGKILL)
	killed := time.Now()
	l := mustLock(t, c, "a")
	if took := time.Since(killed); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

// A holder is suspended for longer than its lease while another one acquires the lock. When resumed it does no
// more work, and its fence is refused.
func TestASuspendedHolderDoesNotContinue(t *testing.T) {
	t.Parallel()
	url := startServer(t, pgtest.New(t))
	h := startHolder(t, url)
	for range 5 {
		if line := h.next(); line != "work" {
			t.Fatalf("the process printed %q", line)
		}
	}
	h.signal(syscall.SIGSTOP) // while it pauses
	c := newClient(t, url)
	l := mustLock(t, c, "a", client.LockLease(time.Minute))
	defer func() {
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}()
	h.signal(syscall.SIGCONT)
	for _, want := range []string{"ended true", "renewal LOCK_LOST", "unlock true"} {
		if line := h.next(); line != want {
			t.Errorf("the process printed %q, not %q", line, want)
		}
	}
}
