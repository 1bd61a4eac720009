// Package amount is the arithmetic of money: exact signed integers in the minor units of an asset, at most 38 digits,
// and the decimal text people write for them. It owns no table.
//
// The promise it keeps: an amount is exact or it is refused. Nothing here rounds, wraps around, saturates or passes
// through a float. Every operation that could leave the 38 digits says so in its result, and the same 38 digits are
// what a numeric(38,0) column holds, so a value that exists in Go can always be stored and a stored value can always be
// loaded.
//
// [Int] is the amount itself and what the database sees; [Decimal] is what a request carries before the scale of its
// asset is known. [Register] teaches a pgx connection to move Int to and from numeric.
package amount
