// Command withpg runs a command with a throw-away PostgreSQL:
//
//	go run ./internal/pgtest/cmd/withpg -- go test ./...
//
// The command finds the server in LEDGERD_TEST_DSN; if that is already set, no server is started. The exit code
// is the command's. With -hold the server outlives a failed command until interrupted, to inspect the databases
// of failed tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/ledgerd/ledgerd/internal/localpg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func main() {
	hold := flag.Bool("hold", false, "keep the server after a failure, until interrupted")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: withpg [-hold] -- command [argument ...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := run(*hold, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func run(hold bool, command []string) (code int, err error) {
	// From here on signals go to the command, or end the hold. In either case the server is stopped cleanly.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if os.Getenv(pgtest.DSNEnv) != "" {
		return execute(command, os.Environ(), signals)
	}
	srv, err := pgtest.StartServer(context.Background(), localpg.Options{Notes: func(note string) {
		fmt.Fprintln(os.Stderr, "withpg:", note)
	}})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, pgtest.StopServer(srv)) }()
	programs, err := os.MkdirTemp("", "ledgerd-programs-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(programs)
	dsn := srv.DSN(localpg.Superuser, "postgres")
	env := append(os.Environ(), pgtest.DSNEnv+"="+dsn, pgtest.ProgramsEnv+"="+programs)
	code, err = execute(command, env, signals)
	if hold && code != 0 && err == nil {
		fmt.Fprintf(os.Stderr, "withpg: the server is held until you interrupt: psql '%s'\n", dsn)
		select {
		case <-signals:
		case <-srv.Done():
		}
	}
	return code, err
}

// execute runs the command and returns its exit code, following shell conventions if a signal ended it.
func execute(command, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // the same signal may have ended it already
		case err := <-ended:
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				return 0, err
			}
			if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
				return 128 + int(status.Signal()), nil
			}
			return exit.ExitCode(), nil
		}
	}
}
