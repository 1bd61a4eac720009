package hledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// tx makes a transaction from "account amount commodity" per posting; "(account)" is virtual.
func tx(t *testing.T, postings ...string) *transaction {
	t.Helper()
	x := &transaction{Index: 7, Date: "2020-01-31", Description: "test", Status: "Unmarked"}
	for _, p := range postings {
		f := strings.Fields(p)
		number, minus := strings.CutPrefix(f[1], "-")
		whole, fraction, _ := strings.Cut(number, ".")
		mantissa := strings.TrimLeft(whole+fraction, "0")
		switch {
		case mantissa == "":
			mantissa = "0"
		case minus:
			mantissa = "-" + mantissa
		}
		precision := len(fraction)
		q := quantity{Mantissa: json.Number(mantissa), Places: len(fraction)}
		a := posting{Account: f[0], Type: regularPosting}
		if strings.HasPrefix(f[0], "(") {
			a.Account, a.Type = strings.Trim(f[0], "()"), virtualPosting
		}
		a.Amounts = []commodityAmount{{Commodity: f[2], Quantity: q}}
		a.Amounts[0].Style.Precision = &precision
		x.Postings = append(x.Postings, a)
	}
	return x
}

func newBuilder() *builder {
	return &builder{name: "j", conversion: "equity:conversion", commodities: newCommodities(nil),
		ordinals: map[content]int{}}
}

func build(t *testing.T, b *builder, x *transaction) string {
	t.Helper()
	if p := b.inspect(x); p != nil {
		return p.Error()
	}
	r, p := b.transfer(x)
	if p != nil {
		return p.Error()
	}
	var all []string
	for _, p := range r.transfer.GetPostings() {
		all = append(all, fmt.Sprintf("%s>%s %s %s", p.GetFrom(), p.GetTo(), p.GetAmount(), p.GetAsset()))
	}
	return strings.Join(all, "; ")
}

func TestDebitsPayCreditsInOrder(t *testing.T) {
	for _, test := range []struct {
		postings []string
		want     string
	}{
		{[]string{"a 5 EUR", "b -5 EUR"}, "a>b 5 EUR"},
		{[]string{"a 5.00 EUR", "b 2.5 EUR", "c -4 EUR", "d -3.50 EUR"}, "a>c 4.00 EUR; a>d 1.00 EUR; b>d 2.50 EUR"},
		{[]string{"a 5 EUR", "a -2 EUR", "b -3 EUR"}, "a>b 3 EUR"},
		{[]string{"a 5 EUR", "a -5 EUR"}, ""},
		{[]string{"a 0 EUR", "b 0 EUR"}, ""},
		{[]string{"a 1 A", "b -1 A", "c -2 B", "d 2 B"}, "a>b 1 A; d>c 2 B"},
		// One A is bought for 0.71 B.
		{[]string{"a 1 A", "b -0.71 B"}, "a>equity:conversion 1 A; equity:conversion>b 0.71 B"},
		// The journal itself uses the conversion account.
		{[]string{"a 1 A", "equity:conversion -1 A", "equity:conversion 2 B", "b -2 B"},
			"a>equity:conversion 1 A; equity:conversion>b 2 B"},
		// It balances only after rounding.
		{[]string{"a 10.00 EUR", "b -9.999 EUR"}, "a>b 9.999 EUR; a>equity:conversion 0.001 EUR"},
		{[]string{"(a) 5 EUR"}, "transaction 7 of 2020-01-31 \"test\": the posting (a) is not balanced"},
		{[]string{"a 5 ¥", "b -5 ¥"}, "¥ may mean JPY or CNY: choose one with --commodity '¥=CODE'"},
		{[]string{"a 5 $", "b -5 USD"}, `"$" and "USD" would both be USD`},
		{[]string{"a 5 Gold_Bar!", "b -5 Gold_Bar!"}, `the commodity "Gold_Bar!" cannot be an asset code`},
		{[]string{"a:*:b 5 EUR", "b -5 EUR"}, `the account "a:*:b" cannot be in the ledger`},
		{[]string{"a 0.00000000001 EUR", "b -1 EUR"}, "the amount of a has more than 10 decimals"},
		{[]string{"a 999999999999999999999999999999999999999 EUR", "b -1 EUR"}, "more than 38 significant digits"},
	} {
		b := newBuilder()
		if got := build(t, b, tx(t, test.postings...)); got != test.want &&
			!(test.want != "" && strings.Contains(got, test.want)) {
			t.Errorf("%q: %q, not %q", test.postings, got, test.want)
		}
	}
}

