// Package bench measures the service against the ledger that one writes when nothing but Postgres is
// there, on one machine and in one run, and then proves in SQL that what was counted is what was done.
//
// Client, server and Postgres are processes of their own; this one only starts them, reads their CPU
// time and memory from /proc while they run, and ends them. Everything listens on this machine alone,
// in directories that are removed at the end.
//
// The cases are in case.go, the targets in target.go, the load in the package load, and all SQL in the
// folder sql.
package bench
