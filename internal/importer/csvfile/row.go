package csvfile

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// movement is one parsed row.
type movement struct {
	line     int
	bizNo    string
	kind     string
	account  string
	counter  string
	date     string // as in the file
	at       time.Time
	amount   amount.Int // positive: credit of the account
	balance  amount.Int // the bank's balance after it
	metadata map[string]string

	// follows is set by the comparison: the previous balance plus the amount.
	follows amount.Int
	differs bool
}

// rowReader parses the fields of one row and keeps the first problem.
type rowReader struct {
	m       *Mapping
	index   map[string]int // of columns
	record  []string
	line    int
	problem *importer.Problem
}

func (r *rowReader) bad(column, format string, args ...any) {
	if r.problem == nil {
		r.problem = importer.Place{Line: r.line, Column: column}.Problem(format, args...)
	}
}

func (r *rowReader) raw(column string) string { return r.record[r.index[column]] }

// value returns a column, translated by the mapping's values.
func (r *rowReader) value(column string) string {
	v := r.raw(column)
	if t, ok := r.m.values[column][strings.TrimSpace(v)]; ok {
		return t
	}
	return v
}

// read parses a row. A problem names the column.
func (r *rowReader) read() (*movement, *importer.Problem) {
	r.problem = nil
	for i, v := range r.record {
		if !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
			for name, at := range r.index {
				if at == i {
					r.bad(name, "is not UTF-8 text: convert the file, for example with iconv")
				}
			}
		}
	}
	v := &movement{line: r.line, date: strings.TrimSpace(r.raw(r.m.dateColumn))}
	v.bizNo = r.name("biz_no", r.m.bizNo, 128, importer.BadName)
	v.kind = r.name("type", r.m.kind, 64, importer.BadName)
	v.account = r.name("account.code", r.m.account.code, 256, importer.BadAccount)
	v.counter = r.name("counter.code", r.m.counter.code, 256, importer.BadAccount)
	if v.account == v.counter {
		r.bad("", "the account and its counter-account are the same: %s", v.account)
	}
	var err error
	if v.at, err = time.ParseInLocation(r.m.layout, v.date, r.m.zone); err != nil {
		r.bad(r.m.dateColumn, "%q is not a date in the mapping's format", v.date)
	}
	v.amount = r.signed()
	if r.m.balance != nil {
		v.balance = r.number(r.m.balance.column)
	}
	for name, t := range r.m.metadata {
		if text, empty := t.fill(r.value); empty == "" && text != "" {
			if v.metadata == nil {
				v.metadata = make(map[string]string, len(r.m.metadata))
			}
			v.metadata[name] = text
		}
	}
	return v, r.problem
}

// name fills a template that requires all its columns, and checks the ledger's rules.
func (r *rowReader) name(field string, t template, most int, check func(string) string) string {
	text, empty := t.fill(r.value)
	column := ""
	if names := t.columns(); len(names) > 0 {
		column = names[0]
	}
	switch {
	case empty != "":
		r.bad(empty, "is empty, and %s requires it", field)
	case text == "" || len(text) > most:
		r.bad(column, "the %s must have 1 to %d bytes: %q", field, most, text)
	default:
		if wrong := check(text); wrong != "" {
			r.bad(column, "the %s %q %s", field, text, wrong)
		}
	}
	return text
}

// signed is the amount, positive if it credits the account.
func (r *rowReader) signed() amount.Int {
	m := r.m
	if m.amountColumn == "" {
		credit, debit := strings.TrimSpace(r.raw(m.creditColumn)), strings.TrimSpace(r.raw(m.debitColumn))
		switch {
		case credit != "" && debit != "":
			r.bad(m.debitColumn, "has a value, and so has %s: a movement must have only one of them", m.creditColumn)
			return amount.Int{}
		case credit != "":
			return r.positive(m.creditColumn)
		case debit != "":
			return r.positive(m.debitColumn).Neg()
		}
		r.bad(m.creditColumn, "is empty, and so is %s", m.debitColumn)
		return amount.Int{}
	}
	if m.directionColumn == "" {
		n := r.number(m.amountColumn)
		if n.IsZero() {
			r.bad(m.amountColumn, "the amount is zero: there is nothing to move")
		}
		return n
	}
	says := strings.TrimSpace(r.raw(m.directionColumn))
	credit, ok := m.credit[says]
	if !ok {
		r.bad(m.directionColumn, "%q is neither among direction.credit nor direction.debit", says)
	}
	n := r.positive(m.amountColumn)
	if credit {
		return n
	}
	return n.Neg()
}

