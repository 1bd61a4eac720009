package importer

import (
	"strings"
	"unicode/utf8"
)

// BadName tells what the ledger would not like about a biz_no or a type; empty: nothing.
func BadName(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return "must be printable ASCII"
		}
	}
	return ""
}

// BadAccount tells what the ledger would not like about an account code; empty: nothing.
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
