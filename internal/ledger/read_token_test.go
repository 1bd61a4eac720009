package ledger

import (
	"encoding/base64"
	"slices"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestTokenIsReadByTheListThatMadeItOnly(t *testing.T) {
	made := listOf("accounts", 1, "user:**", "CNY")
	token := made.token("user:7", "CNY")
	if place, err := made.after(token, 2); err != nil || !slices.Equal(place, []string{"user:7", "CNY"}) {
		t.Fatalf("its own list read %q, %v", place, err)
	}
	for name, other := range map[string]list{
		"another tenant":          listOf("accounts", 2, "user:**", "CNY"),
		"another list":            listOf("trial_balance", 1, "user:**", "CNY"),
		"another filter":          listOf("accounts", 1, "user:**", "USD"),
		"no filter":               listOf("accounts", 1, "", ""),
		"texts cut elsewhere":     listOf("accounts", 1, "user:**C", "NY"),
		"a filter more":           listOf("accounts", 1, "user:**", "CNY", ""),
		"the place in the filter": listOf("accounts", 1, "user:**", "CNY", "user:7"),
	} {
		if _, err := other.after(token, 2); !fault.Is(err, PageTokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The binding is no secret: whoever makes a token up must not get an error of the database.
func TestPlaceThatIsNoTextIsRefused(t *testing.T) {
	l := listOf("accounts", 1)
	for _, place := range []string{"a\x00b", "\xff", "a\xc3"} {
		if _, err := l.after(l.token(place, "CNY"), 2); !fault.Is(err, PageTokenInvalid) {
			t.Errorf("%q: %v", place, err)
		}
	}
}

func TestDamagedTokenIsRefused(t *testing.T) {
	l := listOf("holds", 1)
	token := l.tokenNumber(12345)
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
		"two texts":     l.token("1", "2"),
		"no number":     l.token("x"),
	} {
		if _, err := l.afterNumber(bad, 0); !fault.Is(err, PageTokenInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n, err := l.afterNumber("", 7); err != nil || n != 7 {
		t.Errorf("no token: %d, %v", n, err)
	}
}

func FuzzToken(f *testing.F) {
	l := listOf("accounts", 1, "user:**", "")
	f.Add(l.token("user:7", "CNY"))
	f.Add(l.token())
	f.Add("AQAAAAAAAAAA_____w8")
	f.Add("")
	f.Fuzz(func(t *testing.T, token string) {
		place, err := l.after(token, 2)
		if err != nil {
			if !fault.Is(err, PageTokenInvalid) {
				t.Fatal(err)
			}
			return
		}
		if token != "" && l.token(place...) != token {
			t.Fatalf("%q and %q are the same place", token, l.token(place...))
		}
	})
}

func FuzzPosition(f *testing.F) {
	f.Add("0")
	f.Add("12.34")
	f.Add("18446744073709551615.-1")
	f.Fuzz(func(t *testing.T, cursor string) {
		p, err := parsePosition(cursor)
		if err == nil && p.String() != cursor {
			t.Fatalf("%q reads as %q", cursor, p)
		}
		if err != nil && !fault.Is(err, fault.FieldInvalid) {
			t.Fatal(err)
		}
	})
}
