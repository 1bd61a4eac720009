package book

import (
	"maps"
	"net/http"
	"strconv"
	"time"
)

// Answer is an answer of the API.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Call is a call of the API. Its signature was verified.
type Call struct {
	Gateway, Number, Operation string
	// Effect executes the call.
	Effect func() Answer
	// Fail returns the vendor's error answer with status 429 or 500.
	Fail func(status int) Answer
	// Sign adds the vendor's signature to an answer; nil: answers have none.
	Sign func(a *Answer, f Forgery)
}

// slowness is the default delay of a slow answer.
const slowness = 3 * time.Second

// Serve answers a call, or injects its planned fault.
func (b *Book) Serve(w http.ResponseWriter, r *http.Request, c Call) {
	fault := b.fault(c)
	switch fault.Do {
	case Drop:
		panic(http.ErrAbortHandler)
	case Error:
		c.Fail(http.StatusInternalServerError).write(w)
		return
	case Busy:
		a := c.Fail(http.StatusTooManyRequests)
		w.Header().Set("Retry-After", "1")
		a.write(w)
		return
	}
	a := c.Effect()
	forgery := Honest
	switch fault.Do {
	case Lost:
		panic(http.ErrAbortHandler)
	case Hang:
		select {
		case <-r.Context().Done():
		case <-b.ctx.Done():
		}
		panic(http.ErrAbortHandler)
	case ErrorAfter:
		c.Fail(http.StatusInternalServerError).write(w)
		return
	case Slow:
		wait := time.Duration(fault.After)
		if wait == 0 {
			wait = slowness
		}
		if !b.sleep(wait) {
			panic(http.ErrAbortHandler)
		}
	case BadSign:
		forgery = Key
	case NoSign:
		forgery = None
	case ProbeSign:
		forgery = Probe
	}
	if c.Sign != nil {
		c.Sign(&a, forgery)
	}
	a.write(w)
}

func (a Answer) write(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.Header)
	if a.Status != http.StatusNoContent {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.Body)))
	}
	w.WriteHeader(a.Status)
	if a.Status != http.StatusNoContent {
		_, _ = w.Write(a.Body)
	}
}

// fault counts a call, and returns its planned fault.
func (b *Book) fault(c Call) Fault {
	b.mu.Lock()
	defer b.mu.Unlock()
	name := c.Gateway + "/" + c.Operation + "/" + c.Number
	b.counts[name]++
	api := b.plans.of(c.Number).API
	f, ok := api[c.Operation]
	if !ok {
		if f, ok = api["*"]; !ok {
			return Fault{}
		}
	}
	if b.faults[name]++; f.Times >= 0 && b.faults[name] > max(f.Times, 1) {
		return Fault{}
	}
	return f
}

// Calls returns how often each operation was called, by gateway/operation/number.
func (b *Book) Calls() map[string]int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.counts)
}

// Plans returns the plans.
func (b *Book) Plans() Plans {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.plans
	p.ByNumber = maps.Clone(p.ByNumber)
	return p
}

// SetPlans replaces the plans. Existing payments keep the scripts of their payers.
func (b *Book) SetPlans(p Plans) error {
	return b.change(func(c *changes) error {
		b.plans, c.plans = p, true
		return nil
	})
}

// SetPlan sets the plan of one number, before or after the creation of its payment.
func (b *Book) SetPlan(number string, p Plan) error {
	return b.change(func(c *changes) error {
		all := map[string]Plan{number: p}
		for n, other := range b.plans.ByNumber {
			if n != number {
				all[n] = other
			}
		}
		b.plans.ByNumber, c.plans = all, true
		return nil
	})
}

// SetCallbacks sets the base URL for notices of vendors that have it configured in their console. It survives a
// restart.
func (b *Book) SetCallbacks(address string) error {
	return b.change(func(c *changes) error {
		b.address, c.plans = address, true
		return nil
	})
}
