// Package csvfile imports account movements from delimited text, as exported by banks, using a mapping of its
// columns. It also compares the bank's running balance with the ledger's.
package csvfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
)

// file is the mapping's YAML. docs/importing.md describes the fields.
type file struct {
	Delimiter string   `yaml:"delimiter"`
	Columns   []string `yaml:"columns"`
	Asset     struct {
		Code  string `yaml:"code"`
		Scale *int   `yaml:"scale"`
	} `yaml:"asset"`
	BizNo string `yaml:"biz_no"`
	Type  string `yaml:"type"`
	Date  struct {
		Column   string `yaml:"column"`
		Format   string `yaml:"format"`
		TimeZone string `yaml:"time_zone"`
	} `yaml:"date"`
	Amount struct {
		Column  string `yaml:"column"`
		Credit  string `yaml:"credit_column"`
		Debit   string `yaml:"debit_column"`
		Decimal string `yaml:"decimal"`
		Group   string `yaml:"group"`
	} `yaml:"amount"`
	Direction *struct {
		Column string   `yaml:"column"`
		Credit []string `yaml:"credit"`
		Debit  []string `yaml:"debit"`
	} `yaml:"direction"`
	Account  accountFields                `yaml:"account"`
	Counter  accountFields                `yaml:"counter"`
	Metadata map[string]string            `yaml:"metadata"`
	Values   map[string]map[string]string `yaml:"values"`
	Balance  *struct {
		Column    string `yaml:"column"`
		Opening   string `yaml:"opening"`
		Tolerance string `yaml:"tolerance"`
	} `yaml:"balance"`
}

type accountFields struct {
	Code  string `yaml:"code"`
	Kind  string `yaml:"kind"`
	Floor string `yaml:"floor"`
}

// Mapping describes the columns of a file.
type Mapping struct {
	text      string // as read, for the hash of a run
	delimiter rune
	columns   []string // nil: read from the first line

	asset string
	scale uint8

	bizNo, kind      template
	account, counter account
	metadata         map[string]template
	values           map[string]map[string]string

	dateColumn, layout string
	zone               *time.Location

	amountColumn, creditColumn, debitColumn string
	decimal, group                          string
	directionColumn                         string
	credit                                  map[string]bool // values of the direction column, by credit or debit

	balance *balance
}

type account struct {
	code  template
	kind  ledgerv1.AccountKind
	floor *string // nil: none
}

// balance describes the comparison with the bank's own balance.
type balance struct {
	column    string
	fromZero  bool // accounts begin at zero; otherwise at the balance before the first movement
	tolerance amount.Int
}

// ReadMapping parses a mapping. It reports all errors at once, each with its field.
func ReadMapping(r io.Reader) (*Mapping, error) {
	text, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if err != nil {
		return nil, err
	}
	var f file
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("the mapping is empty")
		}
		return nil, fmt.Errorf("the mapping: %s", strings.ReplaceAll(err.Error(), " in type csvfile.file", ""))
	}
	c := checker{}
	m := c.mapping(&f)
	m.text = string(text)
	return m, errors.Join(c.problems...)
}

// checker collects the errors in a mapping.
type checker struct{ problems []error }

func (c *checker) bad(field, format string, args ...any) {
	c.problems = append(c.problems, fmt.Errorf("mapping field %s: %s", field, fmt.Sprintf(format, args...)))
}

func (c *checker) mapping(f *file) *Mapping {
	m := &Mapping{columns: f.Columns, asset: f.Asset.Code, values: f.Values, metadata: map[string]template{}}
	m.delimiter = ','
	if f.Delimiter != "" {
		var size int
		if m.delimiter, size = utf8.DecodeRuneInString(f.Delimiter); size != len(f.Delimiter) || m.delimiter == '"' ||
			m.delimiter == '\n' || m.delimiter == '\r' {
			c.bad("delimiter", "must be one character, and no quote or line end, not %q", f.Delimiter)
		}
	}
	if f.Asset.Code == "" {
		c.bad("asset.code", "is missing: the asset of the amounts, such as CZK")
	}
	switch {
	case f.Asset.Scale == nil:
		c.bad("asset.scale", "is missing: the number of its decimals, such as 2")
	case *f.Asset.Scale < 0 || *f.Asset.Scale > amount.MaxScale:
		c.bad("asset.scale", "must be 0 to %d, not %d", amount.MaxScale, *f.Asset.Scale)
	default:
		m.scale = uint8(*f.Asset.Scale)
	}
	m.bizNo = c.template("biz_no", f.BizNo)
	if len(m.bizNo.columns()) == 0 && f.BizNo != "" {
		c.bad("biz_no", "must name a column, so that every row has its own, such as bank:{trans_id}")
	}
	if f.Type == "" {
		f.Type = "import"
	}
	m.kind = c.template("type", f.Type)
	for name, text := range f.Metadata {
		m.metadata[name] = c.template("metadata."+name, text)
	}
	m.account = c.account("account", f.Account)
	m.counter = c.account("counter", f.Counter)
	c.date(f, m)
	c.amount(f, m)
	c.direction(f, m)
	c.balance(f, m)
	if f.Columns != nil {
		c.checkColumns(m, f.Columns)
	}
	return m
}

var kinds = map[string]ledgerv1.AccountKind{
	"": ledgerv1.AccountKind_ACCOUNT_KIND_UNSPECIFIED, "asset": ledgerv1.AccountKind_ACCOUNT_KIND_ASSET,
	"liability": ledgerv1.AccountKind_ACCOUNT_KIND_LIABILITY, "equity": ledgerv1.AccountKind_ACCOUNT_KIND_EQUITY,
	"income": ledgerv1.AccountKind_ACCOUNT_KIND_INCOME, "expense": ledgerv1.AccountKind_ACCOUNT_KIND_EXPENSE,
}

