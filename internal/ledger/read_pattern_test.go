package ledger

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func (p pattern) matches(code string) bool {
	m, err := p.matcher()
	return err == nil && m(code)
}

func TestPatternMatchesPartByPart(t *testing.T) {
	for _, c := range []struct {
		text    string
		yes, no []string
	}{
		{"", []string{"user", "a:b:c", "~"}, nil},
		{"**", []string{"user", "a:b:c", "~"}, nil},
		{"*", []string{"user", "a.b"}, []string{"a:b"}},
		{"user:1", []string{"user:1"}, []string{"user:10", "user:1:x", "user", "user:1."}},
		{"user:*", []string{"user:1", "user:a_b"}, []string{"user", "user:1:wallet", "users:1"}},
		{"user:**", []string{"user:1", "user:1:wallet"}, []string{"user", "users:1", "user;"}},
		{"user:*:wallet", []string{"user:1:wallet"},
			[]string{"user:1:walleT", "user:1:2:wallet", "user:wallet", "user:1:wallet:x"}},
		{"*:1:**", []string{"a:1:x", "b:1:x:y"}, []string{"a:1", "a:2:x"}},
		{"a.b:*", []string{"a.b:1"}, []string{"axb:1"}},
		{"*:a.b", []string{"1:a.b"}, []string{"1:axb"}},
		{"*:**", []string{"a:b", "a:b:c"}, []string{"a"}},
	} {
		p, err := parsePattern(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		for _, code := range c.yes {
			if !p.matches(code) {
				t.Errorf("%q does not match %q: %+v", c.text, code, p)
			}
		}
		for _, code := range c.no {
			if p.matches(code) {
				t.Errorf("%q matches %q: %+v", c.text, code, p)
			}
		}
	}
}

func TestPatternWithAMisplacedStarIsRefused(t *testing.T) {
	for _, text := range []string{"user*", "us*er:1", "user:**:x", "**:x", "user:***", "user:1*", ":user", "user:",
		"a::b", ":", "a:\xff", "a\x00"} {
		if _, err := parsePattern(text); !fault.Is(err, fault.FieldInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// matchesParts is an independent implementation of the rule.
func matchesParts(pattern, code []string) bool {
	if len(pattern) > 0 && pattern[len(pattern)-1] == "**" {
		head := pattern[:len(pattern)-1]
		return len(code) > len(head) && matchesParts(head, code[:len(head)])
	}
	if len(pattern) != len(code) {
		return false
	}
	for i := range code {
		if pattern[i] != "*" && pattern[i] != code[i] {
			return false
		}
	}
	return true
}

func TestPatternFollowsTheRule(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "a.b", "a-", "a_", "ab", "1"})
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.SliceOfN(rapid.OneOf(part, rapid.Just("*")), 1, 4).Draw(t, "pattern")
		if rapid.Bool().Draw(t, "rest") {
			pattern = append(pattern, "**")
		}
		code := rapid.SliceOfN(part, 1, 5).Draw(t, "code")
		p, err := parsePattern(strings.Join(pattern, ":"))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := p.matches(strings.Join(code, ":")), matchesParts(pattern, code); got != want {
			t.Fatalf("%q on %q: %v, want %v", pattern, code, got, want)
		}
	})
}

func TestPatternMatchesInMemoryAsInPostgres(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.New(t).AllDSN)
	part := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "a.b", "a-", "a b", "A", "ä", "aé", "日本", "x+", "(a",
		"a|b", "$",
		"a_", "^a", "{1}", "[a]", `a\`, "(?i)a", "***"}), rapid.StringN(1, 4, -1))
	list := rapid.SliceOfN(part, 1, 4)
	matched := 0
	rapid.Check(t, func(r *rapid.T) {
		pattern := rapid.SliceOfN(rapid.OneOf(part, rapid.Just("*")), 1, 4).Draw(r, "pattern")
		codes := []string{"a:b"}
		for _, parts := range rapid.SliceOfN(list, 1, 30).Draw(r, "codes") {
			codes = append(codes, strings.Join(parts, ":"))
		}
		for _, p := range pattern { // a code that may match
			codes[0] += ":" + strings.ReplaceAll(p, "*", "z")
		}
		codes = append(codes, strings.TrimPrefix(codes[0], "a:b:"))
		if rapid.Bool().Draw(r, "rest") {
			pattern = append(pattern, "**")
		}
		p, err := parsePattern(strings.Join(pattern, ":"))
		codes = slices.DeleteFunc(codes, func(c string) bool {
			return strings.ContainsRune(c, 0) ||
				!utf8.ValidString(c)
		})
		if err != nil {
			r.Skip("not a pattern")
		}
		var inPostgres []bool
		if err := pool.QueryRow(t.Context(), `select array(select c.code collate "C" >= $2 and c.code collate "C" < $3
			and c.code collate "C" ~ $4
			from unnest($1::text[]) with ordinality c(code, n) order by n)`, codes,
			p.low, p.high, p.match).Scan(&inPostgres); err != nil {
			r.Fatal(err)
		}
		for i, code := range codes {
			if got := p.matches(code); got != inPostgres[i] {
				r.Fatalf("%q on %q: %v in memory, %v in Postgres: %+v", pattern, code, got, inPostgres[i], p)
			} else if got {
				matched++
			}
		}
	})
	if matched == 0 {
		t.Error("no code matched")
	}
}
