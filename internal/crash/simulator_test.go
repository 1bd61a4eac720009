package crash_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// simulator is a restartable process that simulates all payment gateways.
type simulator struct {
	t           *testing.T
	binary, dir string
	notify      string // base URL of callbacks
	url         string

	mu  sync.Mutex
	cmd *exec.Cmd
}

func startSimulator(t *testing.T, notify string) *simulator {
	t.Helper()
	s := &simulator{t: t, binary: pgtest.Program(t, "github.com/ledgerd/ledgerd/examples/gateway"), dir: t.TempDir(),
		notify: notify}
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts the process, again on the same address if it ran before, and waits until it serves.
func (s *simulator) start() {
	address := strings.TrimPrefix(s.url, "http://")
	if address == "" {
		address = "127.0.0.1:0"
	}
	cmd := exec.Command(s.binary, "-listen", address, "-dir", s.dir, "-notify-url", s.notify, "-tenant", "crash",
		"-speed", "3000")
	cmd.Stderr = s.t.Output()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	if err == nil {
		_, err = lines.ReadString('\n')
	}
	if err != nil {
		s.t.Errorf("the simulator does not serve: %v", err)
	}
	if s.url == "" {
		s.url = strings.TrimSpace(line)
	}
	s.mu.Lock()
	s.cmd = cmd
	s.mu.Unlock()
}

// kill ends the process abruptly.
func (s *simulator) kill() {
	s.mu.Lock()
	cmd := s.cmd
	s.cmd = nil
	s.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}

// silence stops the process for a while: connections stay open, and no answer comes.
func (s *simulator) silence(d time.Duration) {
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := s.cmd.Process.Signal(signal); err != nil {
			s.t.Error(err)
		}
		if signal == syscall.SIGSTOP {
			<-time.After(d)
		}
	}
}

// settings writes the settings of a server that reaches the gateways at another URL.
func (s *simulator) settings(at string) (file string) {
	text, err := os.ReadFile(filepath.Join(s.dir, "pay.yaml"))
	if err == nil {
		file = filepath.Join(s.t.TempDir(), "pay.yaml")
		err = os.WriteFile(file, bytes.ReplaceAll(text, []byte(s.url), []byte(at)), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return file
}

// call makes a request until it is answered, and returns the status.
func (s *simulator) call(method, path string, body []byte, kind string, into any) (status int) {
	for end := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		status, err := s.try(method, path, body, kind, into)
		if err == nil {
			return status
		}
		if time.Now().After(end) {
			s.t.Errorf("%s %s: %v", method, path, err)
			return 0
		}
	}
}

func (s *simulator) try(method, path string, body []byte, kind string, into any) (status int, err error) {
	r, err := http.NewRequest(method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", kind)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || into == nil || res.StatusCode != http.StatusOK {
		return res.StatusCode, err
	}
	return res.StatusCode, json.Unmarshal(text, into)
}

// control calls the API of payers and fate.
func (s *simulator) control(method, path string, body, into any) (status int) {
	text, err := json.Marshal(body)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.call(method, "/control/"+path, text, "application/json", into)
}

// plan sets the fate of a payment.
func (s *simulator) plan(number string, plan fate) {
	if status := s.control("PUT", "plans/"+number, plan, nil); status != http.StatusOK {
		s.t.Errorf("plan of %s: status %d", number, status)
	}
}

// act acts as the payer, who may be too late.
func (s *simulator) act(gateway, number string, act map[string]any) (status int) {
	return s.control("POST", "payments/"+gateway+"/"+number, act, nil)
}

// open opens a payment as the payer's client does, with the credential from the gateway.
func (s *simulator) open(gateway string, credential map[string]string) {
	if form := credential["form_url"]; form != "" {
		u, err := url.Parse(form)
		if err != nil {
			s.t.Error(err)
			return
		}
		s.call("GET", u.RequestURI(), nil, "", nil)
		return
	}
	s.control("POST", "open/"+gateway, credential, nil)
}

// charge is a payment as the gateway knows it.
type charge struct {
	Gateway, Number, Status string
	Transactions            []struct {
		ID, Currency, Seller, App string
		Amount                    int64
	}
}

func (s *simulator) charges() (all []charge) {
	s.control("GET", "payments", nil, &all)
	return all
}

// takings are the totals of a gateway in one currency.
type takings struct {
	Taken      string `json:"taken"`
	GivenBack  string `json:"given_back"`
	GivingBack string `json:"giving_back"`
}

// passage is an HTTP proxy between gateways and servers, in one direction. Its hooks run before a call is forwarded and
// after the answer arrived. If a hook returns false, the client's connection breaks.
type passage struct {
	*httptest.Server
	to func() (base string)

	mu            sync.Mutex
	before, after func(path string, body []byte) bool
}

func newPassage(t *testing.T, to func() string) *passage {
	p := &passage{to: to}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// hook sets the hooks; nil: none.
func (p *passage) hook(before, after func(path string, body []byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before, p.after = before, after
}

func (p *passage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	p.mu.Lock()
	before, after := p.before, p.after
	p.mu.Unlock()
	if err != nil || before != nil && !before(r.URL.Path, body) {
		panic(http.ErrAbortHandler)
	}
	out, err := http.NewRequestWithContext(r.Context(), r.Method, p.to()+r.RequestURI, bytes.NewReader(body))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	out.Header = r.Header.Clone()
	res, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil || after != nil && !after(r.URL.Path, body) {
		panic(http.ErrAbortHandler)
	}
	for name, values := range res.Header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(answer)))
	w.WriteHeader(res.StatusCode)
	_, _ = w.Write(answer)
}