// account reads account fields. The default is no floor: past movements cannot be refused any more.
func (c *checker) account(field string, f accountFields) account {
	a := account{code: c.template(field+".code", f.Code)}
	var ok bool
	if a.kind, ok = kinds[f.Kind]; !ok {
		c.bad(field+".kind", "must be asset, liability, equity, income or expense, not %q", f.Kind)
	}
	if f.Floor != "" && f.Floor != "none" {
		if _, err := amount.ParseDecimal(f.Floor); err != nil {
			c.bad(field+".floor", `must be "none" or a decimal such as "0" or "-1000.00", not %q`, f.Floor)
		}
		a.floor = &f.Floor
	}
	return a
}

func (c *checker) date(f *file, m *Mapping) {
	m.dateColumn = f.Date.Column
	if f.Date.Column == "" {
		c.bad("date.column", "is missing")
	}
	layout, err := DateLayout(f.Date.Format)
	if err != nil {
		c.bad("date.format", "%s", err)
	}
	m.layout = layout
	zone := f.Date.TimeZone
	if zone == "" {
		zone = "UTC"
	}
	if m.zone, err = time.LoadLocation(zone); err != nil {
		c.bad("date.time_zone", "must be a name such as UTC or Europe/Prague, not %q", zone)
	}
}

func (c *checker) amount(f *file, m *Mapping) {
	a := f.Amount
	m.amountColumn, m.creditColumn, m.debitColumn, m.group = a.Column, a.Credit, a.Debit, a.Group
	if m.decimal = a.Decimal; m.decimal == "" {
		m.decimal = "."
	}
	if m.decimal != "." && m.decimal != "," {
		c.bad("amount.decimal", `must be "." or ",", not %q`, a.Decimal)
	}
	if m.group != "" && (utf8.RuneCountInString(m.group) != 1 || m.group == m.decimal ||
		strings.ContainsAny(m.group, "0123456789+-")) {
		c.bad("amount.group", "must be one character that separates thousands, other than the decimal mark, not %q",
			a.Group)
	}
	switch {
	case a.Column == "" && a.Credit == "" && a.Debit == "":
		c.bad("amount.column", "is missing (or give amount.credit_column and amount.debit_column)")
	case a.Column != "" && (a.Credit != "" || a.Debit != ""):
		c.bad("amount.column", "must not be set together with amount.credit_column and amount.debit_column")
	case a.Column == "" && (a.Credit == "" || a.Debit == ""):
		c.bad("amount", "requires both credit_column and debit_column")
	}
}

func (c *checker) direction(f *file, m *Mapping) {
	d := f.Direction
	if d == nil {
		return // the sign or the column has the direction
	}
	if m.amountColumn == "" {
		c.bad("direction", "must not be set together with amount.credit_column and amount.debit_column")
	}
	if d.Column == "" {
		c.bad("direction.column", "is missing")
	}
	m.directionColumn, m.credit = d.Column, map[string]bool{}
	for _, v := range d.Credit {
		m.credit[v] = true
	}
	for _, v := range d.Debit {
		if m.credit[v] {
			c.bad("direction.debit", "%q is listed in direction.credit too", v)
		}
		m.credit[v] = false
	}
	if len(d.Credit) == 0 || len(d.Debit) == 0 {
		c.bad("direction", "requires the values of both credit and debit")
	}
}

func (c *checker) balance(f *file, m *Mapping) {
	b := f.Balance
	if b == nil {
		return
	}
	m.balance = &balance{column: b.Column}
	if b.Column == "" {
		c.bad("balance.column", "is missing")
	}
	switch b.Opening {
	case "", "zero":
		m.balance.fromZero = true
	case "first":
	default:
		c.bad("balance.opening", `must be "zero" (accounts begin empty) or "first" (the balance before the first `+
			`movement), not %q`, b.Opening)
	}
	if b.Tolerance != "" {
		d, err := amount.ParseDecimal(b.Tolerance)
		if err == nil {
			m.balance.tolerance, err = d.Minor(m.scale)
		}
		if err != nil || m.balance.tolerance.Sign() < 0 {
			c.bad("balance.tolerance", `must be a decimal such as "0.10", in quotes, not %q`, b.Tolerance)
		}
	}
}

// checkColumns checks that every column in the mapping exists.
func (c *checker) checkColumns(m *Mapping, columns []string) {
	there := make(map[string]bool, len(columns))
	for _, name := range columns {
		if there[name] {
			c.bad("columns", "the file has the column %q twice", name)
		}
		there[name] = true
	}
	for _, use := range m.uses() {
		if !there[use.column] {
			c.bad(use.field, "there is no column %q: the file has %s", use.column, strings.Join(columns, ", "))
		}
	}
}

type use struct{ field, column string }

// uses lists the columns in the mapping with the fields that name them.
func (m *Mapping) uses() []use {
	var all []use
	add := func(field string, columns ...string) {
		for _, name := range columns {
			if name != "" {
				all = append(all, use{field, name})
			}
		}
	}
	add("biz_no", m.bizNo.columns()...)
	add("type", m.kind.columns()...)
	add("date.column", m.dateColumn)
	add("amount.column", m.amountColumn)
	add("amount.credit_column", m.creditColumn)
	add("amount.debit_column", m.debitColumn)
	add("direction.column", m.directionColumn)
	add("account.code", m.account.code.columns()...)
	add("counter.code", m.counter.code.columns()...)
	for _, name := range sortedNames(m.metadata) {
		add("metadata."+name, m.metadata[name].columns()...)
	}
	for _, name := range sortedNames(m.values) {
		add("values."+name, name)
	}
	if m.balance != nil {
		add("balance.column", m.balance.column)
	}
	return all
}
