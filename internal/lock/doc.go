// Package lock implements leases with fencing tokens for work in other systems, the wait queues of those
// leases, and the lock keys of Execute. It owns the tables lock_*.
//
// Only engine commands change a lock. They hold its row lock and use the batch's time. A lock can be acquired when it
// is free or its lease has expired and no earlier caller waits. Renew and release require the current fence. A
// WaitQueue tracks the waiting calls of this process, wakes the next in line, and keeps their queue entries alive.
//
// Guarantees: by the database's clock, a lock has at most one holder at a time. A fence is greater than all
// earlier fences, even after the cleaner deleted the lock's row. Waiters are served first come, first served
// across all processes, except for waiters whose process died.
package lock
