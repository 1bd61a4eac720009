package provider

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Bounds of being passed over.
const (
	// openAfter so many failures without a success between them, that might be the provider's.
	openAfter = 5
	// openFirst is for how long the first time, give or take a fifth. Where it gives no answer, or takes nothing, that
	// doubles up to openMost.
	openFirst = time.Second
	openMost  = time.Minute
)

// breaker knows whether a provider is worth asking. While it is open nobody asks; then one does, and what
// becomes of that says whether all others may.
type breaker struct {
	mu       sync.Mutex
	failures int           // without a success between them
	wait     time.Duration // for how long it was opened last; 0: it is closed
	until    time.Time     // when the next one may ask
	probing  bool          // one is asking
	now      func() time.Time
}

func newBreaker() *breaker { return &breaker{now: time.Now} }

// verdict is what an attempt says of the provider.
type verdict int

const (
	nothing  verdict = iota // it says nothing: the attempt was ended by us
	fine                    // it works, whatever it thinks of the message
	failing                 // it said no for now: it may be in trouble, or it is the message
	stalling                // it did not answer
	down                    // it takes nothing
)

// permit asks whether an attempt may be made. If so, settle has to be called with the same probe after it; if
// not, it may after wait.
func (b *breaker) permit() (ok, probe bool, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == 0 {
		return true, false, 0
	}
	left := b.until.Sub(b.now())
	if left > 0 {
		return false, false, left
	}
	if b.probing {
		return false, false, openFirst // the one that asks will soon know
	}
	b.probing = true
	return true, true, 0
}

// settle tells how an attempt ended. opened is for how long the provider is passed over because of it, 0 if it
// is not; closed tells that it is asked again from now on.
func (b *breaker) settle(probe bool, v verdict) (opened time.Duration, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe {
		b.probing = false
	}
	switch {
	case v == nothing:
	case v == fine:
		if closed = b.wait > 0; closed && !probe {
			return 0, false // one that was on its way when it was opened: the probe decides
		}
		b.failures, b.wait = 0, 0
	case b.wait > 0 && !probe: // the same trouble, which is known
	default:
		b.failures++
		if v != down && b.failures < openAfter && !probe {
			return 0, false
		}
		if v == failing {
			b.wait = openFirst
		} else {
			b.wait = min(max(openFirst, 2*b.wait), openMost)
		}
		opened = time.Duration(float64(b.wait) * (0.8 + 0.4*rand.Float64()))
		b.until = b.now().Add(opened)
	}
	return opened, closed
}

// isOpen tells whether the provider is passed over at present.
func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait > 0
}
