package recipient

import (
	"errors"
	"net/mail"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/text/unicode/norm"
)

// ParseEmail normalizes a bare e-mail address. The domain becomes lower-case ASCII. The local part keeps its case,
// which Same ignores.
func ParseEmail(written string) (string, error) {
	if written == "" {
		return "", errors.New("is missing")
	}
	if len(written) > 1024 || !utf8.ValidString(written) {
		return "", errNoAddress
	}
	written = strings.Trim(written, " ")
	at := strings.LastIndexByte(written, '@')
	if at < 0 {
		return "", errNoAddress
	}
	local, domain := norm.NFC.String(written[:at]), strings.TrimSuffix(written[at+1:], ".")
	// Quoted local parts, such as "a@b"@example.com, are legal but unused, and parsers disagree about them.
	if !dotAtom(local) {
		return "", errNoAddress
	}
	domain, err := idna.Lookup.ToASCII(domain)
	if err != nil || domain == "" || len(domain) > 253 {
		return "", errors.New("has an invalid domain")
	}
	address := local + "@" + domain
	if len(local) > 64 || len(address) > 254 {
		return "", errors.New("is too long for an e-mail address")
	}
	if a, err := mail.ParseAddress(address); err != nil || a.Name != "" || a.Address != address {
		return "", errNoAddress
	}
	return address, nil
}

var errNoAddress = errors.New("is not an e-mail address")

// dotAtom reports whether s is a dot-atom of RFC 5322, extended by RFC 6531 with letters, marks and digits beyond
// ASCII.
func dotAtom(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if part == "" {
			return false
		}
		for _, r := range part {
			if !atomRune(r) {
				return false
			}
		}
	}
	return true
}

func atomRune(r rune) bool {
	switch {
	case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		return true
	case r < utf8.RuneSelf:
		return strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
	default:
		return unicode.In(r, unicode.L, unicode.M, unicode.N)
	}
}

func maskEmail(address string) string {
	at := strings.LastIndexByte(address, '@')
	if at <= 0 {
		return hidden
	}
	_, size := utf8.DecodeRuneInString(address)
	if size == at { // a single letter would be the whole local part
		size = 0
	}
	return clip(address[:size] + "***" + address[at:])
}
