package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process that this one starts. It gets no signals from the terminal; the kernel ends it if this
// process dies first.
type child struct {
	process *os.Process
	done    chan struct{}
	err     error // valid once done is closed
	tail    tail
}

// startChild starts a program. The kernel sends the death signal when the starting thread ends, so one
// goroutine keeps its thread until the child has ended.
func startChild(program string, args, env []string, in io.Reader, out io.Writer) (*child, error) {
	c := &child{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := exec.Command(program, args...)
		cmd.Env = append(foreignEnv(), env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &c.tail
		cmd.SysProcAttr = childAttributes()
		cmd.WaitDelay = time.Second
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s %s: %w", program, strings.Join(args, " "), err)
	}
	return c, nil
}

// foreignEnv is the environment without variables that would affect the server.
func foreignEnv() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LEDGERD_") && !strings.HasPrefix(e, "DATABASE_URL=") && !strings.HasPrefix(e, "PG") {
			env = append(env, e)
		}
	}
	return env
}

// stop sends SIGTERM to the child, and SIGKILL after a timeout.
func (c *child) stop(after time.Duration) {
	_ = c.process.Signal(syscall.SIGTERM) // fails only when the child has ended
	select {
	case <-c.done:
	case <-time.After(after):
		_ = c.process.Kill()
		<-c.done
	}
}

// died returns why a child ended.
func (c *child) died() error {
	err := c.err
	if err == nil {
		err = errors.New("it ended")
	}
	return fmt.Errorf("%w; output: %s", err, c.tail.String())
}

// tail keeps the end of a child's output.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - tailBytes; extra > 0 {
		t.text = append(t.text[:0], t.text[extra:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// service is a running ledgerd.
type service struct {
	*child
	url     string
	metrics string // host:port of /metrics and /debug/pprof, or empty
}

const (
	startPatience = 30 * time.Second
	stopPatience  = 25 * time.Second
)

// startService starts `ledgerd serve`, with more flags if there are any, and waits until it is ready.
func startService(ctx context.Context, program, databaseURL string, metrics bool, flags ...string) (*service, error) {
	listen, err := freeAddress()
	if err != nil {
		return nil, err
	}
	s := &service{url: "http://" + listen}
	args := append([]string{"serve", "--listen=" + listen}, flags...)
	if metrics {
		if s.metrics, err = freeAddress(); err != nil {
			return nil, err
		}
		args = append(args, "--metrics-listen="+s.metrics)
	}
	if s.child, err = startChild(program, args, []string{"DATABASE_URL=" + databaseURL}, nil, nil); err != nil {
		return nil, err
	}
	if err := s.waitReady(ctx); err != nil {
		s.stop(stopPatience)
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	return s, nil
}

// freeAddress asks the kernel for a free port. If another program takes the port first, the server reports it.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func (s *service) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
		if err != nil {
			return err
		}
		if answer, err := http.DefaultClient.Do(r); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-s.done:
			return s.died()
		case <-ctx.Done():
			return fmt.Errorf("%w; output: %s", ctx.Err(), s.tail.String())
		case <-tick.C:
		}
	}
}
