package paging

import (
	"encoding/base64"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestTokenIsBoundToItsList(t *testing.T) {
	made := Of("accounts", 1, "user:**", "CNY")
	token := made.Token("user:7", "CNY")
	if place, err := made.After(token, 2); err != nil || !slices.Equal(place, []string{"user:7", "CNY"}) {
		t.Fatalf("its own list read %q, %v", place, err)
	}
	for name, other := range map[string]List{
		"another tenant":          Of("accounts", 2, "user:**", "CNY"),
		"another list":            Of("trial_balance", 1, "user:**", "CNY"),
		"another filter":          Of("accounts", 1, "user:**", "USD"),
		"no filter":               Of("accounts", 1, "", ""),
		"texts cut elsewhere":     Of("accounts", 1, "user:**C", "NY"),
		"a filter more":           Of("accounts", 1, "user:**", "CNY", ""),
		"the place in the filter": Of("accounts", 1, "user:**", "CNY", "user:7"),
	} {
		if _, err := other.After(token, 2); !fault.Is(err, TokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The binding is no secret, so a forged token must not cause a database error.
func TestInvalidUTF8InATokenIsRefused(t *testing.T) {
	l := Of("accounts", 1)
	for _, place := range []string{"a\x00b", "\xff", "a\xc3"} {
		if _, err := l.After(l.Token(place, "CNY"), 2); !fault.Is(err, TokenInvalid) {
			t.Errorf("%q: %v", place, err)
		}
	}
}

func TestDamagedTokenIsRefused(t *testing.T) {
	l := Of("holds", 1)
	token := l.TokenNumber(12345)
	moved, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	moved[len(moved)-1]++ // 12346
	for name, bad := range map[string]string{
		"cut":           token[:len(token)-2],
		"longer":        token + "AA",
		"another place": base64.RawURLEncoding.EncodeToString(moved),
		"version":       "AB" + token[2:],
		"not base64url": "a token!",
		"a line break":  token[:4] + "\n" + token[4:],
		"one byte":      "AQ",
		"two texts":     l.Token("1", "2"),
		"no number":     l.Token("x"),
	} {
		if _, err := l.AfterNumber(bad, 0); !fault.Is(err, TokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, err := l.AfterNumber("", 7); err != nil || n != 7 {
		t.Errorf("no token: %d, %v", n, err)
	}
}

func FuzzToken(f *testing.F) {
	l := Of("accounts", 1, "user:**", "")
	f.Add(l.Token("user:7", "CNY"))
	f.Add(l.Token())
	f.Add("AQAAAAAAAAAA_____w8")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		place, err := l.After(token, 2)
		if err != nil {
			if !fault.Is(err, TokenInvalid) {
				t.Fatal(err)
			}
			return
		}
		if token != "" && l.Token(place...) != token {
			t.Fatalf("%q and %q are the same place", token, l.Token(place...))
		}
	})
}
