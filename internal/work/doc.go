// Package work makes work in callers' own systems happen once: it tracks which caller may do the work now, and
// the answer that it ended with. It owns the table work_records and the sequence work_fence_seq.
//
// Of all callers that begin a piece of work, one gets to run it, under a lease and a fence. Concurrent callers
// wait; later callers get the recorded answer. An expired lease may be taken over under a greater fence. From
// then on, reports from the former holder are refused. Work whose outcome is unknown is parked until a person
// or a program resolves it.
//
// Guarantees: at most one attempt per key holds the lease at a time. Every report names its fence and is
// refused unless that fence is the newest. Fences of a key only grow, even after its row was deleted. A settled
// answer does not change within its life. The package cannot guarantee that a holder whose lease expired has
// stopped: the holder must check the fence in its own writes too.
package work
