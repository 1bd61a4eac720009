// Package inbox deduplicates messages: a message takes effect once, however often a broker delivers it. It owns
// the tables inbox_*.
//
// A message is identified by tenant, consumer group, id and part. Changes in this server commit in the same
// transaction as the message's row (Receive). Processing elsewhere has one consumer at a time, under a lease
// with a fence (Begin, Extend, Complete, Fail).
//
// Guarantees: a message that succeeded is not processed again while its row is kept, by default forever. At
// most one consumer holds a message. A consumer that lost its lease to another one cannot change the message. A
// message that keeps failing ends dead, where an operator can inspect and requeue it.
package inbox
