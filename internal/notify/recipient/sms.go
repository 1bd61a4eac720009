package recipient

import (
	"errors"
	"strconv"
	"strings"

	"github.com/nyaruka/phonenumbers"
)

// ParseSMS normalizes a phone number to E.164, such as +8613812345678. It checks the length by country, but not the
// number ranges, which change too often.
func ParseSMS(written, region string) (string, error) {
	if written == "" {
		return "", errors.New("is missing")
	}
	if len(written) > 64 {
		return "", errors.New("is too long for a phone number")
	}
	for _, r := range written {
		if !partOfNumber(r) {
			return "", errors.New("is not a phone number")
		}
	}
	if region = strings.ToUpper(region); region == "" {
		region = phonenumbers.UNKNOWN_REGION
	}
	n, err := phonenumbers.Parse(written, region)
	switch {
	case errors.Is(err, phonenumbers.ErrInvalidCountryCode):
		return "", errors.New("must begin with its country code, such as +86")
	case err != nil:
		return "", errors.New("is not a phone number")
	}
	switch phonenumbers.IsPossibleNumberWithReason(n) {
	case phonenumbers.IS_POSSIBLE:
		return stable(phonenumbers.Format(n, phonenumbers.E164))
	case phonenumbers.TOO_LONG:
		return "", errors.New("has too many digits")
	case phonenumbers.INVALID_COUNTRY_CODE:
		return "", errors.New("has an unknown country code")
	default:
		return "", errors.New("has too few digits")
	}
}

// stable refuses numbers that parse differently the second time, such as all zeros.
func stable(e164 string) (string, error) {
	n, err := phonenumbers.Parse(e164, phonenumbers.UNKNOWN_REGION)
	if err != nil || phonenumbers.Format(n, phonenumbers.E164) != e164 || !phonenumbers.IsPossibleNumber(n) {
		return "", errors.New("is not a phone number")
	}
	return e164, nil
}

// partOfNumber refuses letters, which are digits on some keypads, and extensions, which cannot receive SMS.
func partOfNumber(r rune) bool {
	switch {
	case r >= '0' && r <= '9', r >= '０' && r <= '９':
		return true
	default:
		return strings.ContainsRune("+＋ -().\u00a0\u2010\u2011\u2012\u2013（）－", r)
	}
}

// DialCode returns the country calling code of an E.164 number, such as 86.
func DialCode(e164 string) string {
	n, err := phonenumbers.Parse(e164, phonenumbers.UNKNOWN_REGION)
	if err != nil {
		return ""
	}
	return strconv.Itoa(int(n.GetCountryCode()))
}

// Prefix returns an E.164 number without its last four digits. SMS pumping uses numbers bought in such blocks.
func Prefix(e164 string) string {
	return e164[:max(0, len(e164)-4)]
}

// Region reports whether code is a known country for phone numbers, such as CN.
func Region(code string) bool { return phonenumbers.GetSupportedRegions()[code] }

// maskSMS hides at least four digits, as in +86138****5678.
func maskSMS(e164 string) string {
	code := DialCode(e164)
	if code == "" || len(e164) < 1+len(code) {
		return hidden
	}
	national := e164[1+len(code):]
	shown := max(0, len(national)-len(hidden))
	tail := (shown + 1) / 2
	return "+" + code + national[:shown-tail] + hidden + national[len(national)-tail:]
}
