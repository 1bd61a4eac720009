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

// Sender sends e-mails by one server. It is a send.Sender.
type Sender struct {
	config     Config
	identity   *identity
	identities map[int32]*identity
	slots      chan struct{} // one for each connection in use

	mu     sync.Mutex
	idle   []*conn // the one used last is at the end, and is taken first
	closed bool
}

// New checks a configuration. It does not connect.
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

// Send hands a message over. It waits for a connection while all are in use.
func (s *Sender) Send(ctx context.Context, m *send.Message) (send.Receipt, error) {
	l, err := s.compose(m)
	if err != nil {
		return send.Receipt{}, &send.Failure{Outcome: send.Permanent, Code: "content", Text: private(err.Error(), m)}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return send.Receipt{}, &send.Failure{Outcome: send.Temporary, Code: "busy", Text: "all connections were in use"}
	}
	reply, f := s.deliver(ctx, l)
	if f != nil {
		f.Text = private(f.Text, m)
		return send.Receipt{}, f
	}
	return send.Receipt{ProviderMessageID: providerID(reply, l.id)}, nil
}

// deliver hands a message over by a connection that is open, or by a new one.
func (s *Sender) deliver(ctx context.Context, l *letter) (reply string, f *send.Failure) {
	for c := s.take(); ; c = nil {
		kept := c != nil
		if !kept {
			if c, f = s.dial(ctx); f != nil {
				// Whether the server takes anything cannot be told of an attempt that was given no time.
				f.Down = f.Down && !over(ctx)
				return "", f
			}
		}
		reply, at, err := c.send(ctx, l)
		if ctx.Err() != nil { // its end may be about to reach the connection, whoever has that by then
			c.close()
		}
		if err == nil {
			c.used++
			s.keep(c)
			return reply, nil
		}
		if isReply(err) && !isGone(err) {
			s.keep(c)
			return "", failed(at, err)
		}
		c.close()
		// The server may have left one that was kept, which is found out only now: a new one is tried at once.
		if kept && at < ending && !over(ctx) {
			continue
		}
		return "", failed(at, err)
	}
}

// over tells whether ctx has ended, or is about to: deadlines of connections may be a moment before.
func over(ctx context.Context) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(end)
}

// isGone: with this reply the server ends the connection.
func isGone(err error) bool {
	var reply *textproto.Error
	return errors.As(err, &reply) && reply.Code == 421
}

// take returns a connection that has nothing to do, or nil.
func (s *Sender) take() *conn {
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

// keep has a connection wait for the next message, for a while.
func (s *Sender) keep(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.gone {
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
	if found { // else somebody took it in this moment
		c.quit()
	}
}

// Close closes the connections that have nothing to do, and lets go of the others when they have done.
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

// Idle is how many connections are open that have nothing to do.
func (s *Sender) Idle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}
