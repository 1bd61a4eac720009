package csvfile

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/amount"
)

func TestNumberFormatsOfBanksAreParsed(t *testing.T) {
	for _, test := range []struct{ text, decimal, group, want string }{
		{"700.00", ".", "", "700.00"}, {"-1.5", ".", "", "-1.50"}, {"+.5", ".", "", "0.50"}, {"007", ".", "", "7.00"},
		{"12.", ".", "", "12.00"}, {"-0.00", ".", "", "0.00"}, {"1.2300", ".", "", "1.23"},
		{"1.234.567,89", ",", ".", "1234567.89"}, {"1 234,5", ",", " ", "1234.50"}, {"0", ",", ".", "0.00"},
		{"1'000.10", ".", "'", "1000.10"},
	} {
		n, err := parseNumber(test.text, test.decimal, test.group, 2)
		if err != nil || amount.Format(n, 2) != test.want {
			t.Errorf("%q: %s, %v, not %s", test.text, amount.Format(n, 2), err, test.want)
		}
	}
	for text, want := range map[string]error{
		"": amount.ErrSyntax, "-": amount.ErrSyntax, ".": amount.ErrSyntax, "1e3": amount.ErrSyntax,
		"1.2.3": amount.ErrSyntax,
		"--1":   amount.ErrSyntax, "1,5": amount.ErrSyntax, "1,5000": amount.ErrSyntax, ",500": amount.ErrSyntax,
		"0x1f":  amount.ErrSyntax,
		"0.001": amount.ErrTooPrecise, strings.Repeat("9", 37): amount.ErrOverflow,
		strings.Repeat("9", 39): amount.ErrTooManyDigits,
	} {
		if n, err := parseNumber(text, ".", ",", 2); !errors.Is(err, want) {
			t.Errorf("%q: %s, %v, not %v", text, n, err, want)
		}
	}
	for _, group := range []string{"", " "} { // with a decimal comma, a point is invalid
		for _, text := range []string{"1.234", "12.5", "-.5", "1.234,5"} {
			if n, err := parseNumber(text, ",", group, 3); !errors.Is(err, amount.ErrSyntax) {
				t.Errorf("%q: %s, %v", text, n, err)
			}
		}
	}
}

// readAll parses rows with the mapping's columns.
func readAll(t *testing.T, m *Mapping, rows string) (movements []*movement, problems []string) {
	t.Helper()
	r, err := newReader(strings.NewReader(rows), m)
	if err != nil {
		t.Fatal(err)
	}
	for {
		v, problem, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return movements, problems
		case err != nil:
			t.Fatal(err)
		case problem != nil:
			problems = append(problems, problem.Error())
		default:
			movements = append(movements, v)
		}
	}
}

func TestABadRowIsReportedByLineAndColumn(t *testing.T) {
	m := parse(t, good)
	for _, test := range []struct{ row, want string }{
		{"1,7,2020-01-01,5.00,in", "line 2: has 5 columns, not 6"},
		{"1,7,2020-01-01,5.00,up,5", `line 2, column kind: "up" is neither among direction.credit nor direction.debit`},
		{"1,7,2020-01-01,5.001,in,5", "line 2, column amount: 5.001 has more decimals than EUR, which has 2"},
		{"1,7,2020-01-01,five,in,5", `line 2, column amount: "five" is not an amount`},
		{"1,7,2020-01-01,0,in,5", "line 2, column amount: the amount is zero"},
		{"1,7,2020-01-01,-5,in,5", "line 2, column amount: the amount is negative"},
		{"1,7,2020-01-01,5.00,in,x", `line 2, column after: "x" is not an amount`},
		{"1,7,2020-02-30,5.00,in,5", `line 2, column day: "2020-02-30" is not a date`},
		{"1,,2020-01-01,5.00,in,5", "line 2, column account: is empty, and account.code requires it"},
		{" ,7,2020-01-01,5.00,in,5", "line 2, column id: is empty, and biz_no requires it"},
		{"é,7,2020-01-01,5.00,in,5", `line 2, column id: the biz_no "x:é" must be printable ASCII`},
		{"1,*,2020-01-01,5.00,in,5", `line 2, column account: the account.code "a:*" has a control character, ` +
			`U+10FFFF or "*" in it`},
		{"1,\xff,2020-01-01,5.00,in,5", "line 2, column account: is not UTF-8 text"},
		{`1,"7"8,2020-01-01,5.00,in,5`, "line 2: at byte"},
		{"1,7,2019-12-30,5.00,in,5", "line 2, column day: 2019-12-30 is before the date of the row before"},
		{"1,\"7,2020-01-01\n\n,5.00,in,5", "line 2: a quote is not closed properly before line 4"},
	} {
		first := "0,7,2019-12-31,1.00,in,1\n"
		movements, problems := readAll(t, m, first+test.row+"\n")
		if len(movements) != 1 || len(problems) != 1 || !strings.Contains(problems[0], test.want) {
			t.Errorf("%q: %d movements, %q, not %q", test.row, len(movements), problems, test.want)
		}
	}
}

func TestTheMappingDeterminesTheSignOfAmounts(t *testing.T) {
	base := strings.Replace(good, "direction: {column: kind, credit: [in], debit: [out]}\n", "", 1)
	signed := parse(t, base)
	columns := parse(t, strings.Replace(base, "amount: {column: amount}",
		"amount: {credit_column: amount, debit_column: kind}", 1))
	said := parse(t, good)
	for _, test := range []struct {
		m    *Mapping
		row  string
		want string
	}{
		{said, "1,7,2020-01-01,5.00,in,5", "5.00"}, {said, "1,7,2020-01-01,5.00,out,5", "-5.00"},
		{signed, "1,7,2020-01-01,5.00,,5", "5.00"}, {signed, "1,7,2020-01-01,-5.00,,5", "-5.00"},
		{columns, "1,7,2020-01-01,5.00,,5", "5.00"}, {columns, "1,7,2020-01-01,,5.00,5", "-5.00"},
	} {
		movements, problems := readAll(t, test.m, test.row+"\n")
		if len(movements) != 1 || amount.Format(movements[0].amount, 2) != test.want {
			t.Fatalf("%q: %v, %v, not %s", test.row, movements, problems, test.want)
		}
		v := movements[0]
		p := v.transfer(test.m).GetPostings()[0]
		if from, to := p.GetFrom(), p.GetTo(); (to == "a:7") != (v.amount.Sign() > 0) ||
			(from == "a:7") != (v.amount.Sign() < 0) || p.GetAmount() != "5.00" {
			t.Errorf("%q: %v", test.row, p)
		}
	}
	for _, row := range []string{"1,7,2020-01-01,5.00,5.00,5", "1,7,2020-01-01,,,5"} {
		if _, problems := readAll(t, columns, row+"\n"); len(problems) != 1 {
			t.Errorf("%q: %q", row, problems)
		}
	}
}

func TestTheHeaderNamesTheColumns(t *testing.T) {
	m := parse(t, strings.Replace(good, "columns: [id, account, day, amount, kind, after]\n", "", 1))
	movements, problems := readAll(t, m, "\ufeffday,after,kind, amount ,account,id\r\n2020-01-01,5,in,5,7,1\r\n")
	if len(movements) != 1 || movements[0].bizNo != "x:1" || movements[0].line != 2 {
		t.Fatalf("%v %q", movements, problems)
	}
	if _, err := newReader(strings.NewReader("id,account\n"), m); err == nil ||
		!strings.Contains(err.Error(), `there is no column "day"`) {
		t.Fatal(err)
	}
	if _, err := newReader(strings.NewReader(""), m); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Fatal(err)
	}
}
