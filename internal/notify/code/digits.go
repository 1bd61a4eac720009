package code

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// Properties of codes. MaxTries is not configurable: otherwise answers would reveal whether a code was sent.
const (
	DefaultDigits   = 6
	MaxDigits       = 10
	DefaultLife     = 5 * time.Minute
	MinLife         = 30 * time.Second
	MaxLife         = time.Hour
	DefaultInterval = time.Minute
	MaxTries        = 5
	// DefaultDaily limits the codes per recipient and type in any 24 hours. MaxDaily is the highest limit that a call
	// may set.
	DefaultDaily = 10
	MaxDaily     = 100
	day          = 24 * time.Hour
	// triesLife is how long wrong tries count after the last one, whether or not there was a code. It is the longest
	// life of a code: if it were shorter, tries_left would reveal whether the recipient has an unexpired code.
	triesLife = MaxLife
	// MaxWrong limits the wrong tries per recipient in any 24 hours, over all codes and types. So the chance of
	// guessing a recipient's code is 1 in 500 per day with 4 digits, 1 in 50,000 with 6 (1 in 140 per year), and 1 in
	// 500 million with 10. Without this limit the chance would grow with the number of types: 50 tries a day for each.
	MaxWrong = 20
)

// New returns a random code. All codes are equally likely.
func New(digits int) string {
	out := make([]byte, 0, digits)
	var b [16]byte
	for len(out) < digits {
		_, _ = rand.Read(b[:]) // never fails
		for _, x := range b {
			// Discard 250 to 255, which would make 0 to 5 more likely.
			if x < 250 && len(out) < digits {
				out = append(out, '0'+x%10)
			}
		}
	}
	return string(out)
}

// Nonce makes the hashes of equal codes differ.
type Nonce [16]byte

// NewNonce returns a random nonce.
func NewNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// keys are the derived keys of one tenant.
type keys struct{ recipient, code []byte }

func keysOf(m *secret.Master, tenant int32) keys {
	t := strconv.Itoa(int(tenant))
	return keys{m.Derive("notify.code.recipient", t), m.Derive("notify.code", t)}
}

// keyedHash returns the HMAC of the fields, each prefixed with its length.
func keyedHash(key []byte, fields ...string) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, key)
	for _, f := range fields {
		h.Write(binary.AppendUvarint(nil, uint64(len(f))))
		h.Write([]byte(f))
	}
	h.Sum(sum[:0])
	return sum
}
