package flow_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/payment/dispatch"
)

// bank is a gateway whose answers agree with the notices that the test delivers as its callbacks. It is safe for
// concurrent use.
type bank struct {
	gateway.Gateway // panics on callbacks: the test makes them up
	mu              sync.Mutex
	paid            map[string][]payment.Received // notices by number, oldest first
	open, closed    map[string]bool               // numbers
	refunds         map[string]gateway.Notice     // latest notice of each refund, by number
	decides         bool                          // it decides each payment and refund that it is queried about
}

func newBank() *bank {
	return &bank{paid: map[string][]payment.Received{}, open: map[string]bool{}, closed: map[string]bool{},
		refunds: map[string]gateway.Notice{}}
}

// with calls a function under the lock.
func (b *bank) with(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// answer returns the state of a payment, and closes an unpaid one first if end is set.
func (b *bank) answer(no string, end bool) (gateway.Notice, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if said := b.paid[no]; len(said) > 0 {
		n := said[len(said)-1].Notice
		n.ID = "answer/" + no + "/" + n.TransactionID
		return n, nil
	}
	if !b.open[no] && !b.closed[no] {
		return gateway.Notice{}, gateway.ErrNoTrade
	}
	b.closed[no] = b.closed[no] || end || b.decides
	if b.closed[no] {
		return gateway.Notice{ID: "closed/" + no, Kind: gateway.Closed, OutTradeNo: no}, nil
	}
	return gateway.Notice{ID: "pending/" + no, Kind: gateway.Pending, OutTradeNo: no}, nil
}

func (b *bank) Create(_ context.Context, p *gateway.Payment) (gateway.Credential, gateway.Notice, error) {
	b.with(func() { b.open[p.OutTradeNo] = true })
	return gateway.Credential{"url": "x"}, gateway.Notice{ID: "create/" + p.OutTradeNo, Kind: gateway.Pending,
		OutTradeNo: p.OutTradeNo}, nil
}

func (b *bank) Query(_ context.Context, p *gateway.Payment) (gateway.Notice, error) {
	return b.answer(p.OutTradeNo, false)
}

func (b *bank) Close(_ context.Context, p *gateway.Payment) (gateway.Notice, error) {
	return b.answer(p.OutTradeNo, true)
}

func (b *bank) Refund(_ context.Context, r *gateway.Refund) (gateway.Notice, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, ok := b.refunds[r.RefundNo]
	if !ok || b.decides && n.Kind != gateway.Refunded && n.Kind != gateway.RefundFailed {
		n = gateway.Notice{Kind: gateway.RefundPending, OutTradeNo: r.OutTradeNo, TransactionID: r.TransactionID,
			RefundNo: r.RefundNo,
			Amount:   r.Amount, Currency: r.Currency}
		if b.decides {
			n.Kind = []gateway.Kind{gateway.Refunded, gateway.RefundFailed}[len(r.RefundNo)%2]
		}
		b.refunds[r.RefundNo] = n
	}
	n.ID = fmt.Sprint("answer/", n.Kind, "/", r.RefundNo)
	return n, nil
}

func (b *bank) QueryRefund(ctx context.Context, r *gateway.Refund) (gateway.Notice, error) {
	return b.Refund(ctx, r)
}

// dispatcher makes the calls of a tenant to its banks.
func (m *market) dispatcher(tenant int32, banks map[string]*bank) *dispatch.Dispatcher {
	configured := map[string]*gateway.Configured{}
	for name, b := range banks {
		configured[name] = &gateway.Configured{Gateway: b, Name: name, Tenant: tenant, Timeout: 10 * time.Second}
	}
	return dispatch.New(dispatch.Config{Queue: &payment.Queue{Pool: m.app}, Reader: payment.NewReader(m.app),
		Gateways: configured,
		ApplyNotice: func(ctx context.Context, k payment.GatewayKey, said payment.Received, c gateway.Credential,
			r string) (dispatch.Result, error) {
			out, err := flow.CommitNotice(ctx, m.engines[1], k, said, c, r)
			return dispatch.Result{Advanced: out.Effect == payment.EffectApplied && !out.Existed,
				Payment: out.Submitted}, err
		},
		AccountExists: func(context.Context, int32, string, string) (bool, error) { return true, nil },
		KnownGateway:  m.engines[1].Gateways.Last,
		Log:           slog.New(slog.DiscardHandler)})
}
