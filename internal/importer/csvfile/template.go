package csvfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// template is text with columns: "bank:{account_id}", or "bank:{operation|interest}" with a default for an
// empty column.
type template []part

type part struct {
	text    string // literal if column is empty
	column  string
	orElse  string
	hasElse bool
}

func (c *checker) template(field, text string) template {
	if text == "" {
		c.bad(field, "is missing: text with columns in braces, such as bank:{account_id}")
		return nil
	}
	t, err := parseTemplate(text)
	if err != nil {
		c.bad(field, "%s", err)
	}
	return t
}

func parseTemplate(text string) (t template, err error) {
	for rest := text; rest != ""; {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			return append(t, part{text: rest}), nil
		}
		if open > 0 {
			t = append(t, part{text: rest[:open]})
		}
		end := strings.IndexAny(rest[open+1:], "{}")
		if rest[open] == '}' || end < 0 || rest[open+1+end] == '{' {
			return nil, fmt.Errorf("braces must come in pairs around a column: %s", text)
		}
		inside := rest[open+1 : open+1+end]
		p := part{}
		p.column, p.orElse, p.hasElse = strings.Cut(inside, "|")
		if p.column == "" {
			return nil, fmt.Errorf("{%s} names no column: %s", inside, text)
		}
		t, rest = append(t, p), rest[open+1+end+1:]
	}
	return t, nil
}

func (t template) columns() []string {
	var names []string
	for _, p := range t {
		if p.column != "" {
			names = append(names, p.column)
		}
	}
	return names
}

// fill inserts a row's values. empty is a required column without a value.
func (t template) fill(value func(column string) string) (text, empty string) {
	var b strings.Builder
	for _, p := range t {
		v := p.text
		if p.column != "" {
			v = strings.TrimSpace(value(p.column))
			if v == "" {
				if !p.hasElse {
					empty = cmp.Or(empty, p.column)
				}
				v = p.orElse
			}
		}
		b.WriteString(v)
	}
	return b.String(), empty
}

// pattern is the account pattern that matches the template's results: a part with a column becomes a wildcard.
func (t template) pattern() string {
	var b strings.Builder
	for _, p := range t {
		if p.column != "" {
			b.WriteByte('*')
		}
		b.WriteString(p.text)
	}
	parts := strings.Split(b.String(), ":")
	for i := range parts {
		if strings.Contains(parts[i], "*") {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ":")
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

var dateTokens = []struct{ token, layout string }{
	{"YYYY", "2006"}, {"YY", "06"}, {"MM", "01"}, {"M", "1"}, {"DD", "02"}, {"D", "2"},
	{"hh", "15"}, {"mm", "04"}, {"ss", "05"},
}

// DateLayout converts a format such as YYMMDD to Go's layout.
func DateLayout(format string) (string, error) {
	const example = "such as YYYY-MM-DD, DD.MM.YYYY, D/M/YY or YYYY-MM-DD hh:mm:ss"
	if format == "" {
		return "", fmt.Errorf("is missing, %s", example)
	}
	var b strings.Builder
	seen := map[byte]bool{}
next:
	for rest := format; rest != ""; {
		for _, t := range dateTokens {
			if strings.HasPrefix(rest, t.token) {
				b.WriteString(t.layout)
				seen[t.token[0]] = true
				rest = rest[len(t.token):]
				continue next
			}
		}
		c, size := utf8.DecodeRuneInString(rest)
		if c < utf8.RuneSelf && !strings.ContainsRune(" .-/:T", c) || c == utf8.RuneError {
			return "", fmt.Errorf("contains %q, which has no meaning: %s", c, example)
		}
		b.WriteRune(c) // beyond ASCII, Go's layout has no elements
		rest = rest[size:]
	}
	if !seen['Y'] || !seen['M'] || !seen['D'] {
		return "", fmt.Errorf("must contain year, month and day: %s", example)
	}
	return b.String(), nil
}
