package access

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Scope restricts a role to an operation, and to requests whose fields match patterns. For example
// ledger.transfer(from=user:*, to=merchant:*), stock.*(item=sku-*), ledger.get_*.
type Scope struct {
	operation pattern
	fields    []fieldPattern // sorted by name
}

// pattern is a text, or with rest all texts that begin with it.
type pattern struct {
	text string
	rest bool
}

type fieldPattern struct {
	name string
	pattern
}

// Value is the text of a field of a request, with its path.
type Value struct{ Path, Text string }

// Bounds of scopes.
const (
	MaxScopes    = 100 // of a key
	maxScopeSize = 512 // bytes
)

var (
	scopeOperation = regexp.MustCompile(`^[a-z]+\.([a-z_]+\*?|\*)$`)
	scopeField     = regexp.MustCompile(`^[a-z_]+$`)
)

// ParseScope parses OPERATION or OPERATION(FIELD=PATTERN, ...). A * at the end of the operation or of a pattern stands
// for any rest.
func ParseScope(s string) (Scope, error) {
	if len(s) > maxScopeSize {
		return Scope{}, fmt.Errorf("a scope has at most %d bytes", maxScopeSize)
	}
	operation, rest, conditional := strings.Cut(s, "(")
	if !scopeOperation.MatchString(operation) {
		return Scope{}, fmt.Errorf("%q is not an operation such as ledger.transfer, ledger.get_* or ledger.*",
			operation)
	}
	scope := Scope{operation: newPattern(operation)}
	if !conditional {
		return scope, nil
	}
	inner, closed := strings.CutSuffix(rest, ")")
	if !closed {
		return Scope{}, fmt.Errorf("%s( must end with a closing parenthesis", operation)
	}
	for text := range strings.SplitSeq(inner, ",") {
		f, err := parseFieldPattern(strings.Trim(text, " "))
		if err != nil {
			return Scope{}, err
		}
		if slices.ContainsFunc(scope.fields, func(other fieldPattern) bool { return other.name == f.name }) {
			return Scope{}, fmt.Errorf("field %s occurs twice: write two scopes", f.name)
		}
		scope.fields = append(scope.fields, f)
	}
	slices.SortFunc(scope.fields, func(a, b fieldPattern) int { return strings.Compare(a.name, b.name) })
	return scope, nil
}

func parseFieldPattern(s string) (fieldPattern, error) {
	name, text, ok := strings.Cut(s, "=")
	switch p := newPattern(text); {
	case !ok || !scopeField.MatchString(name):
		return fieldPattern{}, fmt.Errorf("%q must be FIELD=PATTERN, such as from=user:*", s)
	case text == "" || strings.ContainsRune(p.text, '*'):
		return fieldPattern{}, fmt.Errorf("%s=%s: a pattern is a non-empty text, with a * only at its end", name, text)
	case !utf8.ValidString(text) || strings.ContainsFunc(text, reserved):
		return fieldPattern{}, fmt.Errorf("%s=%s: a pattern has no spaces, parentheses or control characters",
			name, text)
	default:
		return fieldPattern{name, p}, nil
	}
}

func reserved(r rune) bool { return r == '(' || r == ')' || unicode.IsSpace(r) || !unicode.IsPrint(r) }

func newPattern(s string) pattern {
	text, rest := strings.CutSuffix(s, "*")
	return pattern{text, rest}
}

func (p pattern) String() string {
	if p.rest {
		return p.text + "*"
	}
	return p.text
}

func (p pattern) matches(s string) bool {
	return s == p.text || p.rest && strings.HasPrefix(s, p.text)
}

// includes reports whether p matches all that o matches.
func (p pattern) includes(o pattern) bool {
	return p.rest && strings.HasPrefix(o.text, p.text) || !o.rest && p.text == o.text
}

// String returns the normal form.
func (s Scope) String() string {
	if len(s.fields) == 0 {
		return s.operation.String()
	}
	fields := make([]string, len(s.fields))
	for i, f := range s.fields {
		fields[i] = f.name + "=" + f.String()
	}
	return s.operation.String() + "(" + strings.Join(fields, ", ") + ")"
}

