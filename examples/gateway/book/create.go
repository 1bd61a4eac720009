package book

import (
	"cmp"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"
)

// Create creates a payment, or returns the existing one with its key. once, if not empty, is the idempotency key of the
// request: a repeat returns the first payment, even under another payment key.
func (b *Book) Create(p Payment, once string) (made *Payment, existed bool, err error) {
	err = b.change(func(c *changes) error {
		old := b.payments[id{p.Gateway, p.Key}]
		if first, ok := b.once[id{p.Gateway, once}].(*Payment); ok && once != "" {
			old = first
		}
		if old != nil {
			if old.expire(c.now) {
				c.payments = append(c.payments, old)
			}
			made, existed = old.clone(), true
			if old.Amount != p.Amount || old.Currency != p.Currency || old.Number != p.Number {
				return ErrDifferent
			}
			return nil
		}
		n := &p
		n.CreatedAt = c.now
		if n.Status == "" {
			n.Status = Payable
		}
		if once != "" {
			n.Details = with(n.Details, onceDetail, once)
			b.once[id{n.Gateway, once}] = n
		}
		plan := b.plans.of(n.Number)
		n.Script, n.NextAt = scripts[plan.Payer], c.now.Add(time.Duration(plan.After))
		c.quietly = plan.BeforeAnswer
		b.addPayment(n)
		c.payments = append(c.payments, n)
		made = n.clone()
		return nil
	})
	return made, existed, err
}

const onceDetail = "once"

func with(m map[string]string, key, value string) map[string]string {
	all := map[string]string{key: value}
	for k, v := range m {
		all[k] = v
	}
	return all
}

// Play runs the payer's script before the API answers, if the plan has BeforeAnswer, and waits for the first attempts
// of the notices. It returns the present payment.
func (b *Book) Play(ctx context.Context, p *Payment) *Payment {
	b.mu.Lock()
	before := b.plans.of(p.Number).BeforeAnswer
	b.mu.Unlock()
	if !before {
		return p
	}
	for b.step(p.Gateway, p.Key, anyLeft, true) {
	}
	b.attempted(ctx, p.Gateway, p.Key)
	if now, err := b.Payment(p.Gateway, p.Key); err == nil {
		return now
	}
	return p
}

// attempted waits up to 5 s until each notice of a payment that is not held or lost has had an attempt.
func (b *Book) attempted(ctx context.Context, gateway, key string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b.until(ctx, 0, func() bool {
		return !slices.ContainsFunc(b.told[id{gateway, key}], func(n *Notice) bool {
			return len(n.Attempts) == 0 && !n.Held && !n.Never
		})
	})
}

func sortPayments(all []*Payment) {
	slices.SortFunc(all, func(a, b *Payment) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.Key, b.Key))
	})
}

const (
	digits = "0123456789"
	alnum  = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
)

// Digits returns n random digits.
func Digits(n int) string { return random(n, digits) }

// Alnum returns n random letters and digits.
func Alnum(n int) string { return random(n, alnum) }

func random(n int, from string) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails
	for i, c := range raw {
		raw[i] = from[int(c)%len(from)]
	}
	return string(raw)
}
