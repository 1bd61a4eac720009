// Package localpg runs a private PostgreSQL server as a child of this program.
//
// It serves `ledgerd dev`, single-machine installations and the tests. It owns one directory: the process that
// holds the flock on <dir>/lock owns the server, and no other process may touch the directory's contents.
//
//	lock           flock of the owning process; contains its pid
//	data-<major>   the cluster, one per major version
//	run            the unix socket, mode 0700
//	pg_hba.conf    client authentication, rewritten at every start
//	password       the superuser's password for TCP, mode 0600, only with Options.Listen
//
// Guarantee: Start returns a running server or a clear error, however the previous run ended, and never loses
// commits of a durable server. Linux and macOS are supported.
package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Superuser is the name of the cluster's superuser.
const Superuser = "postgres"

const (
	fastStopPatience      = 20 * time.Second
	immediateStopPatience = 10 * time.Second
	pollInterval          = 10 * time.Millisecond
)

// Options configure a server. The zero value is a non-durable server in DefaultDir.
type Options struct {
	// Dir is the directory that the server owns; Start creates it. Empty means DefaultDir.
	Dir string
	// Durable enables fsync and synchronous commit. Without it, a killed server may lose its last commits, and
	// a machine crash may lose everything.
	Durable bool
	// Settings override the server's default configuration, except for the settings that determine its address.
	Settings map[string]string
	// Env is added to the server's environment, for example LD_PRELOAD.
	Env []string
	// Listen is a host:port for TCP clients, which need the password (see Server.TCPDSN). Port 0 picks a free
	// port. Empty: unix socket only.
	Listen string
	// Log receives the logs of Postgres and of this package; it must not block for long. Nil discards.
	Log io.Writer
	// Notes is called with this package's own messages, such as the start of a download, for a user who waits
	// at a terminal. Nil discards.
	Notes func(string)
}

// Server is a running PostgreSQL. Call Stop or Kill when it is no longer needed, even if it has died: until
// then the directory stays locked.
type Server struct {
	// Version is the server's version as in "15.18".
	Version string

	opts    Options
	account account
	bin     binaries
	dataDir string
	sockDir string
	listen  address
	secret  string // the superuser's password, set only with Options.Listen

	lock     *dirLock
	log      *logTail
	process  *os.Process
	done     chan struct{}
	err      error // why the process ended; read only after done is closed
	stopOnce sync.Once
	stopErr  error
}

// Start locks the directory, creates the cluster if there is none, and returns once the server accepts connections. The
// context bounds the start, which takes as long as crash recovery does; cancelling it stops the server.
func Start(ctx context.Context, opts Options) (*Server, error) {
	s := &Server{log: newLogTail(opts.Log), done: make(chan struct{})}
	s.log.notes = opts.Notes
	var err error
	if s.opts, err = opts.prepare(); err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	if s.lock, err = lockDir(s.opts.Dir); err != nil {
		return nil, fmt.Errorf("localpg: %w", err)
	}
	if err = s.start(ctx); err != nil {
		s.release()
		return nil, fmt.Errorf("localpg: %w", err)
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	var err error
	if s.listen, err = parseListen(s.opts.Listen); err != nil {
		return err
	}
	if s.account, err = serverAccount(s.opts.Dir); err != nil {
		return err
	}
	if err = s.account.canReach(s.opts.Dir); err != nil {
		return err
	}
	if s.bin, err = findBinaries(ctx, s.account, dataMajors(s.opts.Dir), s.log); err != nil {
		return err
	}
	s.Version = s.bin.version
	s.dataDir = filepath.Join(s.opts.Dir, fmt.Sprintf("data-%d", s.bin.major))
	if err = s.ensureCluster(ctx); err != nil {
		return err
	}
	if err = clearOldPostmasters(ctx, s.opts.Dir, s.log); err != nil {
		return err
	}
	if s.sockDir, err = socketDir(s.opts.Dir, s.listen.port, s.account); err != nil {
		return err
	}
	if err = s.writeHBA(); err != nil {
		return err
	}
	if err = s.launch(); err != nil {
		return err
	}
	err = s.waitReady(ctx)
	if err == nil && s.opts.Listen != "" {
		err = s.setPassword(ctx)
	}
	if err != nil {
		s.end()
	}
	return err
}

// launch forks the postmaster. The kernel sends the death signal (see childAttributes) when the forking thread
// ends, not the process. So one goroutine keeps its thread from Start until Wait returns.
func (s *Server) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := s.account.command(s.opts.Dir, s.bin.path("postgres"), s.arguments()...)
		cmd.Env = append(cmd.Env, s.opts.Env...)
		cmd.Stdout, cmd.Stderr = s.log, s.log
		// Backends hold the log pipe too, and may outlive a killed postmaster.
		cmd.WaitDelay = 2 * time.Second
		if err := cmd.Start(); err != nil {
			started <- fmt.Errorf("start %s as %s: %w", cmd.Path, s.account.name, err)
			return
		}
		s.process = cmd.Process
		started <- nil
		if err := cmd.Wait(); !errors.Is(err, exec.ErrWaitDelay) {
			s.err = err
		}
		close(s.done)
	}()
	return <-started
}

