package ledger

import (
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// maxText sorts after every code in byte order: no code begins with this character.
const maxText = "\U0010FFFF"

// pattern is a parsed pattern for queries: the codes in [low, high) that match a regular expression; an empty
// expression matches all of them.
type pattern struct{ low, high, match string }

// parsePattern parses a pattern: parts separated by colons, where "*" matches one part and a final "**" matches
// one or more. Empty: all codes. Returns fault FIELD_INVALID for any other use of "*".
func parsePattern(text string) (pattern, error) {
	if text == "" || text == "**" {
		return pattern{high: maxText}, nil
	}
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return pattern{}, badPattern("is not UTF-8 text")
	}
	parts := strings.Split(text, ":")
	rest := parts[len(parts)-1] == "**"
	if rest {
		parts = parts[:len(parts)-1]
	}
	prefix := 0 // number of parts before the first "*"
	var match strings.Builder
	for i, part := range parts {
		if i > 0 {
			match.WriteByte(':')
		}
		switch {
		case part == "":
			return pattern{}, badPattern("has an empty part")
		case part == "*":
			match.WriteString("[^:]+")
		case strings.Contains(part, "*"):
			return pattern{}, badPattern(`has a "*" inside a part, or a "**" that is not the last part`)
		default:
			writeLiteral(&match, part)
			if prefix == i {
				prefix++
			}
		}
	}
	literal := strings.Join(parts[:prefix], ":")
	if prefix == len(parts) && !rest { // a single code
		return pattern{low: literal, high: literal + "\x01"}, nil
	}
	p := pattern{high: maxText}
	if prefix > 0 {
		p.low, p.high = literal+":", literal+";" // the character after the colon
	}
	switch {
	case prefix == len(parts): // the range suffices
	case rest:
		p.match = "^" + match.String() + ":"
	default:
		p.match = "^" + match.String() + "$"
	}
	return p, nil
}

// matcher returns a function that matches codes as the queries do. The expressions of patterns mean the same to
// Postgres and to regexp.
func (p pattern) matcher() (func(code string) bool, error) {
	expression, err := regexp.Compile(p.match)
	if err != nil {
		return nil, err
	}
	return func(code string) bool {
		return p.low <= code && code < p.high && (p.match == "" || expression.MatchString(code))
	}, nil
}

// writeLiteral escapes a part for a regular expression: everything except letters and digits.
func writeLiteral(b *strings.Builder, part string) {
	for _, r := range part {
		if r < utf8.RuneSelf && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
}

func badPattern(why string) error {
	return fault.InvalidField("pattern", "%s", why)
}
