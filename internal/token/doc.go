// Package token implements submit tokens: each lets one form be submitted once. It owns the table
// token_submit_tokens.
//
// Guarantees: a token is spent in the same transaction as its submission, so both happen or neither. A later
// submission with the same token gets the result of the first. The table stores hashes only, so reading it does
// not allow submitting anything.
package token