func TestAVirtualAccountBalancesVirtualPostings(t *testing.T) {
	b := newBuilder()
	b.virtual = "equity:virtual"
	if got := build(t, b, tx(t, "(a) 5 EUR", "b 1 EUR", "c -1 EUR")); got != "a>equity:virtual 5 EUR; b>c 1 EUR" {
		t.Error(got)
	}
	if b.notes.exchanges != 0 {
		t.Error("a virtual posting counts as an exchange")
	}
}

func TestCommoditiesAreNamedOnTheCommandLine(t *testing.T) {
	named, err := ParseCommodities([]string{"$=CAD", "=POINT", "a=b=X"})
	if err != nil || named["$"] != "CAD" || named[""] != "POINT" || named["a=b"] != "X" {
		t.Fatal(named, err)
	}
	for _, bad := range []string{"$", "$=", "$=a b", "$=-x"} {
		if _, err := ParseCommodities([]string{bad}); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := ParseCommodities([]string{"$=USD", "$=CAD"}); err == nil {
		t.Error("one commodity was accepted for two assets")
	}
	c := newCommodities(map[string]string{"$": "USD", "USD": "USD"})
	x, err1 := c.asset("$")
	y, err2 := c.asset("USD")
	if err1 != nil || err2 != nil || x != y {
		t.Error("two names of one asset gave two assets", err1, err2)
	}
}

func TestTheHashChangesOnlyWithEdits(t *testing.T) {
	first := tx(t, "a 5 EUR", "b -5 EUR")
	same := tx(t, "a 5.00 EUR", "b -5.0 EUR")
	same.Index, same.Source = 8, json.RawMessage(`[{"sourceLine": 99}]`)
	if !bytes.Equal(first.sum(), same.sum()) {
		t.Error("the hash depends on the position or the display of amounts")
	}
	for name, edit := range map[string]func(*transaction){
		"date":    func(x *transaction) { x.Date = "2020-02-01" },
		"comment": func(x *transaction) { x.Postings[0].Comment = "c" },
		"status":  func(x *transaction) { x.Status = "Cleared" },
		"amount":  func(x *transaction) { x.Postings[0].Amounts[0].Quantity.Mantissa = "6" },
		"price": func(x *transaction) {
			x.Postings[0].Amounts[0].Price = &price{Tag: "UnitPrice",
				Contents: json.RawMessage(`{"acommodity":"X","aquantity":{"decimalMantissa":1,"decimalPlaces":0}}`)}
		},
	} {
		edited := tx(t, "a 5 EUR", "b -5 EUR")
		edit(edited)
		if bytes.Equal(edited.sum(), first.sum()) {
			t.Errorf("an edited %s is not detected", name)
		}
	}
}

func TestForeignOrTruncatedJSONIsAnError(t *testing.T) {
	for _, text := range []string{"", "{}", "null", `"x"`} {
		if _, err := newJournal(strings.NewReader(text), nil); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	for _, text := range []string{"[", `[{"tindex":1}`, `[{"tindex":1},`, `[{"tindex":1},{"tin`} {
		j, err := newJournal(strings.NewReader(text), nil)
		for err == nil {
			_, err = j.next()
		}
		if errors.Is(err, io.EOF) {
			t.Errorf("%q ends without an error", text)
		}
	}
}

func TestEscapedNamesRoundTripThroughAJournal(t *testing.T) {
	for code, want := range map[string]string{
		"Assets:US:A B": "Assets:US:A B", "5%": "5%", "5%25": "5%2525", "(a)": "%28a)", "a  b": "a %20b", "!x": "%21x",
		"a;b": "a%3Bb", " a ": "%20a%20", "1:é": "1:é",
	} {
		if got := accountName(code); got != want {
			t.Errorf("%q: %q, not %q", code, got, want)
		}
	}
	for commodity, want := range map[string]string{"USD": "1 USD", "A1": `1 "A1"`, "$": "1 $", "": "1",
		"BTC/USD": `1 "BTC/USD"`} {
		if got := withCommodity("1", commodity); got != want {
			t.Errorf("%q: %s", commodity, got)
		}
	}
}
