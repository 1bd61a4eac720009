// Package ids makes ids that nobody else gets: 64-bit ones in order of time, UUIDs of version 7, and order
// numbers. It owns the table ids_workers.
//
// Its promise is that no 64-bit id is given out twice on one database, whatever clocks, processes and
// connections do. It does not rest on any clock. Every id carries a worker number that its process leased
// from Postgres, and every lease a mark: the process gives out no id of a time at or past the mark, and writes
// a later mark before it needs one; who takes the number over begins at the mark that he finds. A process that
// was stopped, cut off, or has lost its lease without knowing has the ids up to its own mark and no more.
// Leases, fences and time serve the rest: that numbers come back, and that ids tell when they were made.
package ids
