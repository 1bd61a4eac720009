package book

import (
	"fmt"
	"slices"
	"time"
)

// Act is an action of the payer, the merchant or the gateway on a payment.
type Act struct {
	Do       string   `json:"do"` // open, pay, decline, pending, second, close, finish, give_back
	Amount   string   `json:"amount,omitempty"`
	Refund   string   `json:"refund,omitempty"` // number of the refund of give_back
	Currency string   `json:"currency,omitempty"`
	Wrong    []string `json:"wrong,omitempty"`
	Force    bool     `json:"force,omitempty"` // pay although the payment is closed
	Code     string   `json:"code,omitempty"`  // failure code of a decline
}

// may maps each act to the statuses in which it is possible.
var may = map[string][]Status{
	"open":    {Unopened},
	"pay":     {Unopened, Payable, Declined, Processing},
	"decline": {Unopened, Payable, Declined, Processing},
	"pending": {Unopened, Payable, Declined},
	"close":   {Unopened, Payable, Declined},
	"second":  {Paid},
	"finish":  {Paid},
	// A refund that the merchant makes in the vendor's console, not by a call.
	"give_back": {Paid},
}

// Acts returns the acts that are possible in the present status.
func (p *Payment) Acts() []string {
	var acts []string
	for do, states := range may {
		if slices.Contains(states, p.Status) {
			acts = append(acts, do)
		}
	}
	slices.Sort(acts)
	return acts
}

// Act performs an act on a payment, and creates its notices.
func (b *Book) Act(gateway, key string, a Act) (after *Payment, err error) {
	err = b.change(func(c *changes) error {
		p, err := b.payment(c, gateway, key)
		if err != nil {
			return err
		}
		if err := b.act(c, p, a); err != nil {
			return err
		}
		after = p.clone()
		return nil
	})
	return after, err
}

func (b *Book) act(c *changes, p *Payment, a Act) error {
	states, known := may[a.Do]
	if !known {
		return fmt.Errorf("do: %q is not one of %s", a.Do, names(may))
	}
	if forced := a.Force && a.Do == "pay" && p.Status == Closed; !forced && !slices.Contains(states, p.Status) {
		return &StateError{p.Status}
	}
	switch a.Do {
	case "open":
		p.Status = Payable
	case "pay", "second":
		if err := b.pay(c, p, a); err != nil {
			return err
		}
	case "decline":
		p.Status, p.Failure = Declined, a.Code
		if p.Failure == "" {
			p.Failure = "card_declined"
		}
		b.tell(c, &Event{Kind: EventDeclined, Payment: p})
	case "pending":
		p.Status = Processing
		b.tell(c, &Event{Kind: EventProcessing, Payment: p})
	case "finish":
		p.First().FinishedAt = c.now
		b.tell(c, &Event{Kind: EventFinished, Payment: p, Transaction: p.First()})
	case "give_back":
		if err := b.giveBack(c, p, a); err != nil {
			return err
		}
	case "close":
		p.Status, p.ClosedAt, p.Script = Closed, c.now, nil
		b.tell(c, &Event{Kind: EventClosed, Payment: p})
	}
	c.payments = append(c.payments, p)
	return nil
}

// pay adds the transactions that the plan and the act define.
func (b *Book) pay(c *changes, p *Payment, a Act) error {
	plan := b.plans.of(p.Number)
	if a.Amount == "" {
		a.Amount = plan.Amount
	}
	if a.Currency == "" {
		a.Currency = plan.Currency
	}
	t := Transaction{Amount: p.Amount, Scale: p.Scale, Currency: p.Currency, At: c.now}
	for _, w := range append(slices.Clone(plan.Wrong), a.Wrong...) {
		switch w {
		case "amount":
			if t.Amount -= smallest(t.Scale); t.Amount <= 0 {
				t.Amount = p.Amount + smallest(t.Scale)
			}
		case "currency":
			if t.Currency = "USD"; p.Currency == "USD" {
				t.Currency = "EUR"
			}
			t.Scale = Decimals(t.Currency)
		case "seller":
			t.Seller = otherSeller
		case "app":
			t.App = otherApp
		case "mode":
			t.OtherMode = true
		}
	}
	if a.Currency != "" {
		t.Currency, t.Scale = a.Currency, Decimals(a.Currency)
	}
	if a.Amount != "" {
		amount, err := Parse(a.Amount, t.Scale)
		if err != nil {
			return err
		}
		t.Amount = amount
	}
	times := 1
	if plan.Second && a.Do == "pay" {
		times = 2
	}
	p.Status = Paid
	for range times {
		t.ID = b.dialects[p.Gateway].TransactionID(p)
		p.Transactions = append(p.Transactions, t)
		b.index(p)
		b.tell(c, &Event{Kind: EventPaid, Payment: p, Transaction: &t})
	}
	return nil
}

