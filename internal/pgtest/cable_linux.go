package pgtest

import (
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Cable connects this machine to a proxy in a separate network namespace. A cut cable drops packets silently:
// no errors, no acknowledgements.
type Cable struct {
	*Proxy
	ip func(args string) // runs in the proxy's namespace
}

var cables atomic.Int32

// NewCable connects to the server and database of a DSN over a cable until the test ends. It skips the test
// where network namespaces are unavailable.
func NewCable(t testing.TB, dsn string) *Cable {
	t.Helper()
	work, ended := make(chan func()), make(chan struct{})
	made := make(chan error, 1)
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked, so that the thread and its namespace end with the goroutine
		made <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range work {
			f()
		}
	}()
	inside := func(f func()) {
		done := make(chan struct{})
		work <- func() { defer close(done); f() }
		<-done
	}
	t.Cleanup(func() { close(work); <-ended })
	if err := <-made; err != nil {
		t.Skipf("SKIPPED, NOT TESTED: no network namespace can be made: %v", err)
	}
	var thread int
	inside(func() { thread = unix.Gettid() })

	n := cables.Add(1)
	near, far := fmt.Sprintf("lg%dn%d", unix.Getpid(), n), fmt.Sprintf("lg%df%d", unix.Getpid(), n)
	subnet := fmt.Sprintf("198.18.%d.", n) // reserved for network benchmarks, RFC 2544
	ip := func(args string) {
		if out, err := exec.Command("sh", "-euc", args).CombinedOutput(); err != nil {
			t.Errorf("pgtest: %s: %v: %s", args, err, out)
		}
	}
	ip("ip link add " + near + " type veth peer name " + far + " netns " + strconv.Itoa(thread))
	t.Cleanup(func() { ip("ip link del " + near) })
	ip("ip addr add " + subnet + "1/30 dev " + near + " && ip link set " + near + " up")
	c := &Cable{ip: func(args string) { inside(func() { ip(args + " " + far) }) }}
	c.ip("ip addr add " + subnet + "2/30 dev")
	c.ip("ip link set up dev")
	var listener net.Listener
	var err error
	inside(func() { listener, err = net.Listen("tcp", subnet+"2:0") })
	if err != nil {
		t.Fatal(err)
	}
	c.Proxy = newProxy(t, dsn, listener)
	return c
}

// Cut makes the cable drop all packets permanently.
func (c *Cable) Cut() { c.ip("ip link set down dev") }
