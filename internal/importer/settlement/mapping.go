// Package settlement reconciles a payment gateway's own list of payments, refunds, fees and payouts, as it comes in
// CSV files, with the transactions and refunds of a server, and posts the fees and payouts.
package settlement

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/csvfile"
)

// file is the mapping's YAML. docs/reconciling.md describes the fields.
type file struct {
	Gateway    string   `yaml:"gateway"`
	Encoding   string   `yaml:"encoding"`
	Delimiter  string   `yaml:"delimiter"`
	Prefix     string   `yaml:"prefix"`
	Comment    string   `yaml:"comment"`
	LazyQuotes bool     `yaml:"lazy_quotes"`
	Columns    []string `yaml:"columns"`
	Kind       struct {
		Column         string   `yaml:"column"`
		Payment        []string `yaml:"payment"`
		Refund         []string `yaml:"refund"`
		RefundFailure  []string `yaml:"refund_failure"`
		Payout         []string `yaml:"payout"`
		PayoutReversal []string `yaml:"payout_reversal"`
		Fee            []string `yaml:"fee"`
		Ignore         []string `yaml:"ignore"`
	} `yaml:"kind"`
	Status struct {
		Column  string   `yaml:"column"`
		Pending []string `yaml:"pending"`
		Failed  []string `yaml:"failed"`
	} `yaml:"status"`
	ID            string `yaml:"id"`
	TransactionID string `yaml:"transaction_id"`
	OutTradeNo    string `yaml:"out_trade_no"`
	Refund        struct {
		No   string `yaml:"no"`
		ID   string `yaml:"id"`
		Time string `yaml:"time"`
	} `yaml:"refund"`
	Date struct {
		Column   string `yaml:"column"`
		Format   string `yaml:"format"`
		TimeZone string `yaml:"time_zone"`
	} `yaml:"date"`
	Amount struct {
		Column  string `yaml:"column"`
		Refund  string `yaml:"refund_column"`
		Decimal string `yaml:"decimal"`
		Group   string `yaml:"group"`
	} `yaml:"amount"`
	Currency struct {
		Column string `yaml:"column"`
		Code   string `yaml:"code"`
	} `yaml:"currency"`
	Settled struct {
		Column   string `yaml:"column"`
		Currency string `yaml:"currency_column"`
	} `yaml:"settled"`
	Fee struct {
		Column string `yaml:"column"`
		Sign   string `yaml:"sign"`
	} `yaml:"fee"`
	Assets   map[string]string `yaml:"assets"`
	Accounts struct {
		Fee  string `yaml:"fee"`
		Bank string `yaml:"bank"`
	} `yaml:"accounts"`
	Period struct {
		Text   string `yaml:"text"`
		Format string `yaml:"format"`
	} `yaml:"period"`
	Totals struct {
		Begins  string            `yaml:"begins"`
		Columns map[string]string `yaml:"columns"`
		Lines   []string          `yaml:"lines"`
	} `yaml:"totals"`
}

// kind is the kind of a row.
type kind string

const (
	payment        kind = "payment"
	refund         kind = "refund"
	refundFailure  kind = "refund_failure" // the money of a refund came back
	payout         kind = "payout"
	payoutReversal kind = "payout_reversal"
	fee            kind = "fee" // a row that is nothing but a fee
	ignored        kind = "ignore"
	other          kind = "other"
)

// Mapping describes the columns of a settlement file.
type Mapping struct {
	file
	delimiter rune
	kinds     map[string]kind
	layout    string
	zone      *time.Location
	period    *pattern
	periodFmt string
	totals    []*pattern // of lines
	sums      []sum      // all that the totals name
}

// sum is a total that a file states: the number of rows, or the sum of a column, of all rows or of one kind.
type sum struct {
	of     kind   // empty: all rows
	column string // empty: their number
}

// pattern is text with names in braces.
type pattern struct {
	re    *regexp.Regexp
	names []string
}

// ReadMapping parses a mapping. It reports all errors at once, each with its field.
func ReadMapping(r io.Reader) (*Mapping, error) {
	text, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if err != nil {
		return nil, err
	}
	m := &Mapping{}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&m.file); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the mapping is empty")
		}
		return nil, fmt.Errorf("the mapping: %s", strings.ReplaceAll(err.Error(), " in type settlement.file", ""))
	}
	c := checker{}
	c.mapping(m)
	return m, errors.Join(c.problems...)
}

