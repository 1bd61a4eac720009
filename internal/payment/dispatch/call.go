package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// run makes a leased call, applies the answer, and reschedules the call unless the answer has replaced it. v is the
// payment; nil: run loads it. limit bounds the requests. It returns the payment if the call has submitted it.
func (d *Dispatcher) run(ctx context.Context, g *gateway.Configured, l payment.Leased, v *payment.View,
	limit time.Duration) (*payment.View, error) {
	ctx = context.WithoutCancel(ctx) // complete a call that has begun, so that its outcome is recorded
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if l.Kind == payment.Query && l.Subject == payment.OfPayment {
		applied, err := d.applyWaiting(ctx, g, l)
		if applied || err != nil {
			return nil, errors.Join(err, d.reschedule(ctx, l, l.Kind, pauseAfter(l.Attempts), "", ""))
		}
	}
	n, c, err := d.call(limited, g, l, v)
	if err == nil {
		s, err := d.applyAnswer(ctx, g, n, c)
		switch {
		case err != nil:
			return nil, errors.Join(err,
				d.reschedule(ctx, l, l.Kind, pauseAfter(l.Attempts), "not_recorded", err.Error()))
		case s.Advanced && l.Kind != payment.Close: // a close stays due until the payment has ended
			return s.Payment, nil
		}
		return nil, d.reschedule(ctx, l, again(l.Kind), pauseAfter(l.Attempts), "", "")
	}
	var failed *gateway.CallError
	if !errors.As(err, &failed) {
		failed = &gateway.CallError{Outcome: gateway.Unknown, Code: "error", Text: err.Error()}
	}
	next := l.Kind
	if failed.Outcome == gateway.Unknown && l.Kind == payment.Submit {
		next = payment.Query
	}
	wait := max(pauseAfter(l.Attempts), failed.RetryAfter)
	return nil, errors.Join(err, d.reschedule(ctx, l, next, wait, failed.Code, failed.Text))
}

// applyWaiting applies the notices that came before their payment was created, and reports whether there were any. The
// gateway may not repeat them, and its answers to queries may lag behind.
func (d *Dispatcher) applyWaiting(ctx context.Context, g *gateway.Configured, l payment.Leased) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, recordWithin)
	defer cancel()
	waiting, requests, err := d.Reader.Waiting(ctx, payment.Key{Tenant: g.Tenant, OutTradeNo: l.Number})
	for i, s := range waiting {
		from := payment.GatewayKey{Tenant: g.Tenant, Gateway: s.Gateway}
		if _, err := d.ApplyNotice(ctx, from, s.Received, nil, requests[i]); err != nil {
			return false, err
		}
	}
	return len(waiting) > 0, err
}

// reschedule schedules a call again, under the nonce of its lease.
func (d *Dispatcher) reschedule(ctx context.Context, l payment.Leased, kind payment.CallKind, wait time.Duration,
	code, text string) error {
	ctx, cancel := context.WithTimeout(ctx, recordWithin)
	defer cancel()
	return d.Queue.Again(ctx, l, kind, wait, code, text)
}

// again returns the kind of the next call, after a call whose answer decided nothing.
func again(k payment.CallKind) payment.CallKind {
	if k == payment.Submit {
		return payment.Query
	}
	return k
}

// call makes a call, and returns the gateway's answer.
func (d *Dispatcher) call(ctx context.Context, g *gateway.Configured, l payment.Leased, v *payment.View) (
	gateway.Notice, gateway.Credential, error) {
	if l.Subject == payment.OfRefund {
		n, err := d.refund(ctx, g, l)
		return n, nil, err
	}
	if v == nil {
		found, err := d.Reader.Payment(ctx, payment.Key{Tenant: g.Tenant, OutTradeNo: l.Number})
		if err != nil {
			return gateway.Notice{}, nil, err
		}
		v = &found
	}
	p, err := requestOf(g, v)
	if err != nil && (!payment.IsNew(v.State.State) || l.Kind != payment.Submit) {
		// Not a refusal: the gateway may know the payment from before a change of the settings.
		return gateway.Notice{}, nil, &gateway.CallError{Outcome: gateway.NotSent, Code: "currency", Text: err.Error()}
	}
	if err != nil {
		return refusedPayment(l.Number, &gateway.CallError{Code: "currency", Text: err.Error()}), nil, nil
	}
	switch l.Kind {
	case payment.Close:
		n, err := g.Close(ctx, p)
		if errors.Is(err, gateway.ErrNoTrade) { // nothing was submitted, or the payer never went there
			return gateway.Notice{ID: "close/none/" + l.Number, Kind: gateway.Closed, OutTradeNo: l.Number}, nil, nil
		}
		return n, nil, err
	case payment.Query:
		n, err := g.Query(ctx, p)
		if err == nil && n.Kind == gateway.Pending && v.Credential == nil {
			// The answer to Create was lost, and the payer needs the credential: create again, with the transaction id,
			// because the gateway may no longer recognize our number.
			p.TransactionID = cmp.Or(n.TransactionID, p.TransactionID)
			break
		}
		if !errors.Is(err, gateway.ErrNoTrade) {
			return n, nil, err
		}
		if !payment.IsNew(v.State.State) {
			return n, nil, &gateway.CallError{Outcome: gateway.NotSent, Code: "no_trade",
				Text: "the payer has not gone to the gateway yet"}
		}
	}
	if l.Kind == payment.Submit {
		err = d.checkAccounts(ctx, &v.Payment)
	}
	var c gateway.Credential
	var n gateway.Notice
	if err == nil {
		c, n, err = g.Create(ctx, p)
	}
	if failed := refusal(err); failed != nil {
		return refusedPayment(l.Number, failed), nil, nil
	}
	return n, c, err
}

