// Package checks holds the invariants of the database, one SELECT a file: a row returned is a
// violation. Tests run all of them when a test database is dropped, `ledgerd verify` on a live one.
package checks

import "embed"

// FS holds every check.
//
//go:embed *.sql
var FS embed.FS
