package book

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxAnswer is the number of bytes kept of a merchant's answer.
const maxAnswer = 200

// begin starts the sender of a notice, unless the sender runs, or the notice is held or done.
func (b *Book) begin(n *Notice) {
	if n.begun || n.Held || n.done() {
		return
	}
	n.begun = true
	b.running.Go(func() {
		for b.attempt(n) {
		}
	})
}

// attempt waits until a notice is due, sends it, and reports whether it must be sent again.
func (b *Book) attempt(n *Notice) bool {
	b.mu.Lock()
	wait, forge, behind := time.Until(n.Due), n.Forge, b.notices[id{n.Gateway, n.Behind}]
	copies := 1
	if len(n.Attempts) == 0 {
		copies += n.Copies
	}
	b.mu.Unlock()
	if !b.sleep(wait) {
		return false
	}
	if behind != nil && !b.until(b.ctx, 0, func() bool { return len(behind.Attempts) > 0 || behind.done() }) {
		return false
	}
	var results []Attempt
	for _, f := range forge {
		if a, ok := b.Send(n, f); ok {
			results = append(results, a)
		}
	}
	var mu sync.Mutex
	var sent sync.WaitGroup
	for range copies {
		sent.Go(func() {
			a, _ := b.Send(n, Honest)
			mu.Lock()
			defer mu.Unlock()
			results = append(results, a)
		})
	}
	sent.Wait()
	if b.ctx.Err() != nil {
		return false // the attempt is not recorded, as after a kill
	}
	again := false
	_ = b.change(func(c *changes) error {
		n.Forge = nil
		b.record(n, results, c.now)
		c.notices = append(c.notices, n)
		again = !n.done()
		return nil
	})
	return again
}

// record adds attempts to a notice, and sets the time of the next one.
func (b *Book) record(n *Notice, results []Attempt, now time.Time) {
	repeat := !n.AcknowledgedAt.IsZero()
	n.Attempts = append(n.Attempts, results...)
	for _, a := range results {
		if a.Forgery == Honest && a.Acknowledged && n.AcknowledgedAt.IsZero() {
			n.AcknowledgedAt = a.At
		}
	}
	if repeat {
		n.Repeats--
	}
	n.Due = now
	if !n.AcknowledgedAt.IsZero() {
		return
	}
	tries := 0
	for _, a := range n.Attempts {
		if a.Forgery == Honest {
			tries++
		}
	}
	schedule := b.dialects[n.Gateway].Schedule()
	if at := tries - n.Copies - 1; at < len(schedule) {
		n.Due = now.Add(time.Duration(float64(schedule[max(at, 0)]) / b.speed))
		return
	}
	n.GaveUp = true
}

// Send makes one request with a notice. It returns false if notices of the vendor cannot be forged by f.
func (b *Book) Send(n *Notice, f Forgery) (Attempt, bool) {
	d := b.dialects[n.Gateway]
	b.mu.Lock()
	n, address := n.clone(), n.URL
	if base := cmp.Or(b.address, b.fallback); address == "" && base != "" {
		address = strings.TrimSuffix(base, "/") + "/" + n.Gateway
	}
	b.mu.Unlock()
	a := Attempt{At: time.Now().Truncate(time.Millisecond), Forgery: f}
	if address == "" {
		a.Answer = "no URL for notices is configured"
		return a, true
	}
	r := d.Request(n, address, a.At, f)
	if r == nil {
		return a, false
	}
	b.senders <- struct{}{}
	defer func() { <-b.senders }()
	ctx, cancel := context.WithTimeout(b.ctx, d.Patience())
	defer cancel()
	answer, err := b.client.Do(r.WithContext(ctx))
	if err != nil {
		a.Answer = err.Error()
		return a, true
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	a.Status, a.Answer = answer.StatusCode, string(body[:min(len(body), maxAnswer)])
	a.Acknowledged = err == nil && d.Acknowledged(answer.StatusCode, body)
	return a, true
}

// Forge sends the last notice of a payment again, forged or (Honest) unchanged, and waits for the answer. For a payment
// without notices it forges a notice that the payment was paid.
func (b *Book) Forge(gateway, key string, f Forgery) (Attempt, error) {
	b.mu.Lock()
	p := b.payments[id{gateway, key}]
	if p == nil {
		b.mu.Unlock()
		return Attempt{}, fmt.Errorf("payment %s/%s: %w", gateway, key, ErrNotFound)
	}
	var n *Notice
	if told := b.told[id{gateway, key}]; len(told) > 0 {
		n = told[len(told)-1]
	}
	if n == nil {
		d := b.dialects[gateway]
		t := Transaction{ID: d.TransactionID(p), Amount: p.Amount, Scale: p.Scale, Currency: p.Currency, At: time.Now()}
		lie := p.clone()
		lie.Status, lie.Transactions = Paid, []Transaction{t}
		for _, content := range d.Compose(&Event{Kind: EventPaid, Payment: lie, Transaction: &t, At: t.At}) {
			n = &Notice{ID: content.ID, Gateway: gateway, Payment: key, Number: p.Number, Type: content.Type,
				URL: content.URL, Content: encode(content.Body)}
		}
		if f == Honest {
			b.mu.Unlock()
			return Attempt{}, fmt.Errorf("notice of payment %s/%s: %w", gateway, key, ErrNotFound)
		}
	}
	b.mu.Unlock()
	a, ok := b.Send(n, f)
	if !ok {
		return a, fmt.Errorf("%s: notices of this vendor cannot be forged by %q", gateway, f)
	}
	err := b.change(func(c *changes) error {
		if f != Honest && a.Acknowledged {
			b.accepted++
		}
		if b.notices[id{gateway, n.ID}] == n {
			n.Attempts = append(n.Attempts, a)
			c.notices = append(c.notices, n)
		}
		return nil
	})
	return a, err
}

// held returns the held notices of a number, or all, in order of creation.
func (b *Book) held(number string) []*Notice {
	var all []*Notice
	for _, n := range b.order {
		if n.Held && (number == "" || n.Number == number) {
			all = append(all, n)
		}
	}
	return all
}

// Release sends the held notices of a number, or all, one after another: oldest first or, if order is "reverse", newest
// first.
func (b *Book) Release(number, order string) (released int, err error) {
	err = b.change(func(c *changes) error {
		waiting := b.held(number)
		b.release(c, waiting, order)
		released = len(waiting)
		return nil
	})
	return released, err
}

func (b *Book) release(c *changes, waiting []*Notice, order string) {
	if order == "reverse" {
		slices.Reverse(waiting)
	}
	behind := ""
	for _, n := range waiting {
		n.Held, n.Due, n.Behind = false, c.now, behind
		behind = n.ID
		c.notices = append(c.notices, n)
	}
}

// Notices returns the notices of a number, or all, in order of creation.
func (b *Book) Notices(number string) []*Notice {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := []*Notice{}
	for _, n := range b.order {
		if number == "" || n.Number == number {
			all = append(all, n.clone())
		}
	}
	return all
}

// Quiet waits until all scripts of payers and refunds have ended, and every notice is acknowledged, given up, lost or
// held.
func (b *Book) Quiet(ctx context.Context) bool {
	return b.until(ctx, 5*time.Millisecond, func() bool {
		for _, p := range b.payments {
			if len(p.Script) > 0 {
				return false
			}
		}
		for _, r := range b.refunds {
			if len(r.Script) > 0 {
				return false
			}
		}
		return !slices.ContainsFunc(b.order, func(n *Notice) bool { return !n.Held && !n.done() })
	})
}
