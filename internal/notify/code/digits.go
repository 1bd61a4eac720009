package code

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"regexp"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// What codes are like. How many wrong tries one bears is no setting: an answer would tell by it whether a code was
// sent.
const (
	DefaultDigits   = 6
	MinDigits       = 4
	MaxDigits       = 10
	DefaultLife     = 5 * time.Minute
	MinLife         = 30 * time.Second
	MaxLife         = time.Hour
	DefaultInterval = time.Minute
	MaxTries        = 5
	// DefaultDaily is how many codes one recipient may get for the same in any 24 hours, MaxDaily how many a call may
	// allow.
	DefaultDaily = 10
	MaxDaily     = 100
	day          = 24 * time.Hour
	// MostWrong is how many wrong tries one recipient has in any 24 hours, over all codes and types. So one recipient's
	// codes are guessed with a chance of 1 in 500 a day when they have 4 digits, 1 in 50,000 with 6 (in a year 1 in
	// 140), and 1 in 500 million with 10. Without a budget the chance grows with the types that a tenant has: 50 tries
	// a day for each.
	MostWrong = 20
)

// New draws a code: every one of so many digits is as likely as any other.
func New(digits int) string {
	out := make([]byte, 0, digits)
	var b [16]byte
	for len(out) < digits {
		_, _ = rand.Read(b[:]) // never fails
		for _, x := range b {
			// 250 to 255 are thrown away: they would make 0 to 5 more likely.
			if x < 250 && len(out) < digits {
				out = append(out, '0'+x%10)
			}
		}
	}
	return string(out)
}

// Nonce is what makes hashes of the same code differ.
type Nonce [16]byte

// NewNonce draws one.
func NewNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// GoodType tells whether codes may be for something of this name.
func GoodType(s string) bool { return goodType.MatchString(s) }

var goodType = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,47}$`)

// keys are those of one tenant.
type keys struct{ recipient, code []byte }

func keysOf(m *secret.Master, tenant int32) keys {
	t := strconv.Itoa(int(tenant))
	return keys{m.Derive("notify.code.recipient", t), m.Derive("notify.code", t)}
}

// keyed hashes fields, each with its length before it.
func keyed(key []byte, fields ...string) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, key)
	for _, f := range fields {
		h.Write(binary.AppendUvarint(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	h.Sum(sum[:0])
	return sum
}
