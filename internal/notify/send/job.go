package send

import "time"

// Lease is how long a process may keep a message before other processes take it over.
const Lease = time.Minute

// Job is a message that this process has leased in notify_queue.
type Job struct {
	Message
	Fence int64 // of the row: every later write checks it
	// Until is the end of the lease by this process's monotonic clock. It is counted from before the database read its
	// clock, so it is never later than the real end.
	Until         time.Time
	Priority      int16
	MaxAttempts   int
	GiveUpAt      time.Time
	Month         time.Time // partition of notify_messages and notify_events
	ContentsUntil time.Time // partition of notify_contents
	Never         bool      // on_unknown = never: delete the content once the message is settled
}

// Handoff passes new messages to the workers of this process, without a poll. Its methods neither block nor use the
// database.
type Handoff interface {
	// Reserve reserves room for one message. If it returns false, the message is inserted due and unleased.
	Reserve(tenant int32, channel Channel) bool
	// Take hands over committed messages for which room was reserved.
	Take(jobs []*Job)
	// Drop releases the room of messages that did not commit.
	Drop(jobs []*Job)
	// Due announces committed messages of a tenant that are due and unleased: this process and others poll at once.
	Due(tenant int32)
}
