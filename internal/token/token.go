package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"time"
)

// Bounds of a token's life, and the default.
const (
	DefaultLife = 5 * time.Minute
	MinLife     = time.Second
	MaxLife     = 24 * time.Hour
)

// Retention of a token's state after the end of its life. Unspent tokens are deleted soon, because most tokens
// are never spent. A spent token must answer late repeats with the first submission's result.
const (
	openKept  = time.Hour
	spentKept = 24 * time.Hour
)

// prefix makes tokens recognisable to people and secret scanners.
const prefix = "st_"

// size is the number of random bytes in a token.
const size = 20

var text = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// New makes a token: the prefix and 160 random bits as 32 characters that need no escaping in URLs, headers and
// forms.
func New() string {
	var b [size]byte
	_, _ = rand.Read(b[:]) // never returns an error
	return prefix + text.EncodeToString(b[:])
}

// nextLabel separates the hash that derives the next token from the stored hash.
const nextLabel = "ledgerd submit token, next, version 1\x00"

// Next derives the token that follows another. Deriving it lets a repeated submission return the same next
// token although only a hash is stored. Only a holder of the token can derive its successor.
func Next(token string) string {
	sum := sha256.Sum256([]byte(nextLabel + token))
	return prefix + text.EncodeToString(sum[:size])
}

// hashOf is the stored hash of a token. It needs no salt or stretching: there are 2^160 possible tokens.
func hashOf(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
