package clean

import "time"

// Size and Pause are how a cleaner keeps its pace.
var Size = size

// Pause is the wait after a batch.
func (c *Cleaner) Pause(took time.Duration) time.Duration { return c.pause(took) }
