package consumer

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A text that Postgres rejects would make the message redeliver forever.
func TestTextsAreMadeAcceptableToPostgres(t *testing.T) {
	for _, s := range []string{"", "plain", "a\x00b", "\x00", "\xff\xfe", "\xff\x00\xfe", strings.Repeat("é", 20), "a" +
		strings.Repeat("日本", 20), strings.Repeat("\xff", 40)} {
		got := cut(s, 10)
		if len(got) > 10 || !utf8.ValidString(got) || strings.Contains(got, "\x00") || (s == "") != (got == "") {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := cut("plain", 5); got != "plain" {
		t.Errorf("a valid text became %q", got)
	}
}
