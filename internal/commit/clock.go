package commit

import (
	"sync"
	"time"
)

// clock reckons the time of the database: what it said with the last commit, and what has passed since by this process's own
// clock. Behind by as long as that commit took, give or take what the clocks differ in clockLife.
type clock struct {
	mu   sync.Mutex
	said time.Time // by the database
	at   time.Time // by our own clock, which cannot be set
}

// clockLife is how long an answer is good. The database refuses a time that is a second wrong: after a failover, or
// when this machine was suspended and its clock stood still.
const clockLife = 10 * time.Second

func (c *clock) set(said time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said, c.at = said, time.Now()
}

// now is the time, in the microseconds in which it is stored.
func (c *clock) now() (now time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := time.Since(c.at)
	return c.said.Add(passed).Truncate(time.Microsecond), !c.at.IsZero() && passed < clockLife
}

// reckon gives a batch its time without asking for it, unless it has rows, whose history is read as of a time: theirs comes
// from the database, under the lock that readers wait for (see Settle).
func (b *batch[B]) reckon() bool {
	if b.sure || len(b.stay.rows) > 0 {
		return false
	}
	b.now, b.reckoned = b.engine.clock.now()
	b.guessed = b.guessed || b.reckoned
	return b.reckoned
}
