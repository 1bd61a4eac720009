// Package dispatch makes the calls at gateways that are due: it submits payments and refunds, queries those that are
// not decided, and closes those whose order has ended. It owns no tables.
//
// Promises: a call is leased to one worker of all processes, and rescheduled under the nonce of the lease. Applying an
// answer is idempotent and needs no lease. Each call has our number, so that the gateway recognizes a repeat. An
// unknown outcome leads to a query, never to another number. An answer takes effect as a callback does.
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
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Config has the dependencies of a Dispatcher.
type Config struct {
	Queue    *payment.Queue
	Reader   *payment.Reader
	Gateways map[string]*gateway.Configured
	// ApplyNotice applies a notice, and commits its effect.
	ApplyNotice func(ctx context.Context, k payment.GatewayKey, n payment.Received, c gateway.Credential,
		requestID string) (Result, error)
	// AccountExists reports whether the ledger has an account.
	AccountExists func(ctx context.Context, tenant int32, code, asset string) (bool, error)
	// KnownGateway returns a gateway as this server last read it.
	KnownGateway func(payment.GatewayKey) (payment.Gateway, bool)
	Log          *slog.Logger
}

// Result is the effect of a notice.
type Result struct {
	// Advanced means that the payment or refund has moved, which has replaced the call that was due.
	Advanced bool
	// Payment is the payment after its submission; nil: the notice did not submit it.
	Payment *payment.View
}

// Dispatcher makes calls. It is safe for concurrent use.
type Dispatcher struct {
	Config
	accounts accounts
}

// New returns a dispatcher. Run starts it.
func New(c Config) *Dispatcher { return &Dispatcher{Config: c} }

const (
	// maxConcurrent bounds the calls of one gateway and process at a time.
	maxConcurrent = 16
	pollInterval  = time.Second
	takeTimeout   = 10 * time.Second // the connection may hang
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
	ctx = pg.ForTenants(ctx, g.Tenant)
	free := make(chan struct{}, maxConcurrent)
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		select { // only this loop acquires slots, so a free slot stays free
		case free <- struct{}{}:
			<-free
		case <-ctx.Done():
			return
		}
		n := maxConcurrent - len(free)
		taking, cancel := context.WithTimeout(ctx, takeTimeout)
		leased, err := d.Queue.Take(taking, keyOf(g), n, lease(g))
		cancel()
		if err != nil && ctx.Err() == nil {
			d.Log.WarnContext(ctx, "calls at a gateway could not be leased", "gateway", g.Name, "error", err)
		}
		for _, l := range leased {
			free <- struct{}{}
			calls.Go(func() {
				defer func() { <-free }()
				_ = d.logged(ctx, g, l)
			})
		}
		if len(leased) == n {
			continue // there may be more
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pollInterval):
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

// logged runs a call, and logs its failure.
func (d *Dispatcher) logged(ctx context.Context, g *gateway.Configured, l payment.Leased) error {
	_, err := d.run(ctx, g, l, nil, requests(g))
	d.log(ctx, g, l, err)
	return err
}

func (d *Dispatcher) log(ctx context.Context, g *gateway.Configured, l payment.Leased, err error) {
	if err != nil {
		d.Log.WarnContext(ctx, "a call at a gateway failed", "gateway", g.Name, "call", string(l.Kind), "number",
			l.Number, "error", err)
	}
}

// RunLeased makes the first call about a payment or refund, whose lease the caller has (see FirstLease). The gateway is
// configured. v is the payment; nil: it is a refund. It returns the payment if the call has submitted it.
func (d *Dispatcher) RunLeased(ctx context.Context, k payment.GatewayKey, l payment.Leased,
	v *payment.View) *payment.View {
	g := d.Gateway(k)
	submitted, err := d.run(ctx, g, l, v, g.Timeout)
	d.log(ctx, g, l, err)
	return submitted
}

// DueResult is the outcome of RunDue.
type DueResult int

// Outcomes of RunDue.
const (
	NotDue  DueResult = iota // the call is due later, or there is none
	Running                  // a worker has the call
	Ran
)

// RunDue makes the next call about a payment or refund, unless a worker has it. It makes a call that is not due
// only if early is set.
func (d *Dispatcher) RunDue(ctx context.Context, k payment.GatewayKey, s payment.Subject, number string,
	early bool) (DueResult, error) {
	g := d.Gateway(k)
	if g == nil {
		return NotDue, ErrNotConfigured
	}
	l, ok, err := d.Queue.TakeOne(ctx, k.Tenant, s, number, lease(g), early)
	if err != nil {
		return NotDue, err
	}
	if ok {
		return Ran, d.logged(ctx, g, l)
	}
	running, err := d.Queue.Running(ctx, k.Tenant, s, number)
	if running {
		return Running, err
	}
	return NotDue, err
}

// Ask queries the gateway for a payment's state at once, and returns when the answer is committed.
func (d *Dispatcher) Ask(ctx context.Context, v *payment.View) error {
	g := d.Gateway(payment.GatewayKey{Tenant: v.Tenant, Gateway: v.Gateway})
	if g == nil {
		return ErrNotConfigured
	}
	if payment.IsNew(v.State.State) {
		c, err := d.RunDue(ctx, keyOf(g), payment.OfPayment, v.OutTradeNo, true)
		if err != nil || c == Ran {
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
	_, err = d.applyAnswer(ctx, g, n, nil)
	return err
}

// applyAnswer applies the answer to a call, and commits its effect.
func (d *Dispatcher) applyAnswer(ctx context.Context, g *gateway.Configured, n gateway.Notice,
	c gateway.Credential) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, recordWithin)
	defer cancel()
	asset, _ := g.Asset(n.Currency)
	return d.ApplyNotice(ctx, keyOf(g), payment.Received{Notice: n, Asset: asset}, c, "gateway-"+rand.Text())
}

// pauses are the times between attempts at a call, and between queries.
var pauses = []time.Duration{5 * time.Second, 15 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute,
	time.Hour}

func pauseAfter(attempts int) time.Duration { return pauses[min(max(attempts, 1), len(pauses))-1] }
