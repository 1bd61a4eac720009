package template

import (
	"slices"
	"testing"

	"golang.org/x/text/language"
)

func mustLocale(t *testing.T, s string) language.Tag {
	t.Helper()
	tag, err := language.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

func TestLocaleFallbacks(t *testing.T) {
	t.Parallel()
	for locale, want := range map[string][]string{
		"zh-Hant-TW": {"zh-Hant-TW", "zh-TW", "zh-Hant", "zh"}, "zh-TW": {"zh-TW", "zh-Hant-TW", "zh-Hant",
			"zh"}, "zh_cn": {"zh-CN", "zh-Hans-CN", "zh-Hans", "zh"},
		"zh": {"zh", "zh-Hans"}, "en-GB": {"en-GB", "en-Latn-GB", "en-Latn", "en"},
		"sr-Latn-RS": {"sr-Latn-RS", "sr-Latn", "sr"}, "sr-RS": {"sr-RS", "sr-Cyrl-RS", "sr-Cyrl", "sr"},
		"de-DE-u-co-phonebk": {"de-DE", "de-Latn-DE", "de-Latn", "de"}, "": nil, "nonsense!": nil,
	} {
		if got := fallbacks(locale); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", locale, got, want)
		}
	}
	if got, err := Locale("ZH_hant_tw"); got != "zh-Hant-TW" || err != nil {
		t.Error(got, err)
	}
	if _, err := Locale("x y"); err == nil {
		t.Error("x y was accepted")
	}
}
