package lock

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of locks.
var (
	Held = fault.Define(fault.Reason{Name: "LOCK_HELD", Class: fault.Conflict, Code: fault.Aborted, Step: fault.ReadAgain,
		Doc: "Somebody holds the lock, or came before: the state names the holder, the end of his lease, and the place in the queue."})
	PageHeld = fault.Define(fault.Reason{Name: "PAGE_LOCK_HELD", Class: fault.Duplicate, Code: fault.AlreadyExists, Step: fault.Ignore,
		Doc: "Somebody holds the lock of this page id: it is being worked on already. The state is that of LOCK_HELD."})
	Lost = fault.Define(fault.Reason{Name: "LOCK_LOST", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The lock is not held under this fence: the lease lapsed, or it was released. It does not come back: acquire it anew."})
	QueueFull = fault.Define(fault.Reason{Name: "LOCK_QUEUE_FULL", Class: fault.Conflict, Code: fault.ResourceExhausted, Step: fault.ReadAgain,
		Doc: "As many wait for the lock as may: 1,000."})
)
