// Package bench measures the server against a hand-written ledger in PL/pgSQL, on one machine and in one run,
// and then verifies in SQL that the counted work was done.
//
// Client, server and Postgres are separate processes. This process starts them, reads their CPU time and memory
// from /proc, and stops them. Everything listens on loopback, in directories that are removed at the end.
//
// The cases are in case.go, the targets in target.go, the load in package load, and all SQL in the directory sql.
package bench
