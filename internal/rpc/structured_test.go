package rpc

import (
	"fmt"
	"testing"
	"time"
)

func TestParseField(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		`st_abc`: "st_abc", `  "a \"b\" \\ ;,"  `: `a "b" \ ;,`, `""`: "", `%"f%c3%bc%22 %25"`: `fü" %`,
		`*x/y:z`:               "*x/y:z",
		`a; next=?0;  x="; y"`: "a next=false x=; y", `a;x=user:1;n`: "a x=user:1 n=true", `a;x=1;x=2`: "a x=2",
		`a;life=0.125`: "a life=0.125",
	} {
		f, err := parseField(header)
		got, ok := f.text()
		if err != nil || !ok {
			t.Errorf("%s: %v", header, err)
			continue
		}
		for name, value := range f.parameters() {
			if s, isText := textOf(value); isText {
				value = s
			}
			got += fmt.Sprintf(" %s=%v", name, value)
		}
		if got != want {
			t.Errorf("%s is read as %s", header, got)
		}
	}
	for _, header := range []string{"", " ", "\x00", "a,b", "a b", "a;", "a;X", "a;x=", "a ;x", `"a`, `"a\b"`, `"ü"`,
		"?2", "(a)", `%"%C3%BC"`, `%"%ff"`} {
		if f, err := parseField(header); err == nil {
			t.Errorf("%q is read as %+v", header, f)
		}
	}
	for value, want := range map[any]time.Duration{int64(600): 10 * time.Minute, 0.5: 500 * time.Millisecond,
		int64(999_999_999_999_999): 1 << 33 * time.Second} {
		if d, ok := secondsOf(value); !ok || d != want {
			t.Errorf("%v is %v", value, d)
		}
	}
}
