package consumer

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// What the database does not take as text would keep a message coming again for ever.
func TestTextsAreSuchAsTheDatabaseTakes(t *testing.T) {
	for _, s := range []string{"", "plain", "a\x00b", "\x00", "\xff\xfe", "\xff\x00\xfe", strings.Repeat("é", 20), "a" +
		strings.Repeat("日本", 20), strings.Repeat("\xff", 40)} {
		got := cut(s, 10)
		if len(got) > 10 || !utf8.ValidString(got) || strings.Contains(got, "\x00") || (s == "") != (got == "") {
			t.Errorf("%q became %q", s, got)
		}
	}
	if got := cut("plain", 5); got != "plain" {
		t.Errorf("what is good became %q", got)
	}
}
