// Package dispatch makes the calls at gateways that are due: it submits payments and refunds, asks for those that are
// not decided, and closes those whose order has ended. It owns no tables.
//
// Promises: a call is leased to one worker of all processes, and its outcome is written under the fence of the lease.
// Each call has our number, so that the gateway recognizes a repeat. An unknown outcome leads to a query, never to
// another number. An answer takes effect as a callback does.
package dispatch

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// Config has the dependencies of a Dispatcher.
type Config struct {
	Queue    *payment.Queue
	Reader   *payment.Reader
	Gateways map[string]*gateway.Configured
	// Settle commits what a gateway said.
	Settle func(ctx context.Context, k payment.GatewayKey, said payment.Said, c gateway.Credential,
		requestID string) (Settled, error)
	Log *slog.Logger
}

// Settled is what has become of an answer.
type Settled struct {
	// Replaced: the payment or refund has moved, which has replaced the call that was due.
	Replaced bool
	// Payment that was submitted, as it is now; nil: not so.
	Payment *payment.View
}

// Dispatcher makes calls. It is safe for concurrent use.
type Dispatcher struct{ Config }

// New returns a dispatcher. Run starts it.
func New(c Config) *Dispatcher { return &Dispatcher{c} }

const (
	// atOnce bounds the calls of one gateway and process at a time.
	atOnce = 16
	look   = time.Second
)

// Run makes calls that are due until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	for _, g := range d.Gateways {
		work.Go(func() { d.serve(ctx, g) })
	}
}

func keyOf(g *gateway.Configured) payment.GatewayKey {
	return payment.GatewayKey{Tenant: g.Tenant, Gateway: g.Name}
}

// serve makes the calls of one gateway.
func (d *Dispatcher) serve(ctx context.Context, g *gateway.Configured) {
	free := make(chan struct{}, atOnce)
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		leased, err := d.Queue.Take(ctx, keyOf(g), max(atOnce-len(free), 1), Lease(g))
		if err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "calls at a gateway could not be leased", "gateway", g.Name, "error", err)
		}
		for _, l := range leased {
			free <- struct{}{}
			calls.Go(func() {
				defer func() { <-free }()
				// A call that has begun ends, so that its outcome is recorded.
				if _, err := d.run(context.WithoutCancel(ctx), g, l, nil); err != nil {
					d.Log.WarnContext(ctx, "a call at a gateway failed", "gateway", g.Name, "call", string(l.Kind),
						"number", l.Number, "error", err)
				}
			})
		}
		if len(leased) == atOnce {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(look):
		}
	}
}

// ErrNotConfigured: this process has no settings of the gateway for the tenant.
var ErrNotConfigured = errors.New("dispatch: the gateway is not configured")

// Gateway returns a configured gateway of a tenant, or nil.
func (d *Dispatcher) Gateway(k payment.GatewayKey) *gateway.Configured {
	if g := d.Gateways[k.Gateway]; g != nil && g.Tenant == k.Tenant {
		return g
	}
	return nil
}

// Make makes a call whose lease the caller has, about a payment, or nil if it is to be read. The gateway is configured.
// It returns the payment if that is submitted.
func (d *Dispatcher) Make(ctx context.Context, k payment.GatewayKey, l payment.Leased, v *payment.View) (*payment.View,
	error) {
	return d.run(context.WithoutCancel(ctx), d.Gateway(k), l, v)
}

// Submit makes the call that is next about a payment or refund, and reports whether it did: another worker may have it.
func (d *Dispatcher) Submit(ctx context.Context, k payment.GatewayKey, s payment.Subject, number string) (bool, error) {
	g := d.Gateway(k)
	if g == nil {
		return false, ErrNotConfigured
	}
	l, ok, err := d.Queue.TakeOne(ctx, k.Tenant, s, number, Lease(g))
	if err != nil || !ok {
		return false, err
	}
	_, err = d.run(context.WithoutCancel(ctx), g, l, nil)
	return true, err
}

// Ask asks the gateway for the state of a payment, whatever is due, and returns when the answer has taken effect.
func (d *Dispatcher) Ask(ctx context.Context, v *payment.View) error {
	g := d.Gateway(payment.GatewayKey{Tenant: v.Tenant, Gateway: v.Gateway})
	if g == nil {
		return ErrNotConfigured
	}
	if v.State.State == payment.Created {
		if made, err := d.Submit(ctx, keyOf(g), payment.OfPayment, v.OutTradeNo); err != nil || made {
			return err
		}
	}
	p, err := requestOf(g, v)
	if err != nil {
		return &gateway.CallError{Outcome: gateway.Refused, Code: "currency", Text: err.Error()}
	}
	n, err := g.Query(ctx, p)
	if errors.Is(err, gateway.ErrNoTrade) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = d.settle(ctx, g, n, nil)
	return err
}

// settle commits an answer.
func (d *Dispatcher) settle(ctx context.Context, g *gateway.Configured, n gateway.Notice,
	c gateway.Credential) (Settled, error) {
	asset, _ := g.Asset(n.Currency)
	return d.Settle(ctx, keyOf(g), payment.Said{Notice: n, Asset: asset}, c, "gateway-"+rand.Text())
}

// pauses are the times between tries, and between questions.
var pauses = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute,
	time.Hour}

func pauseAfter(attempts int) time.Duration { return pauses[min(max(attempts, 1), len(pauses))-1] }
