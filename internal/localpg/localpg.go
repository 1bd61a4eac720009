// Package localpg runs a private PostgreSQL server as a child of this program.
//
// It serves `ledgerd dev`, single-machine installations and the tests. It owns
// one directory: whoever holds the flock on <dir>/lock owns the server in it,
// and nobody else may touch what is inside.
//
//	lock             flock of the run that owns the directory, holds its pid
//	data-<major>     the cluster, one per major version so that none meets foreign files
//	run              the unix socket, mode 0700
//	pg_hba.conf      who may connect, written anew at every start
//	password         the superuser's password for TCP, mode 0600, only with Options.Listen
//
// The promise: Start gives a running server or a clear error, whatever the
// previous run died of, and never loses what a durable server has committed.
// Linux and macOS are supported.
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

// Options say where and how a server runs. The zero value is a server in
// DefaultDir which does not survive a power cut.
type Options struct {
	// Dir is the directory the server owns; created when missing. Empty means DefaultDir.
	Dir string
	// Durable servers wait for the disk. Others may lose their last commits
	// when they are killed, and everything when the machine stops suddenly.
	Durable bool
	// Settings are added to the server's configuration and win over the
	// defaults, except for those on which the address of the server depends.
	Settings map[string]string
	// Env is added to the server's environment, such as LD_PRELOAD.
	Env []string
	// Listen is a host:port for TCP clients, who need the password (see
	// Server.TCPDSN). Port 0 picks a free one. Empty: unix socket only.
	Listen string
	// Log receives what Postgres logs and what this package decides; it must
	// not block for long. Nil discards.
	Log io.Writer
	// Notes is called with what this package decides alone, such as what it is
	// about to fetch; nil discards. It is for whoever waits at a terminal.
	Notes func(string)
}

// Server is a running PostgreSQL. Call Stop (or Kill) once it is no longer
// needed, also when it has died by itself: until then the directory stays locked.
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

// Start takes the directory, creates the cluster if there is none, and returns
// once the server accepts connections. The context bounds only the start, which
// takes as long as crash recovery does; cancel it and the server is stopped.
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

// launch forks the postmaster. The kernel sends its death signal (see
// childAttributes) when the forking thread ends, not the process, so one
// goroutine keeps its thread from Start until Wait returns.
func (s *Server) launch() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := s.account.command(s.opts.Dir, s.bin.path("postgres"), s.arguments()...)
		cmd.Env = append(cmd.Env, s.opts.Env...)
		cmd.Stdout, cmd.Stderr = s.log, s.log
		// Backends hold the log pipe too: a busy one may outlive a killed postmaster.
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

// waitReady reads the state which the postmaster publishes in its pid file, as
// pg_ctl does: no connection attempts that fill the log during recovery.
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

// Stop ends the server: fast first (open transactions roll back), after 20 s at
// once (the next start then recovers, which it reports as an error). It returns
// an error too if the server had died before. Further calls return the same.
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
		_ = s.process.Signal(step.signal) // fails only when it has ended already
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

// Kill ends the postmaster with SIGKILL, as a crash would, and gives the
// directory free so that Start can be called on it again at once.
func (s *Server) Kill() {
	s.stopOnce.Do(func() {
		_ = s.process.Kill() // fails only when it has ended already
		<-s.done
		s.release()
	})
}

// release gives the directory free, last of all.
func (s *Server) release() {
	if s.sockDir != "" && filepath.Dir(s.sockDir) != s.opts.Dir {
		_ = os.RemoveAll(s.sockDir) // only its being tidy is at stake, the name is used again
	}
	s.lock.release()
}

// Done is closed once the server has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} { return s.done }

// Err says why the server ended: nil while it runs and after an orderly stop.
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

// Dir is the directory the server owns.
func (s *Server) Dir() string { return s.opts.Dir }

// DataDir is the cluster's data directory.
func (s *Server) DataDir() string { return s.dataDir }

// DSN is the address over the unix socket. No password is asked there: the
// socket's directory admits only the account Postgres runs as, and root.
func (s *Server) DSN(user, database string) string {
	q := url.Values{"host": {s.sockDir}, "port": {s.listen.port}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(user), Path: "/" + database, RawQuery: q.Encode()}
	return u.String()
}

// TCPDSN is the superuser's address over TCP, password included; empty unless
// Options.Listen was given.
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