func (b *Book) giveBack(c *changes, p *Payment, a Act) error {
	t := p.First()
	amount, err := Parse(a.Amount, t.Scale)
	if err != nil {
		return err
	}
	if b.givenBack(p, t.ID, "")+amount > t.Amount {
		return ErrTooMuch
	}
	key := a.Refund
	if d, ok := b.dialects[p.Gateway].(interface {
		RefundKey(payment, refund string) string
	}); ok {
		key = d.RefundKey(p.Number, a.Refund)
	}
	if a.Refund == "" || b.refunds[id{p.Gateway, key}] != nil {
		return ErrDifferent
	}
	r := &Refund{Gateway: p.Gateway, Key: key, Number: a.Refund, ID: key, Payment: p.Key, Transaction: t.ID,
		Amount: amount,
		Scale:  t.Scale, Currency: t.Currency, NotifyURL: p.NotifyURL, CreatedAt: c.now}
	b.addRefund(r)
	b.settle(c, p, r, RefundSucceeded)
	c.refunds = append(c.refunds, r)
	return nil
}

// Ids of another merchant, in the formats of Alipay and WeChat Pay.
const (
	otherSeller = "2088999999999999"
	otherApp    = "wx0000000000000000"
)

// smallest returns the smallest difference of amounts that all vendors accept: of three decimals, some require the last
// to be 0.
func smallest(scale int) int64 {
	if scale == 3 {
		return 10
	}
	return 1
}

// tell creates the notices of an event.
func (b *Book) tell(c *changes, e *Event) {
	plan := b.plans.of(e.Payment.Number)
	e.At = c.now
	if e.Transaction != nil {
		e.GivenBack = b.givenBack(e.Payment, e.Transaction.ID, RefundSucceeded)
	}
	for _, content := range b.dialects[e.Payment.Gateway].Compose(e) {
		n := &Notice{ID: content.ID, Gateway: e.Payment.Gateway, Payment: e.Payment.Key, Number: e.Payment.Number,
			Type: content.Type, URL: content.URL, Content: encode(content.Body), MadeAt: c.now,
			Due: c.now.Add(time.Duration(plan.Late)), Held: plan.Hold != 0, Copies: plan.Copies, Repeats: plan.Repeats,
			Never: plan.Callback == "never"}
		for _, f := range plan.Forge {
			n.Forge = append(n.Forge, Forgery(f))
		}
		b.addNotice(n)
		c.notices = append(c.notices, n)
	}
	if plan.Hold > 0 {
		if waiting := b.held(e.Payment.Number); len(waiting) >= plan.Hold {
			b.release(c, waiting, "reverse")
		}
	}
}

// perform runs the payer's script, if there is one.
func (b *Book) perform(p *Payment) {
	if len(p.Script) == 0 {
		return
	}
	wait, left, gateway, key := time.Until(p.NextAt), len(p.Script), p.Gateway, p.Key
	b.running.Go(func() {
		if b.sleep(wait) {
			b.step(gateway, key, left, false)
		}
	})
}

const anyLeft = -1

// step performs the next act of the script if exactly left acts remain, so that of two goroutines with the same script
// one performs each act. It reports whether it performed one.
func (b *Book) step(gateway, key string, left int, quietly bool) (done bool) {
	_ = b.change(func(c *changes) error {
		p, err := b.payment(c, gateway, key)
		if err != nil || len(p.Script) == 0 || (left != anyLeft && len(p.Script) != left) {
			return err
		}
		done, c.quietly = true, quietly
		act := p.Script[0]
		p.Script, p.NextAt = p.Script[1:], c.now.Add(time.Duration(b.plans.of(p.Number).After))
		if err := b.act(c, p, Act{Do: act}); err != nil {
			p.Script = nil // the payment was paid or closed meanwhile
			c.payments = append(c.payments, p)
		}
		return nil
	})
	return done
}
