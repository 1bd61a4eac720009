// Package commit is the commit engine: it gathers the commands that are waiting and runs them as
// one Postgres transaction. It owns commit_batches, commit_keys, commit_counts and commit_epochs, and
// knows no domain: commands work on a Tx, a type that the wiring chooses, made of Participants that
// load and flush themselves.
//
// # One batch, from call to COMMIT
//
// Engine.Do (engine.go) makes a job of the call and submits it: queue.admit refuses what is too much,
// inflightKeys.park parks a job behind the one that has the same request key in this process, and
// queue.put lets the others wait.
//
// A writer (Engine.write, writer.go) waits for work, takes a connection, then takes a batch (queue.take,
// fair among tenants) and gives it to Engine.run. That one calls try until every job has an answer: its
// switch says what follows from each way in which an attempt can end (ending, evidence.go).
//
// Engine.try claims the jobs, so that callers who left are not run, takes a number (batchIDs.next) and
// makes one attempt (attempt.go):
//
//	load      Need, and Discover: which rows does a command mean? Unlocked reads of columns that never change.
//	          acquire: the latch on the batch's rows and names within the process (latch.go); an optimistic
//	          batch takes shared rows over from the batch before it, which is still committing.
//	          Lock or Read, keys.lookup (keys.go), Lookup, and the time, all in one round trip.
//	          loadDependents: Start, and what hangs on the rows found
//	apply     every command in order of arrival (apply.go): plain Go over rows in memory.
//	          latches.publish: from here on the next batch may take the rows over
//	flush     Flush and keys.flush: one statement a table, names and keys inserted once, with their answers.
//	          confirm: what the attempt rests on is true in this transaction (evidence.go), which may wait for
//	          predecessors. Write, and the batch's own row (leaveRow)
//	commit    sends it all with COMMIT
//
// If COMMIT went out and no answer came, Engine.findOut settles the outcome (outcome.go). attempt.tell tells the
// participants that observe. Then Engine.answer gives every job its own answer, and jobs parked behind its key
// (job.go) get theirs. health.go decides whether the server is ready, pipe.go sends statements.
//
// # Promises
//
// An effect, its names and its request key are committed together or not at all; no caller is told
// that a change was made, or was not, before that is known; a repeat of a recorded key gets the recorded
// answer; one bad command fails alone. docs/engine.md has the rules, the reason for each, and the test that holds it.
package commit
