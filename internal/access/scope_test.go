package access_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func TestScopesAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ledger.transfer": "", "ledger.get_*": "", "ledger.*": "", "stock.*(item_id=sku-*)": "",
		"ledger.transfer( to=merchant:* ,from=user:*)": "ledger.transfer(from=user:*, to=merchant:*)",
		"ledger.transfer(from=*)":                      "", "lock.acquire(name=jobs/nightly)": "",
		"ledger.hold(from=köln:1)": "",
	} {
		s, err := access.ParseScope(text)
		if want == "" {
			want = text
		}
		if err != nil || s.String() != want {
			t.Errorf("%q: %q, %v", text, s, err)
		}
	}
	for text, want := range map[string]string{
		"": "is not an operation", "transfer": "is not an operation", "*": "is not an operation",
		"Ledger.transfer": "is not an operation", "ledger.*_x": "is not an operation", "ledger.": "is not an operation",
		"ledger.transfer(": "closing parenthesis", "ledger.transfer()": "must be FIELD=PATTERN",
		"ledger.transfer(from=a) ": "closing parenthesis", "ledger.transfer(from=a*b)": "only at its end",
		"ledger.transfer(from=**)": "only at its end", "ledger.transfer(from=)": "only at its end",
		"ledger.transfer(from=a, from=b)": "occurs twice", "ledger.transfer(from=a b)": "no spaces",
		"ledger.transfer(from=(a))": "no spaces", "ledger.transfer(from=a\x00)": "no spaces",
		"ledger.transfer(from=\xff)": "no spaces", "ledger.transfer(from=a,)": "must be FIELD=PATTERN",
		"ledger.transfer(from=" + strings.Repeat("a", 600) + ")": "at most 512 bytes",
	} {
		if s, err := access.ParseScope(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
	}
	if _, err := access.ParseScopes(slices.Repeat([]string{"ledger.*"}, access.MaxScopes+1)); err == nil {
		t.Error("too many scopes")
	}
}

type fields map[string][]string

func (f fields) values(name string) (found []access.Value) {
	for _, text := range f[name] {
		found = append(found, access.Value{Path: "x." + name, Text: text})
	}
	return found
}

func TestScopesCoverWhatTheyName(t *testing.T) {
	t.Parallel()
	own := scopes(t, "ledger.transfer(from=user:*, to=shop)", "ledger.transfer(from=user:1)", "ledger.get_*",
		"stock.*(item_id=sku-*)")
	for _, c := range []struct {
		operation string
		request   fields
		denied    string // path of the field; "-": the operation
	}{
		{"ledger.transfer", fields{"from": {"user:2"}, "to": {"shop"}}, ""},
		{"ledger.transfer", fields{"from": {"user:1"}, "to": {"other"}}, ""}, // the second scope
		{"ledger.transfer", fields{"from": {"user:2"}, "to": {"shopping"}}, "x.to"},
		{"ledger.transfer", fields{"from": {"user:2", "bank"}, "to": {"shop"}}, "x.from"},
		{"ledger.transfer", fields{"to": {"shop"}}, "from"},
		{"ledger.transfer_batch", nil, "-"},
		{"ledger.get_balance", fields{"account": {"bank"}}, ""},
		{"stock.reserve", fields{"item_id": {"sku-1"}}, ""},
		{"stock.reserve", fields{"item_id": {"sku"}}, "x.item_id"},
		{"stock.confirm", fields{"reservation_no": {"r"}}, "item_id"},
		{"order.create_order", nil, "-"},
	} {
		err := own.Check(c.operation, c.request.values)
		if c.denied == "" {
			if err != nil {
				t.Errorf("%s %v: %v", c.operation, c.request, err)
			}
			continue
		}
		f := fault.Of(err)
		if !fault.Is(err, access.PermissionDenied) || (c.denied == "-") != (len(f.Fields) == 0) ||
			c.denied != "-" && f.Fields[0].Path != c.denied {
			t.Errorf("%s %v: %v", c.operation, c.request, err)
		}
	}
	if err := (*access.Scopes)(nil).Check("ledger.transfer", nil); err != nil {
		t.Errorf("a caller without scopes: %v", err)
	}
}

// FuzzScope checks that the normal form of every accepted scope has the same meaning.
func FuzzScope(f *testing.F) {
	for _, text := range []string{"ledger.transfer(from=user:*, to=shop)", "a.*", "a.b(c=*)", "a.b(c=d,e=f*)",
		"a.b(("} {
		f.Add(text, "user:1")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		s, err := access.ParseScope(text)
		if err != nil {
			return
		}
		normal := s.String()
		again, err := access.ParseScope(normal)
		if err != nil || again.String() != normal {
			t.Fatalf("%q became %q, then %q, %v", text, normal, again, err)
		}
		check := func(text string) bool {
			return scopes(t, text).Check("a.b", fields{"c": {value}}.values) == nil
		}
		if check(text) != check(normal) {
			t.Errorf("%q and %q differ for %q", text, normal, value)
		}
	})
}
