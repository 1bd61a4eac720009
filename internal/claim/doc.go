// Package claim implements keys of which the first use wins: page ids, facts that hold once, business keys. It
// owns the table claim_keys.
//
// Guarantee: of all uses of a key, by any number of callers and processes, exactly one is the first, and the
// others learn its result. A key with a life counts its uses, and becomes free when the life, measured from the
// first use, is over. A key without a life belongs to one owner forever. Refused uses are not counted.
package claim
