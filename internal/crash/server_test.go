package crash_test

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// build builds ledgerd.
func build(t *testing.T) string { return pgtest.Program(t, "github.com/ledgerd/ledgerd/cmd/ledgerd") }

// server is a restartable ledgerd process.
type server struct {
	binary, dsn string
	args        []string // additional ones

	mu   sync.Mutex
	cmd  *exec.Cmd
	addr string
}

func startServer(t *testing.T, binary, dsn string, args ...string) *server {
	s := &server{binary: binary, dsn: dsn, args: args}
	s.start(t)
	t.Cleanup(s.kill)
	return s
}

func (s *server) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

func (s *server) pid() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strconv.Itoa(s.cmd.Process.Pid)
}

// start starts a process and waits until it listens.
func (s *server) start(t *testing.T) {
	cmd := exec.Command(s.binary, append([]string{"serve", "--listen", "127.0.0.1:0"}, s.args...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.dsn)
	logs, err := cmd.StderrPipe()
	if err != nil {
		t.Error(err)
		return
	}
	if err := cmd.Start(); err != nil {
		t.Error(err)
		return
	}
	listening := make(chan string, 1)
	go follow(logs, listening)
	select {
	case addr := <-listening:
		s.mu.Lock()
		s.cmd, s.addr = cmd, addr
		s.mu.Unlock()
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Error("the server does not listen")
	}
}

// follow reads a server's log to its end and reports its address.
func follow(logs io.Reader, listening chan<- string) {
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "listening" {
			listening <- line.Address
		}
	}
}

// kill ends the process abruptly, like a power cut.
func (s *server) kill() {
	s.mu.Lock()
	cmd := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