// checker collects the errors in a mapping.
type checker struct{ problems []error }

func (c *checker) bad(field, format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf("mapping field %s: %s", field, fmt.Sprintf(format, args...)))
}

// oneOf sets a default, and checks a choice.
func (c *checker) oneOf(field string, v *string, choices ...string) {
	if *v == "" {
		*v = choices[0]
	}
	for _, choice := range choices {
		if *v == choice {
			return
		}
	}
	c.bad(field, "must be %s, not %q", strings.Join(choices, " or "), *v)
}

func (c *checker) mapping(m *Mapping) {
	c.oneOf("encoding", &m.Encoding, "utf-8", "gbk")
	c.oneOf("refund.time", &m.Refund.Time, "created", "succeeded")
	c.oneOf("fee.sign", &m.Fee.Sign, "cost", "balance")
	c.oneOf("amount.decimal", &m.Amount.Decimal, ".", ",")
	m.delimiter = ','
	if m.Delimiter != "" {
		var size int
		if m.delimiter, size = utf8.DecodeRuneInString(m.Delimiter); size != len(m.Delimiter) ||
			strings.ContainsAny(m.Delimiter, "\"\r\n") {
			c.bad("delimiter", "must be one character, and no quote or line end, not %q", m.Delimiter)
		}
	}
	for field, v := range map[string]string{"kind.column": m.Kind.Column, "transaction_id": m.TransactionID,
		"amount.column": m.Amount.Column, "date.column": m.Date.Column} {
		if v == "" && !(field == "transaction_id" && len(m.Kind.Payment)+len(m.Kind.Refund) == 0) {
			c.bad(field, "is missing")
		}
	}
	if (m.Currency.Column == "") == (m.Currency.Code == "") {
		c.bad("currency", "requires either column or code")
	}
	if m.ID == "" && len(m.Kind.Payout)+len(m.Kind.PayoutReversal)+len(m.Kind.Fee) > 0 {
		c.bad("id", "is missing: the column with the number of payouts and fees")
	}
	if m.Refund.No == "" && m.Refund.ID == "" && len(m.Kind.Refund) > 0 {
		c.bad("refund", "requires no or id: a column with the number of the refund")
	}
	if len(m.Status.Pending)+len(m.Status.Failed) > 0 && m.Status.Column == "" {
		c.bad("status.column", "is missing")
	}
	for field, code := range map[string]string{"accounts.fee": m.Accounts.Fee, "accounts.bank": m.Accounts.Bank} {
		if wrong := importer.BadAccount(code); code != "" && wrong != "" {
			c.bad(field, "%q %s", code, wrong)
		}
	}
	c.kinds(m)
	c.date(m)
	c.totals(m)
	if m.Columns != nil {
		c.columns(m, m.Columns)
	}
}

func (c *checker) kinds(m *Mapping) {
	m.kinds = map[string]kind{}
	k := &m.Kind
	for _, list := range []struct {
		kind   kind
		values []string
	}{{payment, k.Payment}, {refund, k.Refund}, {refundFailure, k.RefundFailure}, {payout, k.Payout},
		{payoutReversal, k.PayoutReversal}, {fee, k.Fee}, {ignored, k.Ignore}} {
		for _, v := range list.values {
			if before, twice := m.kinds[v]; twice {
				c.bad("kind."+string(list.kind), "%q is listed in kind.%s too", v, before)
			}
			m.kinds[v] = list.kind
		}
	}
	if len(m.kinds) == 0 {
		c.bad("kind", "lists no values: give at least payment")
	}
}

