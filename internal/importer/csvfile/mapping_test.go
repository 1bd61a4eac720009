package csvfile

import (
	"os"
	"strings"
	"testing"
)

// good is a minimal mapping with one field per line, so that tests can change one.
const good = `
delimiter: ","
columns: [id, account, day, amount, kind, after]
asset: {code: EUR, scale: 2}
biz_no: "x:{id}"
date: {column: day, format: YYYY-MM-DD}
amount: {column: amount}
direction: {column: kind, credit: [in], debit: [out]}
account: {code: "a:{account}"}
counter: {code: "world"}
balance: {column: after, tolerance: "0.10"}
`

func parse(t *testing.T, text string) *Mapping {
	t.Helper()
	m, err := ReadMapping(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestABadMappingIsRefusedByItsField(t *testing.T) {
	parse(t, good)
	for _, test := range []struct{ line, with, want string }{
		{`delimiter: ","`, `delimiter: ";;"`, `field delimiter: must be one character`},
		{`delimiter: ","`, `delimeter: ","`, `line 2: field delimeter not found`},
		{`scale: 2`, `scale: 19`, `field asset.scale: must be 0 to 18, not 19`},
		{`, scale: 2`, ``, `field asset.scale: is missing`},
		{`{code: EUR, scale: 2}`, `{scale: 2}`, `field asset.code: is missing`},
		{`biz_no: "x:{id}"`, ``, `field biz_no: is missing`},
		{`biz_no: "x:{id}"`, `biz_no: "x"`, `field biz_no: must name a column`},
		{`x:{id}`, `x:{id`, `field biz_no: braces must come in pairs`},
		{`x:{id}`, `x:{}`, `field biz_no: {} names no column`},
		{`x:{id}`, `x:{idd}`, `field biz_no: there is no column "idd": the file has id, account, day`},
		{`format: YYYY-MM-DD`, `format: YYYY-DD`, `field date.format: must contain year, month and day`},
		{`format: YYYY-MM-DD`, `format: "%Y-%m-%d"`, `field date.format: contains '%'`},
		{`column: day, format`, `format`, `field date.column: is missing`},
		{`format: YYYY-MM-DD`, `format: YYMMDD, time_zone: Nowhere`,
			`field date.time_zone: must be a name such as UTC`},
		{`amount: {column: amount}`, `amount: {}`, `field amount.column: is missing`},
		{`amount: {column: amount}`, `amount: {column: amount, debit_column: after}`,
			`field amount.column: must not be set together`},
		{`amount: {column: amount}`, `amount: {column: amount, decimal: "'"}`,
			`field amount.decimal: must be "." or ","`},
		{`amount: {column: amount}`, `amount: {column: amount, group: "."}`,
			`field amount.group: must be one character`},
		{`debit: [out]`, `debit: [in]`, `field direction.debit: "in" is listed in direction.credit too`},
		{`, debit: [out]`, ``, `field direction: requires the values of both`},
		{`{code: "a:{account}"}`, `{code: "a:{account}", kind: wallet}`,
			`field account.kind: must be asset, liability`},
		{`{code: "a:{account}"}`, `{code: "a:{account}", floor: low}`,
			`field account.floor: must be "none" or a decimal`},
		{`{code: "world"}`, `{}`, `field counter.code: is missing`},
		{`tolerance: "0.10"`, `tolerance: "0.101"`, `field balance.tolerance: must be a decimal`},
		{`tolerance: "0.10"`, `opening: now`, `field balance.opening: must be "zero"`},
		{`balance: {column: after`, `balance: {column: afterwards`,
			`field balance.column: there is no column "afterwards"`},
		{`, after]`, `, id]`, `field columns: the file has the column "id" twice`},
	} {
		text := strings.Replace(good, test.line, test.with, 1)
		if text == good {
			t.Fatalf("%q is not in the mapping", test.line)
		}
		_, err := ReadMapping(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("with %q for %q: %v, not %q", test.with, test.line, err, test.want)
		}
	}
}

func TestAllErrorsOfAMappingAreReportedAtOnce(t *testing.T) {
	_, err := ReadMapping(strings.NewReader("type: x"))
	for _, field := range []string{"biz_no", "asset.code", "asset.scale", "account.code", "counter.code", "date.column",
		"date.format", "amount.column"} {
		if err == nil || !strings.Contains(err.Error(), "field "+field+": is missing") {
			t.Errorf("%s is not reported in: %v", field, err)
		}
	}
}

func TestTheExampleMappingIsValid(t *testing.T) {
	f, err := os.Open("../../../examples/import/bank.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := ReadMapping(f); err != nil {
		t.Fatal(err)
	}
}

func TestTemplatesFillAndMatch(t *testing.T) {
	row := map[string]string{"a": "1", "b": " ", "c": "x y"}
	for _, test := range []struct{ template, text, empty, pattern string }{
		{"bank:{a}", "bank:1", "", "bank:*"},
		{"{c}:n{a}:z", "x y:n1:z", "", "*:*:z"},
		{"p:{b|none}", "p:none", "", "p:*"},
		{"p:{b|}", "p:", "", "p:*"},
		{"p:{b}:{a}", "p::1", "b", "p:*:*"},
		{"world", "world", "", "world"},
	} {
		p, err := parseTemplate(test.template)
		if err != nil {
			t.Fatal(err)
		}
		text, empty := p.fill(func(c string) string { return row[c] })
		if text != test.text || empty != test.empty || p.pattern() != test.pattern {
			t.Errorf("%s: %q, empty %q, pattern %q", test.template, text, empty, p.pattern())
		}
	}
}
