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

// How long after the end of its life the state of a token is told. One that nobody spent is cleared away
// soon, since most are never spent; a spent one has to tell late repeats what the first submit made.
const (
	openKept  = time.Hour
	spentKept = 24 * time.Hour
)

// prefix lets people and scanners for secrets know a token when they see one.
const prefix = "st_"

// size is how many bytes of a token are random.
const size = 20

var text = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// New makes a token: the prefix and 160 random bits in 32 characters, which URLs, headers and forms carry
// as they are.
func New() string {
	var b [size]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + text.EncodeToString(b[:])
}

// nextLabel keeps the hash that the next token is made of apart from the one that is stored.
const nextLabel = "ledgerd submit token, next, version 1\x00"

// Next is the token that follows another. It is derived, so that a repeat of a submit can be given it
// again although only its hash is kept: who held the one is given the other anyway, and nobody else can
// derive it.
func Next(token string) string {
	sum := sha256.Sum256([]byte(nextLabel + token))
	return prefix + text.EncodeToString(sum[:size])
}

// hashOf is what is kept of a token. It needs no salt and no stretching: there are 2^160 tokens to try.
func hashOf(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }
