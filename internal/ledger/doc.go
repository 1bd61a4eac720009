// Package ledger is the double-entry ledger: assets, accounts, transfers with their entries, holds.
// It owns the tables ledger_*.
//
// Its verbs are methods of Tx, plain Go over the rows of one batch: no context, no clock, no SQL.
// A verb returns a result, or a fault and leaves what the engine then undoes. Tx is also the
// ledger's commit.Participant: what a batch loads and flushes. Commands carry verbs to the engine; reads
// are plain queries beside it.
//
// What it promises: every posting makes two entries that sum to zero; an entry keeps the balance
// before and after and the next version of its account; no balance passes its limits; a biz_no names
// one thing for ever.
package ledger
