package ids

import "time"

// Ticks tells how much time has passed since a moment of its own choice. It should not jump; if it does, ids
// wait, or tell a wrong time, and are unique all the same.
type Ticks func() time.Duration

// monotonic ticks as Go's monotonic clock does, which does not know of the wall clock's jumps.
func monotonic() Ticks {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// clock is the database's clock as far as it is known here: Ticks, anchored at what Postgres said.
type clock struct {
	ticks     Ticks
	zero      time.Time // the time at no ticks
	anchored  bool
	corrected time.Duration // ticks of the last correction
}

// newClock makes a clock that tells the machine's time until it is first corrected.
func newClock(ticks Ticks) clock { return clock{ticks: ticks, zero: time.Now().Round(0).Add(-ticks())} }

func (c *clock) now() time.Time { return c.zero.Add(c.ticks()) }

// slewPerMille bounds how fast the clock is set back: ids would wait for as long as it jumped.
const slewPerMille = 1

// correct takes what the database's clock said at some moment between two ticks. A clock that is behind all
// that this allows is set forward at once, one that is ahead of it slowly back. It returns how far ahead of
// the database the clock was for sure; below zero: behind.
func (c *clock) correct(before, after time.Duration, said time.Time) (ahead time.Duration) {
	low, high := said.Add(-after), said.Add(-before) // where zero may be
	if !c.anchored {
		c.zero, c.anchored = low, true
	}
	switch {
	case c.zero.Before(low):
		ahead = c.zero.Sub(low)
		c.zero = low
	case c.zero.After(high):
		ahead = c.zero.Sub(high)
		c.zero = c.zero.Add(-min(ahead, max(after-c.corrected, 0)*slewPerMille/1000))
	}
	c.corrected = after
	return ahead
}
