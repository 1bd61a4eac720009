package email

import (
	"context"
	"errors"
	"fmt"
	"net/textproto"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Sender sends e-mails through one SMTP server. It implements send.Sender.
type Sender struct {
	config     Config
	identity   *identity
	identities map[int32]*identity
	slots      chan struct{} // one per connection in use

	mu     sync.Mutex
	idle   []*conn // a stack: the last used connection is reused first
	closed bool
}

// New validates a configuration. It does not connect.
func New(config Config) (*Sender, error) {
	if err := config.complete(); err != nil {
		return nil, err
	}
	s := &Sender{config: config, identities: map[int32]*identity{}, slots: make(chan struct{}, config.Connections)}
	var err error
	if s.identity, err = config.Identity.parse(Identity{}); err != nil {
		return nil, err
	}
	for tenant, i := range config.Identities {
		if s.identities[tenant], err = i.parse(config.Identity); err != nil {
			return nil, fmt.Errorf("tenant %d: %w", tenant, err)
		}
	}
	return s, nil
}

// Send sends a message. It waits while all connections are in use.
func (s *Sender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	l, err := s.compose(m)
	if err != nil {
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "content", Text: redact(err.Error(), m)}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "busy", Text: "all connections were in use"}
	}
	reply, f := s.deliver(ctx, l)
	if f != nil {
		f.Text = redact(f.Text, m)
		return send.Receipt{}, f
	}
	return send.Receipt{ProviderMessageID: providerID(reply, l.id)}, nil
}

// deliver sends a message over an idle connection or a new one.
func (s *Sender) deliver(ctx context.Context, l *composed) (reply string, f *send.Failure) {
	for c := s.takeIdle(); ; c = nil {
		kept := c != nil
		if !kept {
			if c, f = s.dial(ctx); f != nil {
				// An attempt without time says nothing about the server.
				f.Down = f.Down && !expired(ctx)
				return "", f
			}
		}
		reply, at, err := c.send(ctx, l)
		if ctx.Err() != nil { // watch may set its deadline late, and so abort the next message
			c.close()
		}
		if err == nil {
			c.used++
			s.keep(c)
			return reply, nil
		}
		if isReply(err) && !closesConnection(err) {
			s.keep(c)
			return "", failed(at, err)
		}
		c.close()
		// The server may have closed an idle connection, which shows only now: retry on a new one.
		if kept && at < phaseEnd && !expired(ctx) {
			continue
		}
		return "", failed(at, err)
	}
}

// expired reports whether ctx has ended or its deadline has passed: a deadline of a connection may fire a moment before
// ctx ends.
func expired(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(end)
}

// closesConnection reports whether the server closes the connection with this reply.
func closesConnection(err error) bool {
	var reply *textproto.Error
	return errors.As(err, &reply) && reply.Code == 421
}

// takeIdle returns an idle connection, or nil.
func (s *Sender) takeIdle() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		c.expiry.Stop()
		return c
	}
	return nil
}

// keep returns a connection to the pool, or closes it if it has been used enough.
func (s *Sender) keep(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.closed {
		return
	}
	if s.closed || c.used >= s.config.PerConnection {
		go c.quit()
		return
	}
	s.idle = append(s.idle, c)
	c.expiry = time.AfterFunc(s.config.Idle, func() { s.expire(c) })
}

func (s *Sender) expire(c *conn) {
	s.mu.Lock()
	found := false
	for i := range s.idle {
		if s.idle[i] == c {
			s.idle = append(s.idle[:i], s.idle[i+1:]...)
			found = true
			break
		}
	}
	s.mu.Unlock()
	if found { // otherwise in use again
		c.quit()
	}
}

// Close closes idle connections. Others are closed after use.
func (s *Sender) Close() error {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.closed = nil, true
	s.mu.Unlock()
	for _, c := range idle {
		c.expiry.Stop()
		c.quit()
	}
	return nil
}

// Idle returns the number of idle connections.
func (s *Sender) Idle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}
