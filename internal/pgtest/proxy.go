package pgtest

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Proxy is a TCP proxy between a pool and Postgres that injects failures.
type Proxy struct {
	// DSN logs in through the proxy.
	DSN string

	listener net.Listener

	mu               sync.Mutex
	network, address string
	down             bool
	conns            map[net.Conn]Direction // by the side that is read from
	holes            map[net.Conn]bool      // bytes and the end from these are read and dropped
	accepted         int

	tapMu sync.Mutex
	taps  [2]Tap
}

// Direction is the direction of bytes through a proxy.
type Direction int

// Requests go to Postgres, Answers to its client.
const (
	Requests Direction = iota
	Answers
)

// Tap sees the bytes of a connection in one direction, after its startup message. It returns how many of them
// to forward, and whether to cut the connection after them. It may call SetDown.
type Tap func(conn int, data []byte) (pass int, cut bool)

// NewProxy forwards to the server and database of a DSN until the test ends.
func NewProxy(t testing.TB, dsn string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newProxy(t, dsn, listener)
}

func newProxy(t testing.TB, dsn string, listener net.Listener) *Proxy {
	t.Helper()
	p := &Proxy{listener: listener, conns: map[net.Conn]Direction{}}
	c := p.Lead(t, dsn)
	t.Cleanup(func() {
		p.listener.Close()
		p.SetDown(true)
	})
	u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: p.listener.Addr().String(),
		Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	p.DSN = u.String()
	go p.serve()
	return p
}

// Lead redirects new connections to another server, which needs a database of the same name.
func (p *Proxy) Lead(t testing.TB, dsn string) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.network, p.address = pgconn.NetworkAddress(c.Host, c.Port)
	return c
}

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.connect(client)
	}
}

// connect copies both ways. It drops cancel requests, like a broken network.
func (p *Proxy) connect(client net.Conn) {
	defer client.Close()
	startup, err := readStartup(client)
	const cancelRequest = 80877102
	if err != nil || binary.BigEndian.Uint32(startup[4:]) == cancelRequest {
		return
	}
	p.mu.Lock()
	network, address, down := p.network, p.address, p.down
	p.mu.Unlock()
	if down {
		return
	}
	server, err := new(net.Dialer).DialContext(context.Background(), network, address)
	if err != nil {
		return
	}
	defer server.Close()
	n, up := p.keep(client, server)
	if !up {
		return
	}
	defer p.drop(client, server)
	if _, err := server.Write(startup); err != nil {
		return
	}
	var answers sync.WaitGroup
	defer answers.Wait()
	answers.Go(func() { p.pump(client, server, n, Answers) })
	p.pump(server, client, n, Requests)
}

// readStartup reads the startup message, the only one without a type byte.
func readStartup(from io.Reader) ([]byte, error) {
	const most = 10_000 // as in Postgres
	message := make([]byte, 8)
	if _, err := io.ReadFull(from, message); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(message)
	if length < 8 || length > most {
		return nil, io.ErrUnexpectedEOF
	}
	message = append(message, make([]byte, length-8)...)
	_, err := io.ReadFull(from, message[8:])
	return message, err
}

// pump copies until either side closes, and then closes the other side, unless from is silenced.
func (p *Proxy) pump(to, from net.Conn, conn int, d Direction) {
	data := make([]byte, 64<<10)
	for {
		n, err := from.Read(data)
		if err != nil {
			if !p.isHole(from) {
				to.Close()
			}
			return
		}
		pass, cut := p.tap(conn, d, data[:n])
		if !p.isHole(from) {
			_, _ = to.Write(data[:pass]) // the other direction's pump notices a closed connection
		}
		if cut {
			from.Close()
			to.Close()
			return
		}
	}
}

func (p *Proxy) isHole(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holes[c]
}

func (p *Proxy) tap(conn int, d Direction, data []byte) (pass int, cut bool) {
	p.tapMu.Lock()
	defer p.tapMu.Unlock()
	if p.taps[d] == nil {
		return len(data), false
	}
	return p.taps[d](conn, data)
}

// Tap sets or (nil) removes the tap of a direction. A proxy runs one tap at a time.
func (p *Proxy) Tap(d Direction, tap Tap) {
	p.tapMu.Lock()
	defer p.tapMu.Unlock()
	p.taps[d] = tap
}

// IsDown reports whether new connections are refused.
func (p *Proxy) IsDown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

func (p *Proxy) keep(client, server net.Conn) (n int, up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[client], p.conns[server] = Requests, Answers
	p.accepted++
	return p.accepted, !p.down
}

func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
		delete(p.holes, c)
	}
}

// SetDown closes all connections and, while down is set, refuses new ones.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for c := range p.conns {
		c.Close()
	}
}

// Silence makes the current connections drop all data in the given directions, and the closing of a connection.
func (p *Proxy) Silence(directions ...Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holes = map[net.Conn]bool{}
	for c, d := range p.conns {
		for _, of := range directions {
			p.holes[c] = p.holes[c] || d == of
		}
	}
}
