package emailtest

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Options configures a server.
type Options struct {
	TLS  bool     // offer STARTTLS
	Only bool     // implicit TLS
	Auth []string // mechanisms offered: PLAIN, LOGIN, SCRAM-SHA-256, XOAUTH2. Empty: no login required
	// Serial disables PIPELINING, ASCII disables SMTPUTF8.
	Serial, ASCII bool
	// Largest is the SIZE limit; 0: none.
	Largest int64
	// Once acknowledges a repeated Message-ID without accepting the message again.
	Once bool
}

// The only valid login.
const (
	User     = "mailer@shop.example"
	Password = "pencil and paper"
)

// Phases for Do.
const (
	Connect = "connect"
	Login   = "login"
	Mail    = "mail"
	Rcpt    = "rcpt"
	Body    = "body"  // part of the message was read
	End     = "end"   // the terminating dot was read; the message is not accepted yet
	Taken   = "taken" // the message is accepted, the client has no reply yet
)

// Message is an accepted message.
type Message struct {
	From string `json:"from"`
	To   string `json:"to"`
	UTF8 bool   `json:"utf8"` // the client used SMTPUTF8
	TLS  bool   `json:"tls"`
	User string `json:"user"`
	Conn int    `json:"conn"` // number of the connection, from 1
	Text []byte `json:"text"`
}

// Server is a running SMTP server.
type Server struct {
	Host  string
	Port  int
	Roots *x509.CertPool // trusts its certificate for 127.0.0.1 and mail.shop.example

	t       testing.TB
	dir     string
	options Options
	process *exec.Cmd
	stdin   io.WriteCloser
	ended   chan struct{}

	mu     sync.Mutex
	events []string
	news   chan struct{} // closed at every event
}

// Start starts a server, which is killed at the end of the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), options: o, Host: "127.0.0.1"}
	s.certify()
	s.start(0)
	t.Cleanup(s.Kill)
	return s
}

// Restart restarts a server at the same address with the messages accepted before.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.start(s.Port)
}

func (s *Server) start(port int) {
	s.t.Helper()
	options, err := json.Marshal(s.options)
	if err != nil {
		s.t.Fatal(err)
	}
	s.process = exec.Command(os.Args[0])
	s.process.Env = append(os.Environ(), variable+"="+string(options), variable+"_DIR="+s.dir,
		fmt.Sprintf("%s_PORT=%d", variable, port))
	s.process.Stderr = os.Stderr
	if s.stdin, err = s.process.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	stdout, err := s.process.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.events, s.news = nil, make(chan struct{})
	s.mu.Unlock()
	s.ended = make(chan struct{})
	go s.listen(stdout, s.process, s.ended)
	address := strings.TrimPrefix(s.Wait("listening "), "listening ")
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &s.Port); err != nil {
		s.t.Fatalf("%s: %v", address, err)
	}
}

func (s *Server) listen(stdout io.Reader, process *exec.Cmd, ended chan struct{}) {
	defer close(ended)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		s.mu.Lock()
		s.events = append(s.events, lines.Text())
		close(s.news)
		s.news = make(chan struct{})
		s.mu.Unlock()
	}
	_ = process.Wait()
}

// Kill kills the process with SIGKILL.
func (s *Server) Kill() {
	_ = s.process.Process.Kill()
	<-s.ended
}

// Do sets the behaviour in a phase: "" for normal; a reply such as "451 4.3.0 later"; "reset" or "close" of the
// connection; "stall" for ever; or a delay, "slow 100ms".
func (s *Server) Do(phase, what string) {
	s.t.Helper()
	s.mu.Lock()
	n := s.count("ok")
	s.mu.Unlock()
	if _, err := fmt.Fprintf(s.stdin, "%s %s\n", phase, what); err != nil {
		s.t.Fatal(err)
	}
	s.waitFor(func() bool { return s.count("ok") > n })
}

// Wait waits for an event that begins with text, and returns it: "listening", "connection N", a phase, or "gone" when a
// client has disconnected.
func (s *Server) Wait(text string) string {
	s.t.Helper()
	found := ""
	s.waitFor(func() bool {
		for _, e := range s.events {
			if strings.HasPrefix(e, text) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// Count returns the number of events so far that begin with text.
func (s *Server) Count(text string) int {
	s.t.Helper()
	select {
	case <-s.ended:
	default:
		s.Do("now", "") // once this is acknowledged, all earlier events have arrived
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count(text)
}

func (s *Server) count(text string) int {
	n := 0
	for _, e := range s.events {
		if strings.HasPrefix(e, text) {
			n++
		}
	}
	return n
}

func (s *Server) waitFor(found func() bool) {
	s.t.Helper()
	late := time.After(20 * time.Second)
	for {
		s.mu.Lock()
		ok, news := found(), s.news
		s.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-news:
		case <-late:
			s.t.Fatal("timeout: the SMTP server did not report the event")
		}
	}
}

// Messages returns all accepted messages, across restarts.
func (s *Server) Messages() []Message {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "messages"))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	var all []Message
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // killed during the write: not accepted
		}
		var m Message
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// RootsFile returns the path of the server's certificate, which clients have to trust.
func (s *Server) RootsFile() string { return filepath.Join(s.dir, "cert.pem") }

func (s *Server) certify() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail.shop.example"},
		DNSNames: []string{"mail.shop.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		s.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		s.t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, text := range map[string][]byte{
		"cert.pem": cert, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), text, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	s.Roots = x509.NewCertPool()
	s.Roots.AppendCertsFromPEM(cert)
}
