package provider

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Limits of the circuit breaker.
const (
	// openAfter consecutive failures open the breaker.
	openAfter = 5
	// minOpen is how long the breaker first stays open, with a jitter of 20 %. If the provider does not answer, or is
	// down, the time doubles up to maxOpen.
	minOpen = time.Second
	maxOpen = time.Minute
)

// breaker is a circuit breaker of one provider account. While it is open no attempt is made. Then one attempt probes,
// and its outcome closes the breaker or keeps it open.
type breaker struct {
	mu       sync.Mutex
	failures int           // consecutive
	wait     time.Duration // how long the breaker was last opened; 0: closed
	until    time.Time     // when a probe may run
	probing  bool          // a probe is running
	now      func() time.Time
}

func newBreaker() *breaker { return &breaker{now: time.Now} }

// verdict is what the outcome of an attempt says about the provider's health.
type verdict int

const (
	nothing  verdict = iota // no information: the attempt was cancelled
	fine                    // the provider works, even if it refused the message
	failing                 // a temporary failure, of the provider or of the message
	stalling                // no answer
	down                    // the provider accepts no messages
)

// permit reports whether an attempt may be made. If so, the caller has to call record with the same probe. If not,
// retry after wait.
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
		return false, false, minOpen // wait for the running probe
	}
	b.probing = true
	return true, true, 0
}

// record records the outcome of an attempt. opened is how long the breaker opens because of it, 0 if it does not;
// closed reports that it has closed.
func (b *breaker) record(probe bool, v verdict) (opened time.Duration, closed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe {
		b.probing = false
	}
	switch {
	case v == nothing:
	case v == fine:
		if closed = b.wait > 0; closed && !probe {
			return 0, false // an attempt from before the breaker opened: only the probe closes it
		}
		b.failures, b.wait = 0, 0
	case b.wait > 0 && !probe: // the same failure, already known
	default:
		b.failures++
		if v != down && b.failures < openAfter && !probe {
			return 0, false
		}
		if v == failing {
			b.wait = minOpen
		} else {
			b.wait = min(max(minOpen, 2*b.wait), maxOpen)
		}
		opened = time.Duration(float64(b.wait) * (0.8 + 0.4*rand.Float64()))
		b.until = b.now().Add(opened)
	}
	return opened, closed
}

func (b *breaker) isOpen() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait > 0
}
