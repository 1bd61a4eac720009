package template

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Limits of a definition, in bytes or number of items.
const (
	MaxName      = 128
	MaxSubject   = 1_000
	MaxText      = 64 << 10
	MaxHTML      = 256 << 10
	MaxVariables = 100
	MaxProviders = 20
	MaxParams    = 50
)

// Limits of variables. Strings are limited in characters, not bytes.
const (
	DefaultLength = 200
	MaxLength     = 10_000
	DefaultItems  = 100
	MaxItems      = 1_000
)

// Definition is one version of a template in one locale, stored as JSON. It is immutable.
type Definition struct {
	Subject   string     `json:"subject,omitempty"` // of an e-mail; title of a push message
	Text      string     `json:"text,omitempty"`
	HTML      string     `json:"html,omitempty"`
	Variables []Variable `json:"variables,omitempty"`
	// Providers are references to templates stored at providers, by the name of the provider in the configuration.
	Providers map[string]Provider `json:"providers,omitempty"`

	// Defaults for messages. Empty, nil or 0: no default here.
	OnUnknown   string `json:"on_unknown,omitempty"` // park, resend or never
	Priority    *int16 `json:"priority,omitempty"`
	MaxAttempts int32  `json:"max_attempts,omitempty"`
	LifeMs      int64  `json:"life_ms,omitempty"`
}

// Life returns for how long after acceptance a message is tried; 0: no default here.
func (d *Definition) Life() time.Duration { return time.Duration(d.LifeMs) * time.Millisecond }

// Provider refers to a template stored at a provider. The values of Params are templates like Text.
type Provider struct {
	ID     string       `json:"id"`
	Params []send.Param `json:"params,omitempty"`
}

// Kind is the type of a variable.
type Kind string

const (
	String  Kind = "string"
	Integer Kind = "integer"
	Amount  Kind = "amount"
	Time    Kind = "time"
	URL     Kind = "url"
	Bool    Kind = "bool"
	Record  Kind = "record"
)

var kinds = []Kind{String, Integer, Amount, Time, URL, Bool, Record}

// Variable declares a variable of a template.
type Variable struct {
	Name     string `json:"name"`
	Kind     Kind   `json:"kind"`
	Optional bool   `json:"optional,omitempty"`
	// List declares a list of at most MaxItems values.
	List     bool  `json:"list,omitempty"`
	MaxItems int32 `json:"max_items,omitempty"` // 0: DefaultItems
	// MaxLength limits strings, in characters; 0: DefaultLength. Multiline strings may contain line breaks.
	MaxLength int32 `json:"max_length,omitempty"`
	Multiline bool  `json:"multiline,omitempty"`
	// Asset is the asset of amounts that are given without one.
	Asset string `json:"asset,omitempty"`
	// Pattern and Zone format a time, see pattern.go. Without Zone the time keeps its own offset.
	Pattern string `json:"pattern,omitempty"`
	Zone    string `json:"zone,omitempty"`
	// Fields of a record. A field cannot be a record or a list.
	Fields []Variable `json:"fields,omitempty"`
}

// Problem is one error, with the path of the field, such as variables[2].name.
type Problem struct{ Path, Text string }

type problems []Problem

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, Problem{path, fmt.Sprintf(format, args...)})
}

var identifier = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// GoodName reports whether s is a valid template name.
func GoodName(s string) bool { return len(s) <= MaxName && goodName.MatchString(s) }

