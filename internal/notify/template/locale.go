package template

import (
	"slices"
	"strings"

	"golang.org/x/text/language"
)

// Locale brings a locale into the form in which templates are found by it, such as zh-Hant-TW.
func Locale(s string) (string, error) {
	tag, err := language.Parse(s)
	if err != nil {
		return "", err
	}
	return plainTag(tag).String(), nil
}

// plainTag leaves language, script and region.
func plainTag(tag language.Tag) language.Tag {
	base, script, region := tag.Raw()
	t, err := language.Compose(base, script, region)
	if err != nil {
		return tag
	}
	return t
}

// fallbacks are the locales in which a template is looked for, best first: zh-Hant-TW, zh-TW, zh-Hant, zh. What is
// not said is what is likely: zh-TW is written in Hant, so zh-Hant is better than zh.
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

// Nearest is the best of some locales for the one that is asked for, or else.
func Nearest(locale string, of []string, otherwise string) string {
	for _, l := range fallbacks(locale) {
		if slices.Contains(of, l) {
			return l
		}
	}
	return otherwise
}

// joined are the fallbacks as statements take them.
func joined(locale string) string { return strings.Join(fallbacks(locale), ",") }