// refusal returns the error of a call that the gateway refuses for good, or nil.
func refusal(err error) *gateway.CallError {
	var failed *gateway.CallError
	if errors.As(err, &failed) && failed.Outcome == gateway.Refused {
		return failed
	}
	return nil
}

// refusedPayment returns the notice that closes a payment, because the gateway refused to create it.
func refusedPayment(number string, e *gateway.CallError) gateway.Notice {
	return gateway.Notice{ID: "refused/payment/" + number, Kind: gateway.Closed, OutTradeNo: number, Code: e.Code,
		Text: e.Text}
}

// requestOf describes a payment for its gateway.
func requestOf(g *gateway.Configured, v *payment.View) (*gateway.Payment, error) {
	currency, ok := g.Currency(v.Asset)
	if !ok {
		return nil, fmt.Errorf("gateway %s takes no currency for asset %s", g.Name, v.Asset)
	}
	p := Describe(&v.Payment)
	p.Currency = currency
	return p, nil
}

// Describe describes a payment, without its currency.
func Describe(p *payment.Payment) *gateway.Payment {
	description := p.Description
	if description == "" {
		description = p.OrderNo
	}
	return &gateway.Payment{OutTradeNo: p.OutTradeNo, TransactionID: p.TransactionID, PayType: p.PayType,
		Amount: p.Due(), Description: description, Payer: p.Payer, PayerIP: p.PayerIP, ReturnURL: p.ReturnURL,
		ExpiresAt: p.ExpiresAt}
}

// Check checks a payment by the rules of its gateway. Returns fault FIELD_INVALID.
func Check(g *gateway.Configured, p *payment.Payment) error {
	currency, ok := g.Currency(p.Asset)
	if !ok {
		return fault.InvalidField("gateway", "does not take the asset of the order")
	}
	r := Describe(p)
	r.Currency = currency
	if g.Dialect.Check == nil {
		return nil
	}
	if err := g.Dialect.Check(r); err != nil {
		return invalid(err)
	}
	return nil
}

// refund makes a call about a refund.
func (d *Dispatcher) refund(ctx context.Context, g *gateway.Configured, l payment.Leased) (gateway.Notice, error) {
	v, err := d.Reader.Refund(ctx, payment.RefundKey{Tenant: g.Tenant, RefundNo: l.Number})
	if err != nil {
		return gateway.Notice{}, err
	}
	paid, err := d.Reader.Paid(ctx, v.Transaction())
	if err != nil {
		return gateway.Notice{}, err
	}
	r := &gateway.Refund{RefundNo: v.RefundNo, GatewayRefundID: v.GatewayRefundID, OutTradeNo: v.OutTradeNo,
		TransactionID: v.TransactionID, Amount: v.Given(), Paid: paid, Currency: v.Currency, Reason: v.Reason}
	if l.Kind == payment.Query {
		n, err := g.QueryRefund(ctx, r)
		if !errors.Is(err, gateway.ErrNoTrade) {
			return about(n, &v), err
		}
	}
	n, err := g.Refund(ctx, r)
	if failed := refusal(err); failed != nil {
		n, err = refused(ctx, g, r, failed)
	}
	return about(n, &v), err
}

// refused queries a refund that the gateway has refused, since the gateway may have made a refund with other content
// under the number. If it has not, the refund has failed.
func refused(ctx context.Context, g *gateway.Configured, r *gateway.Refund, why *gateway.CallError) (
	n gateway.Notice, err error) {
	n, err = g.QueryRefund(ctx, r)
	if errors.Is(err, gateway.ErrNoTrade) || refusal(err) != nil {
		return gateway.Notice{ID: "refused/refund/" + r.RefundNo, Kind: gateway.RefundFailed, Code: why.Code,
			Text: why.Text}, nil
	}
	return n, err
}

// about sets the numbers of an answer to those of the request.
func about(n gateway.Notice, v *payment.RefundView) gateway.Notice {
	n.OutTradeNo, n.RefundNo = v.OutTradeNo, v.RefundNo
	if n.TransactionID == "" {
		n.TransactionID = v.TransactionID
	}
	return n
}

// recordWithin bounds the commit of an answer.
const recordWithin = 10 * time.Second

// requests bounds the requests of a worker's call: most calls make one, and none needs more than two that are slow.
func requests(g *gateway.Configured) time.Duration { return 2 * g.Timeout }

// lease is the lease of a worker's call: longer than the call may take.
func lease(g *gateway.Configured) time.Duration { return requests(g) + 2*recordWithin }

// FirstLease is the lease of the first call, which the creator of a payment or refund makes. It is short, so that a
// worker soon makes the call if the creator has died.
func FirstLease(g *gateway.Configured) time.Duration { return g.Timeout + 5*time.Second }
