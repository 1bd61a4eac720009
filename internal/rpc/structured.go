package rpc

import (
	"encoding/hex"
	"errors"
	"strings"
	"unicode/utf8"
)

// item is a structured field of one item, as RFC 9651 has it: a value, and parameters in order.
type item struct {
	value      any
	parameters []parameter
}

// parameter of an item. One that is named twice is there once, with the last value.
type parameter struct {
	name  string
	value any
}

// Values are string (a string or display string), bareToken, thousandths and bool.
type (
	bareToken   string
	thousandths int64
)

// text is a value that is one, quoted or a token; else empty.
func (i *item) text() string      { return textOf(i.value) }
func (p *parameter) text() string { return textOf(p.value) }

func textOf(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bareToken:
		return string(v)
	}
	return ""
}

var errMalformed = errors.New("is no structured field of one item (RFC 9651): a value, then parameters behind semicolons")

// parseItem reads a structured field of one item.
func parseItem(field string) (*item, error) {
	s := scanner(strings.Trim(field, " "))
	i := &item{}
	var err error
	if i.value, err = s.value(); err != nil {
		return nil, err
	}
	for s.take(';') {
		s = scanner(strings.TrimLeft(string(s), " "))
		p := parameter{name: s.while(isKeyByte), value: true}
		if p.name == "" || p.name[0] != '*' && (p.name[0] < 'a' || p.name[0] > 'z') {
			return nil, errMalformed
		}
		if s.take('=') {
			if p.value, err = s.value(); err != nil {
				return nil, err
			}
		}
		i.set(p)
	}
	if s != "" {
		return nil, errMalformed
	}
	return i, nil
}

func (i *item) set(p parameter) {
	for n := range i.parameters {
		if i.parameters[n].name == p.name {
			i.parameters[n].value = p.value
			return
		}
	}
	i.parameters = append(i.parameters, p)
}

func isKeyByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("_-.*", c) >= 0
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// scanner is what is left to read.
type scanner string

func (s *scanner) take(c byte) bool {
	if *s == "" || (*s)[0] != c {
		return false
	}
	*s = (*s)[1:]
	return true
}

func (s *scanner) while(is func(byte) bool) string {
	n := 0
	for n < len(*s) && is((*s)[n]) {
		n++
	}
	text := string((*s)[:n])
	*s = (*s)[n:]
	return text
}

func (s *scanner) value() (any, error) {
	if *s == "" {
		return nil, errMalformed
	}
	switch c := (*s)[0]; {
	case c == '"':
		return s.quoted()
	case c == '%':
		return s.display()
	case c == '?':
		return s.boolean()
	case c == '-' || isDigit(c):
		return s.number()
	case c == '*' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
		return bareToken(s.while(isTokenByte)), nil
	}
	return nil, errMalformed
}

// quoted reads a string: printable ASCII between quotes, with \" and \\ inside.
func (s *scanner) quoted() (any, error) {
	var out strings.Builder
	for i := 1; i < len(*s); i++ {
		c := (*s)[i]
		switch {
		case c == '"':
			*s = (*s)[i+1:]
			return out.String(), nil
		case c == '\\':
			if i++; i == len(*s) || (*s)[i] != '"' && (*s)[i] != '\\' {
				return nil, errMalformed
			}
			c = (*s)[i]
		case c < ' ' || c > '~':
			return nil, errors.New(`has characters between quotes that are not ASCII: write %"..." with %xx for their bytes`)
		}
		out.WriteByte(c)
	}
	return nil, errMalformed
}

// display reads a display string: UTF-8, with %xx for whatever is not printable ASCII, for % and for quotes.
func (s *scanner) display() (any, error) {
	if *s = (*s)[1:]; !s.take('"') {
		return nil, errMalformed
	}
	var out []byte
	for i := 0; i < len(*s); i++ {
		c := (*s)[i]
		switch {
		case c == '"':
			*s = (*s)[i+1:]
			if !utf8.Valid(out) {
				return nil, errMalformed
			}
			return string(out), nil
		case c == '%':
			if i+2 >= len(*s) || strings.ToLower(string((*s)[i+1:i+3])) != string((*s)[i+1:i+3]) {
				return nil, errMalformed
			}
			b, err := hex.DecodeString(string((*s)[i+1 : i+3]))
			if err != nil {
				return nil, errMalformed
			}
			out, i = append(out, b...), i+2
			continue
		case c < ' ' || c > '~':
			return nil, errMalformed
		}
		out = append(out, c)
	}
	return nil, errMalformed
}

func (s *scanner) boolean() (any, error) {
	if len(*s) < 2 || (*s)[1] != '0' && (*s)[1] != '1' {
		return nil, errMalformed
	}
	yes := (*s)[1] == '1'
	*s = (*s)[2:]
	return yes, nil
}

// number reads an integer of up to 12 digits, or a decimal of three more behind the point.
func (s *scanner) number() (any, error) {
	negative := s.take('-')
	whole, part := s.while(isDigit), ""
	if s.take('.') {
		if part = s.while(isDigit); part == "" || len(part) > 3 {
			return nil, errMalformed
		}
	}
	if whole == "" || len(whole) > 12 {
		return nil, errMalformed
	}
	var n thousandths
	for _, c := range whole + (part + "000")[:3] {
		n = n*10 + thousandths(c-'0')
	}
	if negative {
		n = -n
	}
	return n, nil
}
