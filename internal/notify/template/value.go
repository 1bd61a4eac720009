package template

import (
	"encoding/json"
	"fmt"
	"math"
	"net/mail"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/language"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// maxValues limits all strings of one message together, in bytes.
const maxValues = 256 << 10

// formatted is an amount or a time, in the formats that a template can print, the default first. A missing value is
// empty, so `if` treats it as false.
type formatted []string

// String returns the default format.
func (s formatted) String() string { return s.at(0) }

func (s formatted) at(i int) string {
	if i >= len(s) {
		return ""
	}
	return s[i]
}

var asset = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,31}$`)

// binder validates values against declared variables, and converts them for rendering.
type binder struct {
	locale   language.Tag
	digits   digits
	problems problems
	bytes    int
}

// bind accepts values as encoding/json decodes them: string, float64, json.Number, bool, []any, map[string]any; also
// int64.
func (b *binder) bind(want []Variable, values map[string]any) map[string]any {
	return b.record("", want, values)
}

func (b *binder) record(prefix string, want []Variable, values map[string]any) map[string]any {
	out := make(map[string]any, len(want))
	for i := range want {
		v := &want[i]
		path := prefix + v.Name
		value, ok := values[v.Name]
		switch {
		case !ok || value == nil:
			if !v.Optional {
				b.problems.add(path, "is missing")
			}
			out[v.Name] = v.zeroValue()
		case v.List:
			out[v.Name] = b.list(path, v, value)
		default:
			out[v.Name] = b.one(path, v, value)
		}
	}
	for _, name := range sortedKeys(values) {
		if _, ok := out[name]; !ok {
			if !identifier.MatchString(name) {
				name = "a name"
			}
			b.problems.add(prefix+name, "is not a variable of the template")
		}
	}
	return out
}

// zeroValue returns the value of a missing optional variable.
func (v *Variable) zeroValue() any {
	if v.List {
		return []any{}
	}
	switch v.Kind {
	case Integer:
		return int64(0)
	case Bool:
		return false
	case Amount, Time:
		return formatted{}
	case Record:
		out := map[string]any{}
		for i := range v.Fields {
			out[v.Fields[i].Name] = v.Fields[i].zeroValue()
		}
		return out
	default:
		return ""
	}
}

func (b *binder) list(path string, v *Variable, value any) any {
	items, ok := value.([]any)
	if !ok {
		b.problems.add(path, "must be a list")
		return []any{}
	}
	if len(items) > v.items() {
		b.problems.add(path, "must have at most %d items", v.items())
		return []any{}
	}
	out := make([]any, len(items))
	for i, item := range items {
		out[i] = b.one(fmt.Sprintf("%s[%d]", path, i), v, item)
	}
	return out
}

func (b *binder) one(path string, v *Variable, value any) any {
	var problem string
	var out any
	switch v.Kind {
	case String:
		out, problem = b.text(v, value)
	case Integer:
		out, problem = integer(value)
	case Bool:
		out, problem = boolean(value)
	case URL:
		out, problem = b.url(value)
	case Amount:
		out, problem = b.amount(v, value)
	case Time:
		out, problem = b.time(v, value)
	case Record:
		fields, ok := value.(map[string]any)
		if ok {
			return b.record(path+".", v.Fields, fields)
		}
		problem = "must be an object"
	}
	if problem != "" {
		b.problems.add(path, "%s", problem)
		return v.zeroValue()
	}
	return out
}

func (b *binder) text(v *Variable, value any) (any, string) {
	s, ok := value.(string)
	if !ok {
		return nil, "must be a string"
	}
	if b.bytes += len(s); b.bytes > maxValues {
		return nil, "is too long: all strings together must be at most 256 KiB"
	}
	if !utf8.ValidString(s) {
		return nil, "must be UTF-8"
	}
	if n := utf8.RuneCountInString(s); n > v.length() {
		return nil, fmt.Sprintf("must be at most %d characters", v.length())
	}
	for _, r := range s {
		if breaks(r) && !(v.Multiline && (r == '\n' || r == '\t')) {
			return nil, "must not contain line breaks or control characters"
		}
	}
	return s, ""
}

// breaks reports whether r is a control character or a Unicode line or paragraph separator.
func breaks(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }

func plain(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, breaks) }

func integer(value any) (any, string) {
	const problem = "must be a 64-bit integer"
	switch n := value.(type) {
	case int64:
		return n, ""
	case float64:
		// Beyond 2^53 a float64 is ambiguous.
		if n != math.Trunc(n) || math.Abs(n) > 1<<53 {
			return nil, problem + ": send large ones as a string"
		}
		return int64(n), ""
	case json.Number:
		return parseInteger(string(n), problem)
	case string:
		return parseInteger(n, problem)
	}
	return nil, problem
}

func parseInteger(s, problem string) (any, string) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return nil, problem
	}
	return n, ""
}

func boolean(value any) (any, string) {
	if v, ok := value.(bool); ok {
		return v, ""
	}
	return nil, "must be true or false"
}

// url accepts absolute http, https and mailto URLs, which are safe as links.
func (b *binder) url(value any) (any, string) {
	const problem = "must be an http, https or mailto URL of at most 2048 characters"
	s, ok := value.(string)
	if !ok || len(s) > 2048 || s == "" {
		return nil, problem
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || strings.IndexByte("\"<>\\^`{|}", s[i]) >= 0 {
			return nil, problem + ", percent-encoded"
		}
	}
	u, err := url.Parse(s)
	if err != nil {
		return nil, problem
	}
	b.bytes += len(s)
	switch u.Scheme {
	case "http", "https":
		if u.Hostname() == "" || u.User != nil {
			return nil, problem + ", with a host and without a password"
		}
	case "mailto":
		if _, err := mail.ParseAddress(u.Opaque); err != nil {
			return nil, problem
		}
	default:
		return nil, problem
	}
	return s, ""
}

