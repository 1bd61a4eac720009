package ids

import "time"

// Ticks returns the time elapsed since an arbitrary origin. It should not jump. If it does, ids may be delayed
// or carry a wrong time, but stay unique.
type Ticks func() time.Duration

// monotonic uses Go's monotonic clock, which is unaffected by jumps of the wall clock.
func monotonic() Ticks {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

// clock estimates the database's clock: Ticks, anchored at timestamps from Postgres.
type clock struct {
	ticks     Ticks
	zero      time.Time // the time at tick zero
	anchored  bool
	corrected time.Duration // ticks of the last correction
}

// newClock makes a clock that follows the local wall clock until it is first corrected.
func newClock(ticks Ticks) clock { return clock{ticks: ticks, zero: time.Now().Round(0).Add(-ticks())} }

func (c *clock) now() time.Time { return c.zero.Add(c.ticks()) }

// slewPerMille bounds how fast the clock is set back. A step back would stop ids for as long as the step.
const slewPerMille = 1

// correct adjusts the clock to a database timestamp taken between two ticks. A clock that is certainly behind
// is stepped forward; one that is certainly ahead is slewed back. It returns the certain lead over the
// database; negative: behind.
func (c *clock) correct(before, after time.Duration, dbTime time.Time) (ahead time.Duration) {
	low, high := dbTime.Add(-after), dbTime.Add(-before) // bounds of zero
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
