// Package scenarios tests the guarantees of the service by scripts. README.md describes their commands.
package scenarios

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestScenarios(t *testing.T) {
	binary := pgtest.Program(t, "github.com/ledgerd/ledgerd/cmd/ledgerd")
	testscript.Run(t, testscript.Params{
		Dir: ".",
		Setup: func(env *testscript.Env) error {
			s := newStory(env.T().(testing.TB), binary)
			env.Values[storyName{}] = s
			env.Setenv("DATABASE_URL", s.db.SuperDSN)
			env.Setenv("ledgerd", binary)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"as":       command((*story).as),
			"gateway":  command((*story).gateway),
			"gateways": command((*story).startGateways),
			"kill":     command((*story).kill),
			"with":     command((*story).with),
			"call":     command((*story).call),
			"call!":    command((*story).callRefused),
			"answer":   command((*story).checkAnswer),
			"until":    command((*story).until),
			"together": command((*story).together),
			"outcomes": command((*story).checkOutcomes),
			"psql":     command((*story).psql),
			"psql!":    command((*story).psqlFails),
		},
	})
}

type storyName struct{}

// story is the environment of one script: two servers on a database of its own.
type story struct {
	testing.TB
	db      *pgtest.DB
	binary  string
	servers []string // their addresses
	flags   []string // of the servers
	stops   []func() // functions that kill the servers
	http    *http.Client
	calls   int // so far; callers alternate between the servers

	keys   map[string]string // API keys by principal
	caller string            // principal of the next calls
	header [2]string         // name and value that the next call sends; empty: none

	simulator string // URL of the simulator of payment gateways; empty: it does not run

	answer   any            // of the last call
	outcomes map[string]int // number of each outcome of the last together
}

// script is the running script, as commands see it.
type script struct {
	*testscript.TestScript
	args []string
}

// take returns the next argument.
func (s *script) take(what string) string {
	if len(s.args) == 0 {
		s.Fatalf("%s is missing", what)
	}
	first := s.args[0]
	s.args = s.args[1:]
	return first
}

func command(run func(*story, *script)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg {
			ts.Fatalf("write call! or psql! for what must fail")
		}
		s := &script{ts, args}
		run(ts.Value(storyName{}).(*story), s)
		if len(s.args) > 0 {
			ts.Fatalf("not understood: %s", strings.Join(s.args, " "))
		}
	}
}

func newStory(t testing.TB, binary string) *story {
	s := &story{TB: t, db: pgtest.New(t), binary: binary, keys: map[string]string{}, caller: "shop",
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 500}, Timeout: time.Minute}}
	t.Cleanup(s.http.CloseIdleConnections)
	providers, messages := filepath.Join(t.TempDir(), "notify.yaml"), filepath.Join(t.TempDir(), "messages")
	if err := os.WriteFile(providers, []byte("email: [{kind: file, path: '"+messages+"'}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.flags = []string{"--notify", providers}
	for range 2 {
		s.serve()
	}
	return s
}

// serve starts a server and waits until it listens.
func (s *story) serve() {
	cmd := exec.Command(s.binary, append([]string{"serve", "--listen", "127.0.0.1:0"}, s.flags...)...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+s.db.AppDSN,
		"LEDGERD_SECRET="+base64.StdEncoding.EncodeToString(make([]byte, 32)))
	logs, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	listening, log, ended := make(chan string, 1), new(bytes.Buffer), make(chan struct{})
	go func() {
		defer close(ended)
		follow(logs, listening, log)
	}()
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
	})
	s.stops = append(s.stops, stop)
	s.Cleanup(func() {
		stop()
		if s.Failed() {
			s.Logf("log of a server:\n%s", log)
		}
	})
	select {
	case address := <-listening:
		s.servers = append(s.servers, "http://"+address)
	case <-ended:
		s.Fatal("the server ended")
	case <-time.After(patience):
		s.Fatal("the server does not listen")
	}
}

// follow reads a server's log to its end, reports its address, and keeps warnings and errors.
func follow(logs io.Reader, listening chan<- string, kept *bytes.Buffer) {
	lines := bufio.NewScanner(logs)
	for lines.Scan() {
		var line struct{ Level, Msg, Address string }
		switch err := json.Unmarshal(lines.Bytes(), &line); {
		case err != nil || line.Level != "INFO":
			kept.Write(append(lines.Bytes(), '\n'))
		case line.Msg == "listening":
			listening <- line.Address
		}
	}
}

// patience bounds each wait.
const patience = time.Minute

// key returns the API key of a principal.
func (s *story) key(principal string) string {
	if s.keys[principal] == "" {
		cmd := exec.Command(s.binary, "apikey", "create", "--tenant", "shop", "--principal", principal, "--role",
			"admin")
		cmd.Env = append(os.Environ(), "DATABASE_URL="+s.db.AdminDSN)
		key, err := cmd.Output()
		if err != nil {
			s.Fatalf("apikey create: %v", err)
		}
		s.keys[principal] = strings.TrimSpace(string(key))
	}
	return s.keys[principal]
}
