package rpc

import (
	"fmt"
	"strings"
	"testing"
)

func TestStructuredFieldsOfOneItem(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]string{
		`"a b"`:                   `"a b"`,
		`"a \"b\" \\"`:            `"a \"b\" \\"`,
		`*tok/en:1`:               `token *tok/en:1`,
		`A#!$%&'*+-.^_` + "`|~:/": "token A#!$%&'*+-.^_`|~:/",
		`%"%c3%bc%25%22 x"`:       `"ü%\" x"`,
		`12`:                      `12000`,
		`-1.5`:                    `-1500`,
		`0.125`:                   `125`,
		`999999999999.999`:        `999999999999999`,
		`?1`:                      `true`,
		`  "a"  `:                 `"a"`,
		`"a";b;c=?0; d="x";  e=f`: `"a" b=true c=false d="x" e=token f`,
		`"a";b=1;c;b=2`:           `"a" b=2000 c=true`,
		`"a";*k_-.9=1`:            `"a" *k_-.9=1000`,
		``:                        "malformed", `"`: "malformed", `"a`: "malformed", `"a\`: "malformed", `"a\b"`: "malformed", `"a"b`: "malformed",
		`"a" ;b`: "malformed", `"a";`: "malformed", `"a";B`: "malformed", `"a";b=`: "malformed", `"a";9`: "malformed", `"a", "b"`: "malformed",
		`(1 2)`: "malformed", `:YQ==:`: "malformed", `@1`: "malformed", `?2`: "malformed", `?`: "malformed", `-`: "malformed", `1.`: "malformed",
		`1.2345`: "malformed", `1234567890123`: "malformed", `%"%C3"`: "malformed", `%"%c"`: "malformed", `%"%c3"`: "malformed", `%a`: "malformed",
		`%"a`: "malformed", "\"\t\"": "malformed", `"é"`: "malformed", `%"é"`: "malformed", "\ta": "malformed",
	} {
		i, err := parseItem(field)
		got := "malformed"
		if err == nil {
			got = show(i.value)
			for _, p := range i.parameters {
				got += " " + p.name + "=" + show(p.value)
			}
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", field, got, want)
		}
	}
}

func show(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case bareToken:
		return "token " + string(v)
	}
	return fmt.Sprint(value)
}

func FuzzParseItem(f *testing.F) {
	for _, s := range []string{`"a";b=%"%c3%bc";c=1.5`, `a;b=?1`, `%"%`, `"\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, field string) {
		i, err := parseItem(field)
		if err != nil {
			return
		}
		if v, ok := i.value.(string); ok && strings.ContainsAny(v, "\x00") && !strings.Contains(field, "%00") {
			t.Errorf("%q became %q", field, v)
		}
		_, _ = readClaim(field)
	})
}
