// Package commit is the commit engine: it gathers waiting commands and runs them as one Postgres transaction (group
// commit). It owns commit_batches, commit_keys, commit_counts and commit_epochs. It knows no domain: commands work on a
// Tx, a type parameter, which consists of Participants that load and flush their own rows.
//
// # One batch, from call to COMMIT
//
// Engine.Do (engine.go) makes a job from the call (submission.go) and submits it: queue.admit enforces the limits,
// inflightKeys.join (keys.go) lets a job follow another one with the same request key in this process, and dispatch
// queues the other jobs.
//
// A writer (Engine.write, writer.go) waits for work, acquires a connection, then takes a batch (queue.take, fair among
// tenants) and passes it to writer.run, which calls try until every job has an answer. The switch in run handles each
// ending of an attempt (ending.go). Jobs that need a lock of another transaction wait apart: a search, which runs ever
// smaller parts of a batch with brief lock waits, finds them (blocked.go).
//
// writer.try takes a batch number (batchIDs.next), makes the jobs running (setRunning), so that cancelled calls are
// left out, and makes one attempt (attempt.go). Need is a method of commands; Discover, Lock, Read, Lookup, Start,
// Resolve, Flush, Confirm and Write are methods of participants (participant.go, worth reading first):
//
//	load      Need names rows. Discover finds further rows by reads without locks.
//	          acquire: the latch on the batch's rows and names within the process (latch.go); an optimistic
//	          batch takes over shared rows from its predecessor, which is still committing.
//	          Lock or Read, Lookup, keys.lookup (keys.go), and the time, all in one round trip.
//	          loadDependents: Start, then Resolve reads dependents of the rows
//	apply     every command in order of arrival (apply.go): plain Go over rows in memory. For a command with a
//	          request key, Submission.Encode then returns the bytes that the key records: its response, which
//	          internal/rpc has rendered in Apply (flow.GuardedCommand).
//	          latches.publish: from here on the next batch may take over the rows
//	flush     Flush and keys.flush: one statement a table, names and keys inserted once, with their answers.
//	          awaitPredecessors may wait. confirmAndWrite: Confirm and Write of each participant, which
//	          verify in this transaction the assumptions of the attempt (attempt.go). insertOwnRow: the batch's row
//	commit    sends the statements that are left, with COMMIT
//
// If COMMIT was sent and its success is not confirmed, Engine.resolveOutcome determines the outcome (outcome.go).
// attempt.notifyObservers passes the outcome to Observers. Then Engine.answer answers every job and those that
// follow it (keys.go). health.go decides whether the server is ready, and has the metrics and the counts of calls
// with keys; pipe.go sends statements, and has connections plan them anew.
//
// # One direct command
//
// Engine.dispatch passes a job with Submission.Direct to a slot instead (direct.go). runDirect makes attempts of this
// one job, without latches, until it has an answer or its attempts are used up. After a failure that is not about its
// rows the job runs there as a batch of one.
//
// # Promises
//
// An effect, its names and its request key are committed together or not at all. No caller learns that a change was
// made, or was not made, before the outcome is certain. A repeat of a recorded key gets the recorded answer. One bad
// command fails alone. docs/engine.md has the rules, each with its reason and its test.
package commit
