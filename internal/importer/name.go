package importer

import (
	"strings"
	"unicode/utf8"
)

// BadName returns the rule that a biz_no or type violates, or "".
func BadName(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return "must be printable ASCII"
		}
	}
	return ""
}

// BadAccount returns the rule that an account code violates, or "".
func BadAccount(s string) string {
	for part := range strings.SplitSeq(s, ":") {
		if part == "" {
			return "has an empty part between colons"
		}
	}
	for _, c := range s {
		if c < ' ' || c == 0x7f || c == utf8.MaxRune || c == '*' {
			return `has a control character, U+10FFFF or "*" in it`
		}
	}
	return ""
}
