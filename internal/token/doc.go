// Package token is about submit tokens: one lets one form be submitted once. It owns the table
// token_submit_tokens.
//
// What it promises: a token is spent in the transaction of what was submitted with it, so that the two
// happen together or not at all, and whoever comes with it later is told what the first submit made. Who
// reads the table cannot submit anything: it has hashes of tokens, never a token.
package token
