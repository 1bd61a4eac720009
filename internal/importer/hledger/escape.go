package hledger

import (
	"fmt"
	"strings"
	"unicode"
)

// escape writes bytes that a journal would misread as %XX: control characters, those in special, and a % that
// looks like an escape. Most text is unchanged, and all of it can be decoded.
func escape(s, special string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c == 0x7f || strings.IndexByte(special, c) >= 0 || c == '%' && isEscape(s[i:]) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func isEscape(s string) bool {
	return len(s) >= 3 && strings.IndexByte(hexDigits, s[1]) >= 0 && strings.IndexByte(hexDigits, s[2]) >= 0
}

const hexDigits = "0123456789ABCDEFabcdef"

// accountName escapes an account code for a journal, where two spaces end a name, an initial bracket makes a
// posting virtual, and an initial mark is a status.
func accountName(code string) string {
	b := []byte(escape(code, ";"))
	var out strings.Builder
	for i, c := range b {
		first, last := i == 0, i == len(b)-1
		switch {
		case first && strings.IndexByte("([!*=~", c) >= 0, c == ' ' && (first || last || b[i-1] == ' '):
			fmt.Fprintf(&out, "%%%02X", c)
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

// withCommodity formats an amount. Commodities other than letters and currency signs need quotes.
func withCommodity(number, commodity string) string {
	bare := commodity != ""
	for _, r := range commodity {
		bare = bare && (unicode.IsLetter(r) || unicode.Is(unicode.Sc, r))
	}
	switch {
	case commodity == "":
		return number
	case bare:
		return number + " " + commodity
	}
	return number + ` "` + commodity + `"`
}
