// Package claim keeps the keys of which the first use wins: page ids, facts that are true once, business keys.
//
// It owns claim_keys. Its promise: of all uses of a key, by any number of callers and
// processes, exactly one is the first, and the others are told what that one made. With a life uses are counted,
// and the key is free again when the life is over, measured from the first use. Without one the key is taken for
// ever, by one owner. A refused use is none: it is not counted.
package claim
