package code

import (
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Chi-square test of each place. With nine degrees of freedom chance exceeds 40.5 once in 160,000 runs per place; a
// byte modulo 10 would give about 190.
func TestCodesAreUniform(t *testing.T) {
	t.Parallel()
	const codes, digits = 200_000, 6
	var counts [digits][10]int
	for range codes {
		for i, c := range New(digits) {
			counts[i][c-'0']++
		}
	}
	for place, of := range counts {
		chi := 0.0
		for _, n := range of {
			off := float64(n) - codes/10
			chi += off * off / (codes / 10)
		}
		if chi > 40.5 {
			t.Errorf("place %d: chi-square %.1f: %v", place, chi, of)
		}
	}
	for n := 4; n <= MaxDigits; n++ {
		if s := New(n); len(s) != n {
			t.Error(s)
		}
	}
}

func TestHashesDependOnEverything(t *testing.T) {
	t.Parallel()
	m := secret.New()
	one, two := keysOf(m, 1), keysOf(m, 2)
	n := NewNonce()
	base := hashOf(one, "login", "+861", n, "123456")
	for _, other := range [][32]byte{
		hashOf(two, "login", "+861", n, "123456"), hashOf(keysOf(secret.New(), 1), "login", "+861", n,
			"123456"), hashOf(one, "logi", "n+861", n, "123456"),
		hashOf(one, "login", "+862", n, "123456"), hashOf(one, "login", "+861", NewNonce(), "123456"),
		hashOf(one, "login", "+861", n, "123457"),
	} {
		if other == base {
			t.Error("two hashes are equal")
		}
	}
	if hashOf(keysOf(m, 1), "login", "+861", n, "123456") != base {
		t.Error("the hash is not deterministic")
	}
}

func TestBuiltInTextsContainTheCode(t *testing.T) {
	t.Parallel()
	for locale := range texts {
		for _, channel := range []send.Channel{send.SMS, send.Email} {
			r, err := BuiltIn(channel, locale, Variables("0123456789", MaxLife))
			if err != nil || r.Locale != locale || !strings.Contains(r.Content.Text, "0123456789") ||
				!strings.Contains(r.Content.Text, "60") || channel == send.Email &&
				!strings.Contains(r.Content.Subject, "0123456789") {
				t.Error(locale, channel, r.Content, err)
			}
		}
	}
	for asked, got := range map[string]string{"zh-TW": "zh-Hant", "zh-CN": "zh", "de-AT": "de", "sw": "en", "": "en"} {
		if r, err := BuiltIn(send.SMS, asked, Variables("1234", MinLife)); err != nil || r.Locale != got ||
			!strings.Contains(r.Content.Text, "1") {
			t.Error(asked, r.Locale, err)
		}
	}
	if _, err := BuiltIn(send.Push, "en", nil); err == nil {
		t.Error("there is a built-in text for push")
	}
}
