package book

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

var (
	ErrNotFound  = errors.New("not found")
	ErrDifferent = errors.New("the same number with other content")
	ErrTooMuch   = errors.New("more than is left of the transaction")
	ErrRefused   = errors.New("refused by plan")
)

// StateError means that the status of the payment does not allow the request.
type StateError struct{ Status Status }

func (e *StateError) Error() string { return "the payment is " + string(e.Status) }

// id names a payment, refund, notice or request of a gateway.
type id struct{ gateway, key string }

// Book is the state of all gateways. It is safe for concurrent use; its methods return copies.
type Book struct {
	ctx     context.Context
	speed   float64
	client  *http.Client
	senders chan struct{}
	running sync.WaitGroup

	mu       sync.Mutex
	journal  *journal
	dialects map[string]Dialect
	changed  chan struct{} // closed and replaced by every change

	payments map[id]*Payment
	byNumber map[id][]*Payment
	byMoney  map[id]*Payment // by transaction id, and by the gateway's number of the payment
	once     map[id]any      // *Payment or *Refund, by the idempotency key of the request that created it
	refunds  map[id]*Refund
	ofTrade  map[id][]*Refund // by payment
	notices  map[id]*Notice
	order    []*Notice
	told     map[id][]*Notice // by payment
	plans    Plans
	address  string // base URL of the merchant's callbacks, set by SetCallbacks
	fallback string // base URL if address is empty

	counts map[string]int // calls of the API, by gateway/operation/number
	faults map[string]int // matched a planned fault, by the same key

	accepted int // acknowledged forgeries of Forge
}

// Settings of a Book.
type Settings struct {
	// File is the journal; empty: the book is only in memory.
	File string
	// Speed divides the waits between the attempts of a notice.
	Speed float64
	// Callbacks is the base URL of the merchant's callbacks for vendors that have it configured in their console: the
	// gateway's name is appended.
	Callbacks string
}

// Open reads the book, and sends due notices until ctx ends.
func Open(ctx context.Context, s Settings, dialects ...Dialect) (*Book, error) {
	b := &Book{ctx: ctx, speed: max(s.Speed, 1e-3), senders: make(chan struct{}, 64), changed: make(chan struct{}),
		dialects: map[string]Dialect{}, payments: map[id]*Payment{}, byNumber: map[id][]*Payment{},
		byMoney: map[id]*Payment{}, once: map[id]any{}, refunds: map[id]*Refund{}, ofTrade: map[id][]*Refund{},
		notices: map[id]*Notice{}, told: map[id][]*Notice{}, counts: map[string]int{}, faults: map[string]int{}}
	// Vendors do not follow redirects, and each attempt may reach another server.
	b.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 30 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, d := range dialects {
		b.dialects[d.Name()] = d
	}
	if s.File != "" {
		if err := b.load(s.File); err != nil {
			return nil, err
		}
	}
	b.fallback = s.Callbacks
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.order {
		b.begin(n)
	}
	for _, p := range b.payments {
		b.perform(p)
	}
	for _, r := range b.refunds {
		b.proceed(r)
	}
	return b, nil
}

// Close waits for running goroutines and closes the journal. Call it after the end of Open's context.
func (b *Book) Close() error {
	b.running.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.journal == nil {
		return nil
	}
	return b.journal.file.Close()
}

// changes lists the objects that one change modified.
type changes struct {
	now      time.Time
	payments []*Payment
	refunds  []*Refund
	notices  []*Notice
	plans    bool
	quietly  bool // the caller plays the payer itself
}

