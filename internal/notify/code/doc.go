// Package code is about codes that prove that somebody has a number or an address: a code is sent there, and who knows
// it has it. It owns the table notify_codes.
//
// What it promises: a code is usable once, within its life, and only while fewer wrong ones were tried than it bears; a
// new one voids the older. It is used up in the transaction of what it guards, or not at all, and a wrong try is
// counted whenever somebody is told that it was wrong. An answer does not tell whether anything was ever sent to a
// recipient. Who reads the database cannot tell a code: it has keyed hashes, and the message that says it is sealed,
// with keys that are not in it.
package code
