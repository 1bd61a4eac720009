// Package ids generates unique ids: 64-bit ids ordered by time, UUIDs of version 7, and order numbers. It owns
// the table ids_workers.
//
// Guarantee: no 64-bit id is issued twice in one database, whatever clocks, processes and connections do. The
// guarantee does not depend on any clock. Every id contains a worker number that its process leased from
// Postgres. Every lease has a mark: the process issues no id with a time at or past the mark, and moves the
// mark forward in the database before it needs later ids. The next holder of the number begins at that mark. A
// process that was suspended, disconnected, or lost its lease unnoticed can only issue the ids below its own
// mark.
//
// Leases, fences and clocks serve two other purposes: worker numbers are reused, and ids carry their creation
// time.
package ids