// includes reports whether s allows all that o allows.
func (s Scope) includes(o Scope) bool {
	return s.operation.includes(o.operation) && !slices.ContainsFunc(s.fields, func(f fieldPattern) bool {
		i := slices.IndexFunc(o.fields, func(of fieldPattern) bool { return of.name == f.name })
		return i < 0 || !f.includes(o.fields[i].pattern)
	})
}

// refuses returns the first field in which a request does not match the scope, with the first value that differs. A
// field must have at least one value, and all its values must match: an empty field could mean all values.
func (s Scope) refuses(values func(field string) []Value) (f fieldPattern, v Value, refused bool) {
	for _, f := range s.fields {
		found := values(f.name)
		i := slices.IndexFunc(found, func(v Value) bool { return !f.matches(v.Text) })
		switch {
		case i >= 0:
			return f, found[i], true
		case len(found) == 0:
			return f, Value{Path: f.name}, true
		}
	}
	return fieldPattern{}, Value{}, false
}

// Scopes restrict the role of a caller. Nil: no restriction.
type Scopes struct{ list []Scope }

// ParseScopes parses the scopes of a key. It returns nil for no texts.
func ParseScopes(texts []string) (*Scopes, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	if len(texts) > MaxScopes {
		return nil, fmt.Errorf("there are %d scopes, at most %d are allowed", len(texts), MaxScopes)
	}
	all := &Scopes{}
	for _, text := range texts {
		scope, err := ParseScope(text)
		if err != nil {
			return nil, err
		}
		all.list = append(all.list, scope)
	}
	return all, nil
}

// Covers reports whether the first scope covers an operation whose request has these fields.
func (s *Scopes) Covers(operation string, fields map[string]bool) bool {
	return s.list[0].operation.matches(operation) &&
		!slices.ContainsFunc(s.list[0].fields, func(f fieldPattern) bool { return !fields[f.name] })
}

// Texts returns the scopes in their normal form; nil: no restriction.
func (s *Scopes) Texts() (texts []string) {
	if s != nil {
		for _, scope := range s.list {
			texts = append(texts, scope.String())
		}
	}
	return texts
}

// of returns the scopes whose operation matches.
func (s *Scopes) of(operation string) (found []Scope) {
	for _, scope := range s.list {
		if scope.operation.matches(operation) {
			found = append(found, scope)
		}
	}
	return found
}

// AnyText is the value of a field whose value is not known yet: no pattern but * covers it.
const AnyText = "\x00"

// Check refuses an operation that no scope covers. values returns the values of a field of its request. Returns fault
// PERMISSION_DENIED.
func (s *Scopes) Check(operation string, values func(field string) []Value) error {
	if s == nil {
		return nil
	}
	own := s.of(operation)
	if len(own) == 0 {
		return PermissionDenied.New("no scope of the caller covers %s: it has %s",
			operation, strings.Join(s.Texts(), "; "))
	}
	var denied error
	for _, scope := range own {
		f, v, refused := scope.refuses(values)
		if !refused {
			return nil
		}
		if denied == nil {
			problem := fmt.Sprintf("%q is outside of the scope %s", v.Text, scope)
			switch v.Text {
			case "":
				problem = fmt.Sprintf("must be set, and match %s: the caller's scope is %s", f.pattern, scope)
			case AnyText:
				problem = fmt.Sprintf("a reference fills it in, and the scope %s does not cover every value", scope)
			}
			denied = PermissionDenied.New("%s: %s", v.Path, problem).WithField(v.Path, problem)
		}
	}
	return denied
}

// includes reports whether s allows all that o allows.
func (s *Scopes) includes(o *Scopes) bool {
	if s == nil || o == nil {
		return s == nil
	}
	return !slices.ContainsFunc(o.list, func(inner Scope) bool {
		return !slices.ContainsFunc(s.list, func(outer Scope) bool { return outer.includes(inner) })
	})
}
