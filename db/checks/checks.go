// Package checks holds the invariants of the database, one SELECT a file: a row returned is a
// violation. One text serves everybody: an auditor runs a file with psql as it stands, pgtest runs
// each whole when a test database is dropped, and `ledgerd verify` (internal/verify) runs it on a live
// database in slices, by wrapping it: select * from (<file>) c where c.tenant_id = … and c.account_id
// between … and …. So the rules for a file are:
//
//   - It begins with a comment, one sentence that says what is always true.
//   - It is one statement without semicolon at the end, so one snapshot: it holds at every moment.
//   - If its first two columns are tenant_id and account_id, transfer_id or hold_id, it is run in
//     slices of these, else whole. Then Postgres must be able to push a condition on the two down to
//     every big table it reads: they are columns of the outermost table, or of a GROUP BY or PARTITION
//     BY, and other tables are reached from there by lateral or index. A test reads the plans.
//   - The columns name the culprit. What is wrong comes in pairs: balance, and what it should be as
//     balance_expected. Amounts are in minor units.
//
// The files use tables only: whoever can change rows behind our back can also replace a view.
package checks

import "embed"

// FS holds every check.
//
//go:embed *.sql
var FS embed.FS
