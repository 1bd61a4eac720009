package clean

import "time"

// Size is the batch size adjustment.
var Size = size

// Pause is the wait after a batch.
func (c *Cleaner) Pause(took time.Duration) time.Duration { return c.pause(took) }
