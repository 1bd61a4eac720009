// Package commit is the commit engine: it gathers the commands that are waiting and runs them as
// one Postgres transaction.
//
//	discover   unlocked reads of columns that never change: which rows does a command mean?
//	lock       the rows of the whole batch, table by table in one fixed order, each sorted
//	look up    request keys, names and the time, in statements that begin after all locks are held
//	apply      every command in order of arrival: plain Go over rows in memory
//	flush      one statement a table, keys and names inserted once, with their answers
//	commit     and only then, with the outcome known, every caller gets an answer of its own
//
// It owns commit_batches and commit_keys, and knows no domain: commands work on books, a type that
// the wiring chooses, made of tables that know how to load and flush themselves.
//
// Its promises: an effect, its names and its request key are committed together or not at all;
// nobody is answered before the outcome is known; a repeat of a recorded key gets the recorded
// answer; one bad command fails alone. docs/ARCHITECTURE.md has the rules and the reasons.
package commit
