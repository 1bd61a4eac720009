package emailtest

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/mail"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// variable is the environment variable with the server's options. It is set only in the server process.
const variable = "LEDGERD_EMAILTEST"

func init() {
	if text := os.Getenv(variable); text != "" {
		if err := serve(text); err != nil {
			fmt.Fprintln(os.Stderr, "emailtest:", err)
		}
		os.Exit(1)
	}
}

// process is the state of the server process.
type process struct {
	options Options
	dir     string

	mu    sync.Mutex
	plan  map[string]string // by phase
	taken map[string]bool   // by Message-ID
	conns int
}

func serve(text string) error {
	p := &process{dir: os.Getenv(variable + "_DIR"), plan: map[string]string{}, taken: map[string]bool{}}
	if err := json.Unmarshal([]byte(text), &p.options); err != nil {
		return err
	}
	if err := p.recall(); err != nil {
		return err
	}
	s := smtp.NewServer(smtp.BackendFunc(p.session))
	s.Domain = "mail.shop.example"
	s.EnableSMTPUTF8 = !p.options.ASCII
	s.AllowInsecureAuth = true
	s.MaxMessageBytes = p.options.Largest
	s.ErrorLog = quiet{}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(p.dir, "cert.pem"), filepath.Join(p.dir, "key.pem"))
	if err != nil {
		return err
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	l, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv(variable+"_PORT"))
	if err != nil {
		return err
	}
	if p.options.TLS {
		s.TLSConfig = config
	}
	go p.obey()
	fmt.Println("listening", l.Addr())
	listener := net.Listener(&door{l, p})
	if p.options.Only {
		listener = tls.NewListener(listener, config)
	}
	return s.Serve(listener)
}

// quiet discards errors: broken connections are expected.
type quiet struct{}

func (quiet) Printf(string, ...any) {}
func (quiet) Println(...any)        {}

// obey executes the commands of the test process until that process ends.
func (p *process) obey() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		phase, what, _ := strings.Cut(lines.Text(), " ")
		p.mu.Lock()
		p.plan[phase] = what
		p.mu.Unlock()
		fmt.Println("ok")
	}
	os.Exit(0)
}

// door is the listener. It counts connections, and applies the plan for Connect.
type door struct {
	net.Listener
	p *process
}

func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		d.p.mu.Lock()
		d.p.conns++
		fmt.Println("connection", d.p.conns)
		d.p.mu.Unlock()
		if reply := d.p.at(Connect, c); reply != nil {
			_, _ = fmt.Fprintf(c, "%d %d.%d.%d %s\r\n", reply.Code, reply.EnhancedCode[0], reply.EnhancedCode[1],
				reply.EnhancedCode[2], reply.Message)
			_ = c.Close()
			continue
		}
		if d.p.options.Serial {
			c = &serial{c}
		}
		return c, nil
	}
}

// serial removes PIPELINING from the EHLO reply.
type serial struct{ net.Conn }

func (s *serial) Write(b []byte) (int, error) {
	if _, err := s.Conn.Write(bytes.ReplaceAll(b, []byte("250-PIPELINING\r\n"), nil)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// at executes the plan of a phase. It returns a reply to send, or nil to continue.
func (p *process) at(phase string, c net.Conn) *smtp.SMTPError {
	fmt.Println(phase)
	p.mu.Lock()
	what := p.plan[phase]
	p.mu.Unlock()
	switch {
	case what == "":
	case what == "stall":
		select {}
	case what == "reset", what == "close":
		if over, ok := c.(*tls.Conn); ok {
			c = over.NetConn()
		}
		if s, ok := c.(*serial); ok {
			c = s.Conn
		}
		if what == "reset" {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
		return &smtp.SMTPError{Code: 421, Message: "connection closed"}
	case strings.HasPrefix(what, "slow "):
		if wait, err := time.ParseDuration(strings.TrimPrefix(what, "slow ")); err == nil {
			time.Sleep(wait)
		}
	default:
		reply := &smtp.SMTPError{}
		status, text, _ := strings.Cut(what, " ")
		_, _ = fmt.Sscanf(status, "%d", &reply.Code)
		if code, rest, _ := strings.Cut(text, " "); strings.Count(code, ".") == 2 {
			_, _ = fmt.Sscanf(code, "%d.%d.%d", &reply.EnhancedCode[0], &reply.EnhancedCode[1], &reply.EnhancedCode[2])
			text = rest
		}
		reply.Message = text
		return reply
	}
	return nil
}

func (p *process) session(c *smtp.Conn) (smtp.Session, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, secure := c.TLSConnectionState()
	return &session{p: p, c: c, message: Message{TLS: secure, Conn: p.conns}}, nil
}

type session struct {
	p       *process
	c       *smtp.Conn
	user    string
	message Message
}

func (s *session) Reset() {
	s.message = Message{TLS: s.message.TLS, Conn: s.message.Conn}
}

func (s *session) Logout() error {
	fmt.Println("gone")
	return nil
}

func (s *session) AuthMechanisms() []string { return s.p.options.Auth }

func (s *session) Auth(mechanism string) (sasl.Server, error) {
	if reply := s.p.at(Login, s.c.Conn()); reply != nil {
		return nil, reply
	}
	if !slices.Contains(s.p.options.Auth, mechanism) {
		return nil, smtp.ErrAuthUnknownMechanism
	}
	return newLogin(mechanism, func() { s.user = User })
}

func (s *session) Mail(from string, o *smtp.MailOptions) error {
	if reply := s.p.at(Mail, s.c.Conn()); reply != nil {
		return reply
	}
	if len(s.p.options.Auth) > 0 && s.user == "" {
		return &smtp.SMTPError{Code: 530, EnhancedCode: smtp.EnhancedCode{5, 7, 0}, Message: "log in first"}
	}
	s.message.From, s.message.UTF8, s.message.User = from, o.UTF8, s.user
	return nil
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	if reply := s.p.at(Rcpt, s.c.Conn()); reply != nil {
		return reply
	}
	s.message.To = to
	return nil
}

func (s *session) Data(r io.Reader) error {
	var text bytes.Buffer
	if _, err := io.CopyN(&text, r, 64); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if reply := s.p.at(Body, s.c.Conn()); reply != nil {
		return reply
	}
	if _, err := io.Copy(&text, r); err != nil {
		return err
	}
	if reply := s.p.at(End, s.c.Conn()); reply != nil {
		return reply
	}
	s.message.Text = text.Bytes()
	if err := s.p.take(s.message); err != nil {
		return err
	}
	if reply := s.p.at(Taken, s.c.Conn()); reply != nil {
		return reply
	}
	return &smtp.SMTPError{Code: 250, EnhancedCode: smtp.EnhancedCode{2, 0, 0}, Message: "Ok: queued as 4F2C7A1B"}
}

// take stores a message: from then on the server is responsible for it.
func (p *process) take(m Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id := messageID(m.Text); p.options.Once {
		if p.taken[id] {
			return nil
		}
		p.taken[id] = true
	}
	line, err := json.Marshal(m)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(p.dir, "messages"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// recall reads the messages accepted before a restart.
func (p *process) recall() error {
	text, err := os.ReadFile(filepath.Join(p.dir, "messages"))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for line := range bytes.Lines(text) {
		var m Message
		if err := json.Unmarshal(line, &m); err == nil {
			p.taken[messageID(m.Text)] = true
		}
	}
	return nil
}

func messageID(text []byte) string {
	m, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		return ""
	}
	return m.Header.Get("Message-ID")
}
