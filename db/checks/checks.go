// Package checks holds the invariants of the database, one SELECT per file: every returned row is a violation.
// Each file has three users: an auditor runs it with psql, pgtest runs it whole before dropping a test
// database, and `ledgerd verify` (internal/verify) runs it on a live database in slices, wrapped as: select *
// from (<file>) c where c.tenant_id = … and c.account_id between … and …. So the rules for a file are:
//
//   - It begins with a comment that states the invariant.
//   - It is one statement without a final semicolon, so it runs on one snapshot. The invariant holds at any time.
//   - If its first two columns are tenant_id and account_id, transfer_id or hold_id, it runs in slices of these,
//     otherwise whole. Postgres must then be able to push a condition on the two columns down to every big table:
//     they are columns of the outermost table, or of a GROUP BY or PARTITION BY, and other tables are joined from
//     there by lateral or index. A test checks the plans.
//   - The columns identify the wrong row. Wrong values come in pairs: balance, and the expected value as
//     balance_expected. Amounts are in minor units.
//
// The files use tables only: an attacker who can change rows can also replace a view.
package checks

import "embed"

// FS holds every check.
//
//go:embed *.sql
var FS embed.FS
