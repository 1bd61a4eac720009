package rpc

import (
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// item is an Item of a structured field (RFC 9651): a value with parameters.
type item struct {
	bare
	parameters []parameter
}

// bare is a value: its text, without quotes, and what kind it is of.
type bare struct {
	kind rune // '"' a text, 't' a token, '?' a flag, '0' an integer
	text string
}

type parameter struct {
	name  string
	value bare
}

// parseItem reads an item. A field that was sent several times has to be joined, or refused, before. What the
// RFC would read as the last of several parameters of one name is refused here. problem is empty, or says
// what is wrong.
func parseItem(s string) (it item, problem string) {
	r := &fieldReader{strings.Trim(s, " ")}
	it.bare = r.bare()
	for r.problem() == "" && r.skip(';') {
		r.left = strings.TrimLeft(r.left, " ")
		p := parameter{name: r.while(isParameterName), value: bare{'?', "1"}}
		if p.name == "" || p.name[0] >= '0' && p.name[0] <= '9' || p.name[0] == '-' || p.name[0] == '.' || p.name[0] == '_' {
			return it, "has a parameter without a name"
		}
		if r.skip('=') {
			p.value = r.bare()
		}
		for _, other := range it.parameters {
			if other.name == p.name {
				return it, "has the parameter " + p.name + " twice"
			}
		}
		it.parameters = append(it.parameters, p)
	}
	switch {
	case r.problem() != "":
		return it, r.problem()
	case r.left != "":
		return it, "is no single value with parameters (RFC 9651)"
	}
	return it, ""
}

// fieldReader reads on from what is left. What it cannot read makes it stand still, at badField.
type fieldReader struct{ left string }

const badField = "\x00"

func (r *fieldReader) problem() string {
	if r.left == badField {
		return "is no structured field (RFC 9651): texts in double quotes, of printable ASCII"
	}
	return ""
}

func (r *fieldReader) bad() bare { r.left = badField; return bare{} }

func (r *fieldReader) skip(c byte) bool {
	if r.left == "" || r.left[0] != c {
		return false
	}
	r.left = r.left[1:]
	return true
}

// while takes characters as long as they are of a kind.
func (r *fieldReader) while(is func(c byte) bool) string {
	n := 0
	for n < len(r.left) && is(r.left[n]) {
		n++
	}
	taken := r.left[:n]
	r.left = r.left[n:]
	return taken
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isParameterName(c byte) bool {
	return c >= 'a' && c <= 'z' || isDigit(c) || strings.IndexByte("_-.*", c) >= 0
}

func isTokenPart(c byte) bool {
	return isLetter(c) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}

// bare reads a text, a display text (which may be other than ASCII), a token, an integer or a flag.
func (r *fieldReader) bare() bare {
	if r.left == "" {
		return r.bad()
	}
	switch c := r.left[0]; {
	case c == '"':
		return r.text()
	case c == '%':
		return r.displayText()
	case c == '?' && len(r.left) > 1 && (r.left[1] == '0' || r.left[1] == '1'):
		flag := r.left[1:2]
		r.left = r.left[2:]
		return bare{'?', flag}
	case isLetter(c) || c == '*':
		return bare{'t', r.while(isTokenPart)}
	case isDigit(c):
		return bare{'0', r.while(isDigit)}
	}
	return r.bad()
}

func (r *fieldReader) text() bare {
	var b strings.Builder
	for i := 1; i < len(r.left); i++ {
		c := r.left[i]
		switch {
		case c == '"':
			r.left = r.left[i+1:]
			return bare{'"', b.String()}
		case c == '\\':
			if i++; i == len(r.left) || r.left[i] != '"' && r.left[i] != '\\' {
				return r.bad()
			}
			c = r.left[i]
		case c < ' ' || c > '~':
			return r.bad()
		}
		b.WriteByte(c)
	}
	return r.bad()
}

// displayText reads %"...", in which %xx stands for a byte of UTF-8.
func (r *fieldReader) displayText() bare {
	if !strings.HasPrefix(r.left, `%"`) {
		return r.bad()
	}
	inside, rest, closed := strings.Cut(r.left[2:], `"`)
	var b []byte
	for i := 0; i < len(inside); i++ {
		c := inside[i]
		if c < ' ' || c > '~' {
			return r.bad()
		}
		if c == '%' {
			digits := inside[i+1 : min(i+3, len(inside))]
			x, err := hex.DecodeString(digits)
			if err != nil || len(x) != 1 || strings.ToLower(digits) != digits {
				return r.bad()
			}
			c = x[0]
			i += 2
		}
		b = append(b, c)
	}
	if !closed || !utf8.Valid(b) {
		return r.bad()
	}
	r.left = rest
	return bare{'"', string(b)}
}