func (r *rowReader) positive(column string) amount.Int {
	n := r.number(column)
	switch n.Sign() {
	case 0:
		r.bad(column, "the amount is zero: there is nothing to move")
	case -1:
		r.bad(column, "the amount is negative, although another column has the direction")
	}
	return n
}

// number parses a decimal in the file's format.
func (r *rowReader) number(column string) amount.Int {
	text := strings.TrimSpace(r.raw(column))
	n, err := parseNumber(text, r.m.decimal, r.m.group, r.m.scale)
	switch {
	case errors.Is(err, amount.ErrTooPrecise), errors.Is(err, amount.ErrTooManyDecimals):
		r.bad(column, "%s has more decimals than %s, which has %d", text, r.m.asset, r.m.scale)
	case errors.Is(err, amount.ErrTooManyDigits), errors.Is(err, amount.ErrTooLong), errors.Is(err, amount.ErrOverflow):
		r.bad(column, "%s has more than 38 digits", text)
	case err != nil:
		r.bad(column, "%q is not an amount", text)
	}
	return n
}

// parseNumber reads a number in minor units.
func parseNumber(text, decimal, group string, scale uint8) (amount.Int, error) {
	d, err := ParseNumber(text, decimal, group)
	if err != nil {
		return amount.Int{}, err
	}
	return d.Minor(scale)
}

// ParseNumber also accepts "1.234,50", "+5", "-.50" and "007", which the ledger's own format excludes.
func ParseNumber(text, decimal, group string) (amount.Decimal, error) {
	sign := ""
	switch {
	case strings.HasPrefix(text, "-"):
		sign, text = "-", text[1:]
	case strings.HasPrefix(text, "+"):
		text = text[1:]
	}
	whole, fraction, point := strings.Cut(text, decimal)
	if group != "" {
		var err error
		if whole, err = ungroup(whole, group); err != nil {
			return amount.Decimal{}, err
		}
	}
	if whole == "" && fraction == "" {
		return amount.Decimal{}, fmt.Errorf("%w: no digits", amount.ErrSyntax)
	}
	if strings.Contains(whole, ".") { // perhaps a thousands separator, but not one in the mapping
		return amount.Decimal{}, fmt.Errorf("%w: %q has a point", amount.ErrSyntax, whole)
	}
	if whole = strings.TrimLeft(whole, "0"); whole == "" || whole[0] < '0' || whole[0] > '9' {
		whole = "0" + whole
	}
	if point && fraction != "" {
		whole += "." + fraction
	}
	if strings.Trim(whole, "0.") == "" {
		sign = "" // minus zero is zero
	}
	return amount.ParseDecimal(sign + whole)
}

// ungroup removes thousands separators, but only in valid positions: "1,2" is more likely a wrong decimal mark
// than twelve.
func ungroup(whole, group string) (string, error) {
	parts := strings.Split(whole, group)
	for i, p := range parts {
		if i > 0 && len(p) != 3 || i == 0 && len(parts) > 1 && (p == "" || len(p) > 3) {
			return "", fmt.Errorf("%w: the thousands of %q", amount.ErrSyntax, whole)
		}
	}
	return strings.Join(parts, ""), nil
}

// transfer converts the movement to a request.
func (v *movement) transfer(m *Mapping) *ledgerv1.TransferRequest {
	p := &ledgerv1.Posting{From: v.counter, To: v.account, Asset: m.asset}
	n := v.amount
	if n.Sign() < 0 {
		p.From, p.To, n = p.To, p.From, n.Neg()
	}
	p.Amount = amount.Format(n, m.scale)
	return &ledgerv1.TransferRequest{BizNo: v.bizNo, Type: v.kind, Postings: []*ledgerv1.Posting{p},
		Metadata: v.metadata, EffectiveTime: timestamppb.New(v.at)}
}

func (a *account) newAccount(code, asset string) *ledgerv1.NewAccount {
	return &ledgerv1.NewAccount{Code: code, Asset: asset, Kind: a.kind, MinBalance: a.floor, Unbounded: a.floor == nil}
}
