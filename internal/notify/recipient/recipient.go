// Package recipient normalizes, compares and masks recipients. Its errors describe the problem without repeating the
// input.
package recipient

import (
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// MaxHint limits a mask, in characters.
const MaxHint = 64

// maxOpaque limits a device token or endpoint name, in bytes.
const maxOpaque = 2048

// Parse normalizes a recipient for storage and for providers. region is the default country of phone numbers, such as
// CN; empty: none.
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

// Same returns a form that is equal for equal recipients. Hashes and fingerprints are computed from it.
func Same(channel send.Channel, parsed string) string {
	if channel == send.Email {
		return strings.ToLower(parsed)
	}
	return parsed
}

// Mask returns the part of a parsed recipient that may be shown: enough for its owner to recognise it.
func Mask(channel send.Channel, parsed string) string {
	switch channel {
	case send.SMS:
		return maskSMS(parsed)
	case send.Email:
		return maskEmail(parsed)
	case send.Webhook: // an endpoint name, which is not secret
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

// maskOpaque shows both ends of a token that is too long to be guessed from them.
func maskOpaque(s string) string {
	if len(s) < 32 {
		return hidden
	}
	return s[:4] + hidden + s[len(s)-4:]
}

const hidden = "****"

// clip cuts a hint to MaxHint.
func clip(s string) string {
	if utf8.RuneCountInString(s) <= MaxHint {
		return s
	}
	runes := []rune(s)
	return string(runes[:MaxHint-1]) + "…"
}
