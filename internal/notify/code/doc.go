// Package code sends verification codes, which prove that a person can read messages to a number or an address. It owns
// the table notify_codes.
//
// Promises: a code can be used once, within its life, and only while fewer than MaxTries wrong codes were tried; a new
// code voids the previous one. A code is used in the transaction of the command that requires it, or not at all. A
// wrong try is counted whenever a caller learns that it was wrong. Answers do not reveal whether anything was ever sent
// to a recipient. The database does not reveal codes: it has keyed hashes and sealed messages, and the keys are not in
// it.
package code
