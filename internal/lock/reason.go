package lock

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of locks.
var (
	Held = fault.Register(fault.Reason{Name: "LOCK_HELD", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc: "Another holder has the lock, or other callers wait for it: the metadata has the holder, " +
			"the end of the lease, and the position in the queue."})
	PageHeld = fault.Register(fault.Reason{Name: "PAGE_LOCK_HELD", Class: fault.Duplicate, Code: fault.AlreadyExists,
		Step: fault.Ignore,
		Doc: "Another holder has the lock of this page id: another call is working on it already. " +
			"The metadata is that of LOCK_HELD."})
	Lost = fault.Register(fault.Reason{Name: "LOCK_LOST", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey,
		Doc: "The lock is not held under this fence: its lease expired, or it was released. It cannot be renewed: " +
			"acquire it again."})
	QueueFull = fault.Register(fault.Reason{Name: "LOCK_QUEUE_FULL", Class: fault.Conflict,
		Code: fault.ResourceExhausted,
		Step: fault.ReadAgain, Doc: "The lock's queue is full: 1,000 callers wait already."})
)
