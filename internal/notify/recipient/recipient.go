// Package recipient knows the forms in which recipients are written: which two writings mean the same one, and
// how much of one may be shown. Its errors say what is wrong, never with what.
package recipient

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// MaxHint is how long a mask is at most, in characters.
const MaxHint = 64

// maxOpaque is how long a device token or the name of an endpoint may be, in bytes.
const maxOpaque = 2048

// Parse brings a recipient into the form in which it is kept and handed to providers. region is the country,
// such as CN, of phone numbers that are written without theirs; empty: there are none.
func Parse(channel send.Channel, written, region string) (string, error) {
	switch channel {
	case send.SMS:
		return ParseSMS(written, region)
	case send.Email:
		return ParseEmail(written)
	default:
		return parseOpaque(written)
	}
}

// Same is equal for recipients that are the same one: hashes and fingerprints are made of it.
func Same(channel send.Channel, parsed string) string {
	if channel == send.Email {
		return strings.ToLower(parsed)
	}
	return parsed
}

// Mask is what may be shown of a parsed recipient: enough for people to know theirs when they see it.
func Mask(channel send.Channel, parsed string) string {
	switch channel {
	case send.SMS:
		return maskSMS(parsed)
	case send.Email:
		return maskEmail(parsed)
	case send.Webhook: // the name of an endpoint, which is no secret
		return clip(parsed)
	default:
		return maskOpaque(parsed)
	}
}

func parseOpaque(s string) (string, error) {
	switch {
	case s == "":
		return "", errors.New("is missing")
	case len(s) > maxOpaque:
		return "", errors.New("is too long")
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return "", errors.New("must be printable ASCII without spaces")
		}
	}
	return s, nil
}

// maskOpaque shows the ends of a token that is long enough to be none by them.
func maskOpaque(s string) string {
	if len(s) < 32 {
		return hidden
	}
	return s[:4] + hidden + s[len(s)-4:]
}

const hidden = "****"

// clip cuts a hint to the length that is kept.
func clip(s string) string {
	if utf8.RuneCountInString(s) <= MaxHint {
		return s
	}
	runes := []rune(s)
	return string(runes[:MaxHint-1]) + "…"
}