// amount accepts "12.30", or {"amount": "12.30", "asset": "CNY"}. All decimals are kept.
func (b *binder) amount(v *Variable, value any) (any, string) {
	const problem = `must be a decimal such as "12.30", or {"amount": "12.30", "asset": "CNY"}`
	number, code := value, v.Asset
	if object, ok := value.(map[string]any); ok {
		number, ok = object["amount"]
		if a, has := object["asset"]; has {
			if code, ok = a.(string); !ok || !asset.MatchString(code) {
				return nil, problem
			}
		}
		for name := range object {
			ok = ok && (name == "amount" || name == "asset")
		}
		if !ok {
			return nil, problem
		}
	}
	s, ok := number.(string)
	if !ok {
		return nil, problem
	}
	if _, err := amount.ParseDecimal(s); err != nil {
		return nil, problem
	}
	if code == "" {
		return nil, "must name its asset, because the template does not"
	}
	text := b.digits.format(s)
	return formatted{text + "\u00a0" + code, text, code}, ""
}

func (b *binder) time(v *Variable, value any) (any, string) {
	const problem = "must be a time such as 2026-01-31T12:00:00Z"
	var t time.Time
	switch x := value.(type) {
	case time.Time:
		t = x
	case string:
		var err error
		if t, err = time.Parse(time.RFC3339, x); err != nil {
			return nil, problem
		}
	default:
		return nil, problem
	}
	if zone, _ := zoneOf(v.Zone); zone != nil {
		t = t.In(zone)
	}
	if t.Year() < 1 || t.Year() > 9999 {
		return nil, problem
	}
	parts, _ := parsePattern(v.Pattern) // checked by compile
	return formatted{show(t, parts, b.locale), show(t, []part{{word: "date"}}, b.locale),
		show(t, []part{{word: "time"}}, b.locale)}, ""
}
