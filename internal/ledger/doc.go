// Package ledger is the double-entry ledger: assets, accounts, transfers with their entries, and holds. It owns
// the tables ledger_*.
//
// The domain verbs are methods of Tx, plain Go on the rows of one batch: no context, no clock, no SQL. A verb
// either returns a result, or returns a fault and leaves changes that the engine undoes. Tx is also the
// ledger's commit.Participant: it loads and flushes the rows of a batch. Commands carry verbs to the engine;
// reads are plain queries outside it.
//
// Its methods as Participant, in the order of their calls: Discover (load.go), Latch, CanOverlap, TakeOver, Lock
// or Read (accounts.go), Lookup (load.go), Latest, Start (tx.go), Resolve (load.go), Mark, Undo (tx.go), Flush
// (flush.go), Confirm, Write (accounts.go).
//
// Guarantees: every posting makes two entries that sum to zero. An entry stores the balance before and after it
// and its account's next version. No balance exceeds its limits. A biz_no names one object forever.
package ledger
