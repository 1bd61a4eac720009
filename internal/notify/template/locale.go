package template

import (
	"slices"
	"strings"

	"golang.org/x/text/language"
)

// Locale canonicalizes a locale, such as zh-Hant-TW.
func Locale(s string) (string, error) {
	tag, err := language.Parse(s)
	if err != nil {
		return "", err
	}
	return plainTag(tag).String(), nil
}

// plainTag keeps language, script and region only.
func plainTag(tag language.Tag) language.Tag {
	base, script, region := tag.Raw()
	t, err := language.Compose(base, script, region)
	if err != nil {
		return tag
	}
	return t
}

// fallbacks returns the locales to look up, best first: zh-Hant-TW, zh-TW, zh-Hant, zh. A missing script is inferred:
// zh-TW is written in Hant, so zh-Hant ranks before zh.
func fallbacks(locale string) []string {
	tag, err := language.Parse(locale)
	if err != nil || locale == "" {
		return nil
	}
	base, script, region := tag.Raw()
	likely, _ := tag.Script()
	var list []string
	add := func(parts ...any) {
		t, err := language.Compose(parts...)
		if err == nil && !slices.Contains(list, t.String()) {
			list = append(list, t.String())
		}
	}
	add(base, script, region)
	none := language.Region{}
	if region != none {
		add(base, likely, region)
		if short, err := language.Compose(base, region); err == nil {
			if s, _ := short.Script(); s == likely { // sr-Latn-RS is not sr-RS
				add(base, region)
			}
		}
	}
	add(base, likely)
	add(base)
	return list
}

// Nearest returns the best of several locales for the requested one, or otherwise.
func Nearest(locale string, of []string, otherwise string) string {
	for _, l := range fallbacks(locale) {
		if slices.Contains(of, l) {
			return l
		}
	}
	return otherwise
}

// joinFallbacks returns the fallbacks as SQL parameters expect them.
func joinFallbacks(locale string) string { return strings.Join(fallbacks(locale), ",") }
