// Package amount is the arithmetic of money: exact signed integers in the minor units of an asset, at most 38 digits,
// and the decimal text people write for them. It owns no table.
//
// An amount is exact or it is refused: nothing rounds, wraps around, saturates or passes through a float. Only
// [Decimal.MinorUp], for amounts that a payment gateway states, rounds up and saturates. Operations whose result could
// exceed 38 digits report that. A numeric(38,0) column holds the same 38 digits, so every Int can be stored, and every
// stored value can be loaded.
//
// [Int] is an amount in minor units, as in the database. [Decimal] is an amount of a request before the scale of its
// asset is known. [Register] adds the codec of Int to a pgx connection.
package amount