// waitReady polls the state in the postmaster's pid file, as pg_ctl does. Connection attempts would fill the
// log during recovery.
func (s *Server) waitReady(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if pf, err := readPidFile(s.dataDir); err == nil && pf.pid == s.process.Pid && pf.ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("postgres was not ready in time: %w; it logged:\n%s", ctx.Err(), s.log.tail())
		case <-s.done:
			return fmt.Errorf("postgres ended while starting (%w); it logged:\n%s", s.exitError(), s.log.tail())
		case <-tick.C:
		}
	}
}

// Stop shuts the server down: fast first (open transactions roll back), after 20 s immediate (the next start
// runs recovery), which it reports as an error. It also returns an error if the server had already died.
// Further calls return the same result.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		select {
		case <-s.done:
			s.stopErr = fmt.Errorf("localpg: postgres had already ended: %w", s.exitError())
		default:
			s.stopErr = s.end()
		}
		s.release()
	})
	return s.stopErr
}

func (s *Server) end() error {
	steps := []struct {
		signal   syscall.Signal
		patience time.Duration
	}{
		{syscall.SIGINT, fastStopPatience},
		{syscall.SIGQUIT, immediateStopPatience},
		{syscall.SIGKILL, immediateStopPatience},
	}
	for i, step := range steps {
		_ = s.process.Signal(step.signal) // fails only when the process has ended
		select {
		case <-s.done:
			if i > 0 {
				return fmt.Errorf("localpg: postgres ignored a fast shutdown and was ended by %v", step.signal)
			}
			return s.err
		case <-time.After(step.patience):
		}
	}
	return fmt.Errorf("localpg: postgres (pid %d) survives SIGKILL", s.process.Pid)
}

// Kill ends the postmaster with SIGKILL, like a crash, and unlocks the directory so that Start can be called
// again immediately.
func (s *Server) Kill() {
	s.stopOnce.Do(func() {
		_ = s.process.Kill() // fails only when the process has ended
		<-s.done
		s.release()
	})
}

// release unlocks the directory; it must come last.
func (s *Server) release() {
	if s.sockDir != "" && filepath.Dir(s.sockDir) != s.opts.Dir {
		_ = os.RemoveAll(s.sockDir) // a leftover directory is reused by the next run
	}
	s.lock.release()
}

// Done is closed once the server has ended, for any reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err returns why the server ended: nil while it runs and after an orderly stop.
func (s *Server) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

func (s *Server) exitError() error {
	if s.err != nil {
		return s.err
	}
	return errors.New("orderly shutdown")
}

// Pid is the process id of the postmaster.
func (s *Server) Pid() int { return s.process.Pid }

// Dir is the directory that the server owns.
func (s *Server) Dir() string { return s.opts.Dir }

// DataDir is the cluster's data directory.
func (s *Server) DataDir() string { return s.dataDir }

// DSN is the address over the unix socket, without a password: the socket's directory admits only root and the
// account that runs Postgres.
func (s *Server) DSN(user, database string) string {
	q := url.Values{"host": {s.sockDir}, "port": {s.listen.port}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// TCPDSN is the superuser's address over TCP, including the password; empty without Options.Listen.
func (s *Server) TCPDSN(database string) string {
	if s.opts.Listen == "" {
		return ""
	}
	u := url.URL{
		Scheme: "postgres", User: url.UserPassword(Superuser, s.secret),
		Host: s.listen.dialHost(), Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}
