package template

import (
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // so that zones do not depend on the machine

	"golang.org/x/text/language"
)

// fields are the fields of a time pattern, as in Unicode TS 35, with Go's layout for each. Other letters must be in
// single quotes; all other characters are literal. The words date, time and datetime mean the locale's numeric format.
var fields = map[string]string{
	"yyyy": "2006", "yy": "06", "MM": "01", "M": "1", "dd": "02", "d": "2", "HH": "15",
	"hh": "03", "h": "3", "mm": "04", "ss": "05", "a": "PM", "z": "MST",
	"H": "", // Go's layouts have no such field
}

// part is a part of a pattern: a literal, a field, or a word.
type part struct{ literal, layout, word string }

func parsePattern(s string) (parts []part, err error) {
	if len(s) > 64 || !plain(s) {
		return nil, fmt.Errorf("must be at most 64 bytes without control characters")
	}
	switch s {
	case "":
		return []part{{word: "datetime"}}, nil
	case "date", "time", "datetime":
		return []part{{word: s}}, nil
	}
	for i := 0; i < len(s); {
		n := i
		switch c := s[i]; {
		case c == '\'':
			literal, size := quoted(s[i:])
			if size == 0 {
				return nil, fmt.Errorf("has a quote that is not closed")
			}
			parts = append(parts, part{literal: literal})
			i += size
		case isLetter(c):
			for n < len(s) && s[n] == c {
				n++
			}
			layout, ok := fields[s[i:n]]
			if !ok {
				return nil, fmt.Errorf("contains %s; use only yyyy yy MM M dd d HH H hh h mm ss a z, "+
					"and quote other letters", s[i:n])
			}
			if layout == "" {
				layout = "H"
			}
			parts = append(parts, part{layout: layout})
			i = n
		default:
			for n < len(s) && s[n] != '\'' && !isLetter(s[n]) {
				n++
			}
			parts = append(parts, part{literal: s[i:n]})
			i = n
		}
	}
	return parts, nil
}

// quoted parses a quoted literal, in which two quotes are one. size is 0 if the closing quote is missing.
func quoted(s string) (literal string, size int) {
	if strings.HasPrefix(s, "''") {
		return "'", 2
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '\'':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '\'':
			b.WriteByte('\'')
			i++
		default:
			return b.String(), i + 1
		}
	}
	return "", 0
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// show formats a time by a parsed pattern.
func show(t time.Time, parts []part, locale language.Tag) string {
	var b strings.Builder
	for _, p := range parts {
		switch {
		case p.word == "date":
			b.WriteString(t.Format(localDate(locale)))
		case p.word == "time":
			b.WriteString(t.Format("15:04"))
		case p.word == "datetime":
			b.WriteString(t.Format(localDate(locale) + " 15:04"))
		case p.layout == "H":
			fmt.Fprint(&b, t.Hour())
		case p.layout != "":
			b.WriteString(t.Format(p.layout))
		default:
			b.WriteString(p.literal)
		}
	}
	return b.String()
}

// localDates are CLDR's numeric date formats with a four-digit year. Other locales use ISO 8601.
var localDates = map[string]string{
	"en": "02/01/2006", "en-US": "01/02/2006", "en-CA": "2006-01-02", "en-ZA": "2006/01/02",
	"zh": "2006/1/2", "zh-HK": "2/1/2006", "ja": "2006/01/02", "ko": "2006. 1. 2.",
	"de": "02.01.2006", "fr": "02/01/2006", "fr-CA": "2006-01-02", "es": "2/1/2006", "it": "02/01/2006",
	"pt": "02/01/2006", "nl": "02-01-2006",
	"ru": "02.01.2006", "uk": "02.01.2006", "pl": "02.01.2006", "cs": "02. 01. 2006", "tr": "02.01.2006",
	"da": "02.01.2006", "nb": "02.01.2006",
	"fi": "2.1.2006", "el": "02/01/2006", "ro": "02.01.2006", "hi": "02/01/2006", "id": "02/01/2006",
	"vi": "02/01/2006", "th": "2/1/2006", "ms": "02/01/2006",
}

func localDate(tag language.Tag) string {
	base, _ := tag.Base()
	region, _ := tag.Region() // inferred if missing
	if layout, ok := localDates[base.String()+"-"+region.String()]; ok {
		return layout
	}
	if layout, ok := localDates[base.String()]; ok {
		return layout
	}
	return "2006-01-02"
}

var zones sync.Map // *time.Location by name; only valid names, a few hundred

// zoneOf returns a time zone by name; nil for an empty name.
func zoneOf(name string) (*time.Location, error) {
	if name == "" {
		return nil, nil
	}
	if z, ok := zones.Load(name); ok {
		return z.(*time.Location), nil
	}
	if name == "Local" || len(name) > 64 {
		return nil, fmt.Errorf("no time zone")
	}
	z, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("no time zone: %w", err)
	}
	zones.Store(name, z)
	return z, nil
}
