package book

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Refund creates a refund, or returns the existing one with its key. once is as for Create. instant: refunds of this
// vendor usually succeed at once.
func (b *Book) Refund(r Refund, once string, instant bool) (made *Refund, existed bool, err error) {
	err = b.change(func(c *changes) error {
		old := b.refunds[id{r.Gateway, r.Key}]
		if first, ok := b.once[id{r.Gateway, once}].(*Refund); ok && once != "" {
			old = first
		}
		if old != nil {
			made, existed = old.clone(), true
			if old.Amount != r.Amount || old.Transaction != r.Transaction {
				return ErrDifferent
			}
			return nil
		}
		p, err := b.payment(c, r.Gateway, r.Payment)
		if err != nil {
			return err
		}
		t := p.Transaction(r.Transaction)
		if t == nil || !t.FinishedAt.IsZero() {
			return &StateError{p.Status}
		}
		if b.givenBack(p, t.ID, "")+r.Amount > t.Amount {
			return ErrTooMuch
		}
		plan := b.plans.of(p.Number)
		if plan.Refund == "refuse" {
			return ErrRefused
		}
		n := &r
		n.CreatedAt, n.Status, n.Scale, n.Currency = c.now, RefundProcessing, t.Scale, t.Currency
		if once != "" {
			n.Details = with(n.Details, onceDetail, once)
			b.once[id{n.Gateway, once}] = n
		}
		b.addRefund(n)
		c.refunds = append(c.refunds, n)
		c.quietly = plan.BeforeAnswer
		n.NextAt = c.now.Add(time.Duration(plan.After))
		first := RefundProcessing
		n.Script = slices.Clone(refunds[plan.Refund])
		if plan.Refund == "" {
			n.Script = []RefundStatus{RefundSucceeded}
		}
		if instant || n.Script[0] == RefundProcessing {
			first, n.Script = n.Script[0], n.Script[1:]
		}
		b.settle(c, p, n, first)
		made = n.clone()
		return nil
	})
	return made, existed, err
}

// PlayRefund is Play for a refund.
func (b *Book) PlayRefund(ctx context.Context, r *Refund) *Refund {
	b.mu.Lock()
	p := b.payments[id{r.Gateway, r.Payment}]
	before := p != nil && b.plans.of(p.Number).BeforeAnswer
	b.mu.Unlock()
	if !before {
		return r
	}
	for b.stepRefund(r.Gateway, r.Key, anyLeft, true) {
	}
	b.attempted(ctx, r.Gateway, r.Payment)
	if now, err := b.FindRefund(r.Gateway, r.Key); err == nil {
		return now
	}
	return r
}

// FindRefund returns a refund by its key.
func (b *Book) FindRefund(gateway, key string) (*Refund, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.refunds[id{gateway, key}]
	if r == nil {
		return nil, fmt.Errorf("refund %s/%s: %w", gateway, key, ErrNotFound)
	}
	return r.clone(), nil
}

// Refunds returns the refunds of a payment, in order.
func (b *Book) Refunds(gateway, payment string) []*Refund {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*Refund
	for _, r := range b.ofTrade[id{gateway, payment}] {
		all = append(all, r.clone())
	}
	return all
}

// GivenBack returns the sum of a transaction's succeeded refunds.
func (b *Book) GivenBack(p *Payment, transaction string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.givenBack(p, transaction, RefundSucceeded)
}

// givenBack returns the sum of the refunds with a status; empty: all that have not failed.
func (b *Book) givenBack(p *Payment, transaction string, s RefundStatus) (total int64) {
	for _, r := range b.ofTrade[id{p.Gateway, p.Key}] {
		if r.Transaction == transaction && (r.Status == s || (s == "" && r.holds())) {
			total += r.Amount
		}
	}
	return total
}

// SettleRefund sets the status of a refund, and creates the notices.
func (b *Book) SettleRefund(gateway, key string, s RefundStatus) (after *Refund, err error) {
	err = b.change(func(c *changes) error {
		r := b.refunds[id{gateway, key}]
		if r == nil {
			return fmt.Errorf("refund %s/%s: %w", gateway, key, ErrNotFound)
		}
		p, err := b.payment(c, r.Gateway, r.Payment)
		if err != nil {
			return err
		}
		if t := p.Transaction(r.Transaction); !r.holds() && s != RefundFailed &&
			b.givenBack(p, r.Transaction, "")+r.Amount > t.Amount {
			return ErrTooMuch
		}
		r.Script = nil
		b.settle(c, p, r, s)
		c.refunds = append(c.refunds, r)
		after = r.clone()
		return nil
	})
	return after, err
}

func (b *Book) settle(c *changes, p *Payment, r *Refund, s RefundStatus) {
	r.Status, r.EndedAt, r.Code = s, c.now, ""
	switch s {
	case RefundProcessing:
		r.EndedAt = time.Time{}
	case RefundFailed:
		r.Code = "expired_or_canceled_card"
	case RefundSucceeded, RefundAbnormal:
	}
	b.tell(c, &Event{Kind: EventRefund, Payment: p, Transaction: p.Transaction(r.Transaction), Refund: r})
}

// proceed runs a refund's script.
func (b *Book) proceed(r *Refund) {
	if len(r.Script) == 0 {
		return
	}
	wait, left, gateway, key := time.Until(r.NextAt), len(r.Script), r.Gateway, r.Key
	b.running.Go(func() {
		if b.sleep(wait) {
			b.stepRefund(gateway, key, left, false)
		}
	})
}

func (b *Book) stepRefund(gateway, key string, left int, quietly bool) (done bool) {
	_ = b.change(func(c *changes) error {
		r := b.refunds[id{gateway, key}]
		if r == nil || len(r.Script) == 0 || (left != anyLeft && len(r.Script) != left) {
			return nil
		}
		p, err := b.payment(c, r.Gateway, r.Payment)
		if err != nil {
			return err
		}
		done, c.quietly = true, quietly
		next := r.Script[0]
		r.Script, r.NextAt = r.Script[1:], c.now.Add(time.Duration(b.plans.of(p.Number).After))
		b.settle(c, p, r, next)
		c.refunds = append(c.refunds, r)
		return nil
	})
	return done
}
