// Package lock has locks for work that is done elsewhere: leases with fences, the queues of those who
// wait for them, and the lock keys of Execute. It owns the tables lease_*.
//
// A lock is changed by commands of the engine alone, under its row's lock and by the batch's time: it is
// acquired when it is free or has lapsed and nobody came before, renewed and released under its fence. A
// WaitQueue keeps the calls of this process that wait, wakes whose turn it is, and keeps their places.
//
// What it promises: at one moment of the database's clock a lock has one holder; a fence is greater than
// those of all acquisitions before, also of a lock whose row was cleaned away; who came first gets it
// first, over all processes, unless his own process died.
package lock