func (c *checker) date(m *Mapping) {
	var err error
	if m.layout, err = csvfile.DateLayout(m.Date.Format); err != nil {
		c.bad("date.format", "%s", err)
	}
	if m.Date.TimeZone == "" {
		m.Date.TimeZone = "UTC"
	}
	if m.zone, err = time.LoadLocation(m.Date.TimeZone); err != nil {
		c.bad("date.time_zone", "must be a name such as UTC or Asia/Shanghai, not %q", m.Date.TimeZone)
		m.zone = time.UTC
	}
	if m.Period.Text == "" {
		return
	}
	if m.periodFmt, err = csvfile.DateLayout(m.Period.Format); err != nil {
		c.bad("period.format", "%s", err)
	}
	isEnd := func(name string) bool { return name == "start" || name == "end" }
	if m.period, err = parsePattern(m.Period.Text, isEnd); err != nil {
		c.bad("period.text", "%s", err)
	}
}

func (c *checker) totals(m *Mapping) {
	isSum := func(name string) bool { _, ok := parseSum(name); return ok || name == "*" }
	for column, name := range m.Totals.Columns {
		if !isSum(name) || name == "*" {
			c.bad("totals.columns."+column, "%q is no sum, such as rows, payments or refunds, or rows COLUMN", name)
		}
		s, _ := parseSum(name)
		m.sums = append(m.sums, s)
	}
	for _, text := range m.Totals.Lines {
		p, err := parsePattern(text, isSum)
		if err != nil {
			c.bad("totals.lines", "%s", err)
			continue
		}
		m.totals = append(m.totals, p)
		for _, name := range p.names {
			if s, ok := parseSum(name); ok {
				m.sums = append(m.sums, s)
			}
		}
	}
	if m.Totals.Begins == "" && len(m.sums) > 0 {
		c.bad("totals.begins", "is missing: how the line begins that ends the rows")
	}
}

// parseSum reads "rows", "payments" or "refunds", and a column after a space.
func parseSum(name string) (s sum, ok bool) {
	of, column, _ := strings.Cut(name, " ")
	of2, ok := map[string]kind{"rows": "", "payments": payment, "refunds": refund}[of]
	return sum{of2, column}, ok
}

func parsePattern(text string, known func(name string) bool) (*pattern, error) {
	p, re := &pattern{}, strings.Builder{}
	re.WriteString("^")
	for rest := text; rest != ""; {
		literal, inside, opened := strings.Cut(rest, "{")
		for i, part := range strings.Fields(" " + literal + " ") {
			if i > 0 {
				re.WriteString(`\s+`)
			}
			re.WriteString(regexp.QuoteMeta(part))
		}
		if !opened {
			break
		}
		name, after, closed := strings.Cut(inside, "}")
		if !closed || !known(name) {
			return nil, fmt.Errorf("{%s} has no meaning: %s", name, text)
		}
		p.names = append(p.names, name)
		re.WriteString(`\s*(.*?)\s*`)
		rest = after
	}
	re.WriteString(`\s*$`)
	var err error
	p.re, err = regexp.Compile(re.String())
	return p, err
}

// match returns the values of a line by their names; nil if it does not match.
func (p *pattern) match(line string) map[string]string {
	found := p.re.FindStringSubmatch(line)
	if found == nil {
		return nil
	}
	values := make(map[string]string, len(p.names))
	for i, name := range p.names {
		values[name] = found[i+1]
	}
	return values
}

// columns checks that every column in the mapping exists.
func (c *checker) columns(m *Mapping, columns []string) {
	there := make(map[string]bool, len(columns))
	for _, name := range columns {
		if there[name] && name != "" {
			c.bad("columns", "the file has the column %q twice", name)
		}
		there[name] = true
	}
	uses := [][2]string{{"kind.column", m.Kind.Column}, {"status.column", m.Status.Column}, {"id", m.ID},
		{"transaction_id", m.TransactionID}, {"out_trade_no", m.OutTradeNo}, {"refund.no", m.Refund.No},
		{"refund.id", m.Refund.ID}, {"date.column", m.Date.Column}, {"amount.column", m.Amount.Column},
		{"amount.refund_column", m.Amount.Refund}, {"currency.column", m.Currency.Column},
		{"settled.column", m.Settled.Column}, {"settled.currency_column", m.Settled.Currency},
		{"fee.column", m.Fee.Column}}
	for _, s := range m.sums {
		uses = append(uses, [2]string{"totals", s.column})
	}
	for _, use := range uses {
		if use[1] != "" && !there[use[1]] {
			c.bad(use[0], "there is no column %q: the file has %q", use[1], columns)
		}
	}
}
