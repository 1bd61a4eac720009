// Package record guards work that callers do in their own systems, so that it is done once: who may run
// it now, and the answer it ended with. It owns the table work_records and the sequence work_fence_seq.
//
// Of all who begin a piece of work, one gets to run it, under a lease and a fence. Who comes meanwhile
// waits, who comes later gets the recorded answer. A lease that lapses may be taken over, under a greater
// fence: from then on nothing that the former holder says is taken. When nobody can know whether work
// was done, it is parked for a person or a program that finds out.
//
// What it promises: for one key at most one attempt at a time holds the lease; every later word of a
// holder names its fence and is refused once that is not the newest; fences of a key only grow, also
// after its row was cleaned; a settled answer does not change within its life. It cannot promise that a
// holder whose lease lapsed has stopped: that is what the fence is for, in the holder's own writes too.
package work
