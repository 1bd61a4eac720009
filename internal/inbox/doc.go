// Package inbox makes a message take effect once, however often a broker delivers it. It owns the tables
// inbox_*.
//
// A message is named by tenant, consumer group, id and part. An effect that is a change of ours commits in
// one transaction with the row of its message (Receive). Work that is done elsewhere is done by one at a
// time, under a lease with a fence (Begin, Extend, Complete, Fail).
//
// What it promises: what has succeeded never runs again, for as long as its row is kept, by default for
// ever; of two who want the same message one gets it; whoever lost his lease to another changes nothing
// any more; what fails again and again ends dead, and a person can see it and bring it back.
package inbox
