package rpc

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestItemsOfStructuredFields(t *testing.T) {
	t.Parallel()
	flag := func(name, value string) parameter { return parameter{name, bare{'?', value}} }
	text := func(name, value string) parameter { return parameter{name, bare{'"', value}} }
	for in, want := range map[string]item{
		`st_abc`:                     {bare: bare{'t', "st_abc"}},
		`  st_abc  `:                 {bare: bare{'t', "st_abc"}},
		`"a \"b\" \\ ;,"`:            {bare: bare{'"', `a "b" \ ;,`}},
		`""`:                         {bare: bare{'"', ""}},
		`*x/y:z`:                     {bare: bare{'t', "*x/y:z"}},
		`?0`:                         {bare: bare{'?', "0"}},
		`12`:                         {bare: bare{'0', "12"}},
		`%"f%c3%bc%22 \%25"`:         {bare: bare{'"', `fü" \%`}},
		`a;next`:                     {bare{'t', "a"}, []parameter{flag("next", "1")}},
		`a; next=?0;  x="; y"`:       {bare{'t', "a"}, []parameter{flag("next", "0"), text("x", "; y")}},
		`a;x=user:1;*y-z.1_=7`:       {bare{'t', "a"}, []parameter{{"x", bare{'t', "user:1"}}, {"*y-z.1_", bare{'0', "7"}}}},
		`a; subject=%"%e4%b8%ad";n`:  {bare{'t', "a"}, []parameter{text("subject", "中"), flag("n", "1")}},
		`a; x=""; first-only; y=?1 `: {bare{'t', "a"}, []parameter{text("x", ""), flag("first-only", "1"), flag("y", "1")}},
	} {
		if got, problem := parseItem(in); problem != "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v %s", in, got, problem)
		}
	}
	for _, in := range []string{"", " ", "\x00", "\ta", "a,b", "a b", "a;", "a;;", "a;=1", "a;x=", "a; X", "a;-x", "a;1x", "a;_x", "a ;x", "a;x =1", "a;x= 1", "a;x;x",
		`"a`, `"a\`, `"a\b"`, `"`, `a"`, `"ü"`, "\"\x1f\"", "?2", "?", "-1", "ü", `%"`, `%"%c3"`, `%"%C3%BC"`, `%"%c"`, `%"%zz"`, `%"ü"`, `%a`, `a;x=%"%ff"`, `(a)`, `:YQ==:`} {
		if got, problem := parseItem(in); problem == "" {
			t.Errorf("%q is read as %+v", in, got)
		}
	}
}

// What is read is what was written, whatever it is.
func FuzzItem(f *testing.F) {
	for _, s := range []string{"", "st_abc; next", `a "b" \`, "ü", "\x00", "%"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = parseItem(s) // ends, without a panic
		ascii := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return -1
			}
			return r
		}, s)
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(ascii) + `"`
		if it, problem := parseItem("a; x=" + quoted); problem != "" || it.parameters[0].value.text != ascii {
			t.Errorf("%q: %+v %s", ascii, it, problem)
		}
		var display strings.Builder
		for _, b := range []byte(strings.ToValidUTF8(s, "")) {
			fmt.Fprintf(&display, "%%%02x", b)
		}
		if it, problem := parseItem(`a; x=%"` + display.String() + `"`); problem != "" || it.parameters[0].value.text != strings.ToValidUTF8(s, "") {
			t.Errorf("%q: %+v %s", s, it, problem)
		}
	})
}