// change runs f under the lock, and journals the modified objects before any caller sees them. Even if f returns an
// error, it must have listed all objects that it modified.
func (b *Book) change(f func(c *changes) error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &changes{now: time.Now().Truncate(time.Millisecond)}
	err := f(c)
	b.write(c)
	for _, n := range c.notices {
		b.begin(n)
	}
	if !c.quietly {
		for _, p := range c.payments {
			b.perform(p)
		}
		for _, r := range c.refunds {
			b.proceed(r)
		}
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return err
}

// until waits for a condition. It evaluates the condition under the lock, at first and then after each change and a
// pause.
func (b *Book) until(ctx context.Context, pause time.Duration, met func() bool) bool {
	for {
		b.mu.Lock()
		ok, changed := met(), b.changed
		b.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
			b.sleep(pause)
		case <-ctx.Done():
			return false
		case <-b.ctx.Done():
			return false
		}
	}
}

func (b *Book) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return b.ctx.Err() == nil
	case <-b.ctx.Done():
		return false
	}
}

func (b *Book) addPayment(p *Payment) {
	b.payments[id{p.Gateway, p.Key}] = p
	number := id{p.Gateway, p.Number}
	b.byNumber[number] = append(b.byNumber[number], p)
	b.index(p)
}

// index adds a payment to byMoney, under its own number and its transactions.
func (b *Book) index(p *Payment) {
	if p.ID != "" {
		b.byMoney[id{p.Gateway, p.ID}] = p
	}
	for i := range p.Transactions {
		b.byMoney[id{p.Gateway, p.Transactions[i].ID}] = p
	}
}

func (b *Book) addNotice(n *Notice) {
	b.notices[id{n.Gateway, n.ID}] = n
	b.order = append(b.order, n)
	payment := id{n.Gateway, n.Payment}
	b.told[payment] = append(b.told[payment], n)
}

func (b *Book) addRefund(r *Refund) {
	b.refunds[id{r.Gateway, r.Key}] = r
	trade := id{r.Gateway, r.Payment}
	b.ofTrade[trade] = append(b.ofTrade[trade], r)
}

// payment returns a payment by its key, and closes it if it has expired.
func (b *Book) payment(c *changes, gateway, key string) (*Payment, error) {
	p := b.payments[id{gateway, key}]
	if p == nil {
		return nil, fmt.Errorf("payment %s/%s: %w", gateway, key, ErrNotFound)
	}
	if p.expire(c.now) {
		c.payments = append(c.payments, p)
	}
	return p, nil
}

// Payment returns a payment by its key.
func (b *Book) Payment(gateway, key string) (found *Payment, err error) {
	err = b.change(func(c *changes) error {
		p, err := b.payment(c, gateway, key)
		if err == nil {
			found = p.clone()
		}
		return err
	})
	return found, err
}

// ByTransaction returns the payment of a transaction.
func (b *Book) ByTransaction(gateway, transaction string) (found *Payment, err error) {
	err = b.change(func(c *changes) error {
		p := b.byMoney[id{gateway, transaction}]
		if p == nil {
			return fmt.Errorf("transaction %s/%s: %w", gateway, transaction, ErrNotFound)
		}
		p, err := b.payment(c, gateway, p.Key)
		if err == nil {
			found = p.clone()
		}
		return err
	})
	return found, err
}

// Search returns payments of a gateway and a number, oldest first. An empty gateway or number means any.
func (b *Book) Search(gateway, number string) []*Payment {
	b.mu.Lock()
	defer b.mu.Unlock()
	var found []*Payment
	for _, p := range b.payments {
		if (gateway == "" || p.Gateway == gateway) && (number == "" || p.Number == number) {
			p.expire(time.Now())
			found = append(found, p.clone())
		}
	}
	sortPayments(found)
	return found
}

// Resolve returns the payment with a number or key. If several have the number, it returns the newest that is not
// closed.
func (b *Book) Resolve(gateway, number string) (*Payment, error) {
	if p, err := b.Payment(gateway, number); err == nil {
		return p, nil
	}
	all := b.Search(gateway, number)
	if number == "" || len(all) == 0 {
		return nil, fmt.Errorf("payment %s/%s: %w", gateway, number, ErrNotFound)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Status != Closed {
			return all[i], nil
		}
	}
	return all[len(all)-1], nil
}
