package send

import "time"

// Lease is how long a process may keep a message before others take it.
const Lease = time.Minute

// Job is a message on its way through this process, under a lease of its row in notify_queue.
type Job struct {
	Message
	Fence int64 // of the row: every later write names it
	// Until is the end of the lease by this process's monotonic clock, measured from before the database
	// read the time that due_at counts from: never later than the real end.
	Until         time.Time
	Priority      int16
	MaxAttempts   int
	GiveUpAt      time.Time
	Month         time.Time // which partition of notify_messages and notify_events
	ContentsUntil time.Time // which partition of notify_contents
	Never         bool      // nobody may requeue it: what it says is of no use when it is over
}

// Handoff takes fresh messages to the workers of this process, so that nobody has to find them. None of its
// methods blocks or talks to the database.
type Handoff interface {
	// Reserve asks for room for one message. Without it the message is inserted due, for whoever finds it.
	Reserve(tenant int32, channel Channel) bool
	// Take hands over messages that have committed, for each of which room was reserved.
	Take(jobs []*Job)
	// Drop gives back the room of messages that have not committed.
	Drop(jobs []*Job)
	// Due tells that messages of a tenant have committed that are due and leased to nobody: this process and
	// others look for them at once.
	Due(tenant int32)
}