var goodName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`)

// Check returns all problems of a definition.
func (d *Definition) Check(channel send.Channel) []Problem {
	_, p := compile(d, channel, "en")
	return p
}

// checkFields checks everything except the templates' text.
func (d *Definition) checkFields(channel send.Channel) (p problems) {
	d.checkParts(channel, &p)
	if len(d.Variables) > MaxVariables {
		p.add("variables", "must have at most %d items", MaxVariables)
		return p
	}
	checkVariables("variables", d.Variables, true, &p)
	if !slices.Contains([]string{"", "park", "resend", "never"}, d.OnUnknown) {
		p.add("on_unknown", "must be park, resend or never")
	}
	if d.Priority != nil && (*d.Priority < 0 || *d.Priority > 2) {
		p.add("priority", "must be PRIORITY_HIGH, PRIORITY_NORMAL or PRIORITY_LOW")
	}
	if d.MaxAttempts < 0 || d.MaxAttempts > 100 {
		p.add("max_attempts", "must be at most 100")
	}
	if d.LifeMs < 0 || d.Life() > MaxLife {
		p.add("give_up_after", "must be at most %s", MaxLife)
	}
	return p
}

// MaxLife limits Life.
const MaxLife = 7 * 24 * time.Hour

func (d *Definition) checkParts(channel send.Channel, p *problems) {
	for _, part := range []struct {
		path, text string
		most       int
		allowed    bool
	}{
		{"subject", d.Subject, MaxSubject, channel == send.Email || channel == send.Push},
		{"text", d.Text, MaxText, true},
		{"html", d.HTML, MaxHTML, channel == send.Email},
	} {
		switch {
		case part.text != "" && !part.allowed:
			p.add(part.path, "must be empty for %s", channel)
		case len(part.text) > part.most:
			p.add(part.path, "must be at most %d bytes", part.most)
		case !utf8.ValidString(part.text) || strings.ContainsRune(part.text, 0):
			p.add(part.path, "must be UTF-8 without NUL")
		}
	}
	switch channel {
	case send.Email:
		if d.Subject == "" {
			p.add("subject", "is missing")
		}
		if d.Text == "" && d.HTML == "" {
			p.add("text", "is missing: set text or html")
		}
	case send.SMS:
		if d.Text == "" && len(d.Providers) == 0 {
			p.add("text", "is missing: set text or provider_templates")
		}
	case send.Push:
		if d.Text == "" && d.Subject == "" {
			p.add("text", "is missing: set text or subject")
		}
	default:
		p.add("channel", "must be sms, email or push: other channels have no templates")
	}
	d.checkProviders(channel, p)
}

func (d *Definition) checkProviders(channel send.Channel, p *problems) {
	if len(d.Providers) > 0 && channel != send.SMS {
		p.add("provider_templates", "must be empty unless channel is sms")
	}
	if len(d.Providers) > MaxProviders {
		p.add("provider_templates", "must have at most %d entries", MaxProviders)
	}
	for _, name := range sortedKeys(d.Providers) {
		path, v := providerPath(name), d.Providers[name]
		if len(name) == 0 || len(name) > 64 {
			p.add(path, "must have a name of 1 to 64 bytes")
		}
		if len(v.ID) == 0 || len(v.ID) > 128 || !plain(v.ID) {
			p.add(path+".id", "must be 1 to 128 bytes without control characters")
		}
		if len(v.Params) > MaxParams {
			p.add(path+".params", "must have at most %d items", MaxParams)
		}
		for i, param := range v.Params {
			if len(param.Name) > 64 || !plain(param.Name) {
				p.add(fmt.Sprintf("%s.params[%d].name", path, i), "must be at most 64 bytes without control characters")
			}
			if len(param.Value) > MaxSubject || !utf8.ValidString(param.Value) || strings.ContainsRune(param.Value, 0) {
				p.add(fmt.Sprintf("%s.params[%d].value", path, i), "must be UTF-8 of at most %d bytes", MaxSubject)
			}
		}
	}
}

// providerPath returns the path of a provider's template in a request.
func providerPath(name string) string { return fmt.Sprintf("provider_templates[%q]", name) }

func checkVariables(path string, list []Variable, top bool, p *problems) {
	seen := map[string]bool{}
	for i := range list {
		v, at := &list[i], fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !identifier.MatchString(v.Name):
			p.add(at+".name", "must be at most 64 characters, a-z, 0-9 and _, beginning with a letter")
		case seen[v.Name]:
			p.add(at+".name", "is used twice: %s", v.Name)
		}
		seen[v.Name] = true
		v.check(at, top, p)
	}
}

func (v *Variable) check(at string, top bool, p *problems) {
	only := func(path string, set bool, k Kind) {
		if set && v.Kind != k {
			p.add(at+"."+path, "must be empty unless kind is %s", k)
		}
	}
	only("max_length", v.MaxLength != 0, String)
	only("multiline", v.Multiline, String)
	only("asset", v.Asset != "", Amount)
	only("pattern", v.Pattern != "", Time)
	only("zone", v.Zone != "", Time)
	only("fields", len(v.Fields) > 0, Record)
	if !slices.Contains(kinds, v.Kind) {
		p.add(at+".kind", "must be set to the kind of the variable")
	}
	if v.MaxLength < 0 || v.MaxLength > MaxLength {
		p.add(at+".max_length", "must be at most %d", MaxLength)
	}
	if v.MaxItems < 0 || v.MaxItems > MaxItems || v.MaxItems > 0 && !v.List {
		p.add(at+".max_items", "must be at most %d, and only set when list is true", MaxItems)
	}
	if v.Asset != "" && !asset.MatchString(v.Asset) {
		p.add(at+".asset", "is not an asset code, such as CNY")
	}
	if _, err := parsePattern(v.Pattern); err != nil {
		p.add(at+".pattern", "%s", err)
	}
	if _, err := zoneOf(v.Zone); err != nil {
		p.add(at+".zone", "is not a time zone, such as Asia/Shanghai")
	}
	if !top && (v.List || v.Kind == Record) {
		p.add(at, "must not be a list or a record inside a record")
		return
	}
	if v.Kind == Record {
		if len(v.Fields) == 0 || len(v.Fields) > MaxVariables {
			p.add(at+".fields", "must have 1 to %d items", MaxVariables)
			return
		}
		checkVariables(at+".fields", v.Fields, false, p)
	}
}

func (v *Variable) items() int {
	if v.MaxItems == 0 {
		return DefaultItems
	}
	return int(v.MaxItems)
}

func (v *Variable) length() int {
	if v.MaxLength == 0 {
		return DefaultLength
	}
	return int(v.MaxLength)
}
