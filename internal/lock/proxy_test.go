package lock_test

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

// proxy is a TCP proxy between a pool and Postgres that can cut its connections.
type proxy struct {
	dsn      string
	network  string
	address  string
	listener net.Listener

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

func newProxy(t *testing.T, dsn string) *proxy {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{conns: map[net.Conn]bool{}}
	p.network, p.address = pgconn.NetworkAddress(c.Host, c.Port)
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.listener.Close()
		p.setDown(true)
	})
	u := url.URL{Scheme: "postgres", User: url.UserPassword(c.User, c.Password), Host: p.listener.Addr().String(),
		Path: "/" + c.Database, RawQuery: "sslmode=disable"}
	p.dsn = u.String()
	go p.serve()
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.connect(client)
	}
}

// connect copies both ways. It drops cancel requests, like a broken network.
func (p *proxy) connect(client net.Conn) {
	defer client.Close()
	first := make([]byte, 8)
	if _, err := io.ReadFull(client, first); err != nil {
		return
	}
	const cancelRequest = 80877102
	if binary.BigEndian.Uint32(first[4:]) == cancelRequest || p.isDown() {
		return
	}
	server, err := new(net.Dialer).DialContext(context.Background(), p.network, p.address)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.keep(client, server) {
		return
	}
	defer p.drop(client, server)
	if _, err := server.Write(first); err != nil {
		return
	}
	go func() {
		defer client.Close()
		_, _ = io.Copy(client, server)
	}()
	_, _ = io.Copy(server, client)
}

func (p *proxy) isDown() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
	}
	return !p.down
}

func (p *proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// setDown closes all connections and, while down is set, refuses new ones.
func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	for c := range p.conns {
		c.Close()
	}
}
