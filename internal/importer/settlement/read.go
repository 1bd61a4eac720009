package settlement

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/csvfile"
)

// line is one row of a file.
type line struct {
	file, said string // path; the value of the kind's column
	number     int
	kind       kind
	id         string // from its own column; may be empty
	transactionID,
	outTradeNo,
	refundNo,
	refundID string
	at              time.Time
	amount          amount.Decimal // negative only in rows of kind fee or other
	currency        string
	fee             amount.Decimal // above zero: the gateway keeps it
	settledAmount   amount.Decimal // of payouts: the amount paid out
	settledCurrency string         // of the fee and of payouts
	pending, failed bool
}

// key identifies a row in all files of its gateway.
func (l *line) key() string {
	switch {
	case l.id != "":
		return "line/" + l.id
	case l.kind == payment || l.kind == other || l.kind == ignored:
		return string(l.kind) + "/" + l.transactionID
	case l.refundNo != "":
		return string(l.kind) + "/" + l.refundNo
	}
	return string(l.kind) + "/id/" + l.refundID
}

// same reports whether two rows of different files have the same content.
func (l *line) same(x *line) bool {
	a, b := *l, *x
	a.file, a.number, b.file, b.number = "", 0, "", 0
	return a.at.Equal(b.at) && func() bool { a.at, b.at = time.Time{}, time.Time{}; return a == b }()
}

// reader reads the rows of one file.
type reader struct {
	m       *Mapping
	path    string
	index   map[string]int
	record  []string
	place   importer.Place
	problem *importer.Problem
	sums    map[sum]amount.Decimal
}

// content is the content of a file.
type content struct {
	lines      []*line
	start, end time.Time // zero: not stated
	problems   int
	wrong      []string // problems of totals that differ from the sums of the rows
}

// readFile reads a file. It prints its problems.
func readFile(in io.Reader, path string, m *Mapping, problems *importer.Problems) (*content, error) {
	rows := newRows(in, m)
	columns, err := rows.columns()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := &reader{m: m, path: path, index: map[string]int{}, sums: map[sum]amount.Decimal{}}
	for i, name := range columns {
		r.index[name] = i
	}
	c, first := &content{}, map[string]int{}
	for {
		record, problem, err := rows.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if problem == nil {
			r.record, r.place = record, importer.Place{Line: rows.line}
			var l *line
			if l, problem = r.read(); problem == nil && l.kind != ignored {
				if before := first[l.key()]; before != 0 && l.kind != other {
					problem = r.place.Problem("is the same %s as line %d: %s", l.kind, before, l.key())
				}
				first[l.key()] = l.number
				c.lines = append(c.lines, l)
			}
		}
		if problem != nil {
			c.problems++
			problem.Text = path + ": " + problem.Text
			problems.Print(problem)
		}
	}
	if c.problems == 0 {
		c.wrong = r.compareTotals(rows)
	}
	return c, r.readPeriod(rows, c)
}

func (r *reader) readPeriod(rows *rows, c *content) (err error) {
	if rows.period == nil {
		return nil
	}
	for name, t := range map[string]*time.Time{"start": &c.start, "end": &c.end} {
		if text := rows.period[name]; text != "" {
			if *t, err = time.ParseInLocation(r.m.periodFmt, text, r.m.zone); err != nil {
				return fmt.Errorf("%s: the %s of its period, %q, is not in the mapping's period.format",
					r.path, name, text)
			}
		}
	}
	return nil
}

func (r *reader) bad(column, format string, args ...any) {
	if r.problem == nil {
		r.problem = importer.Place{Line: r.place.Line, Column: column}.Problem(format, args...)
	}
}

func (r *reader) value(column string) string {
	if column == "" {
		return ""
	}
	return strings.TrimSpace(r.record[r.index[column]])
}

// read reads a row. A problem names the column.
func (r *reader) read() (*line, *importer.Problem) {
	r.problem = nil
	m := r.m
	l := &line{file: r.path, number: r.place.Line, said: r.value(m.Kind.Column), kind: other}
	if k, ok := m.kinds[l.said]; ok {
		l.kind = k
	}
	for _, status := range m.Status.Pending {
		l.pending = l.pending || r.value(m.Status.Column) == status
	}
	for _, status := range m.Status.Failed {
		l.failed = l.failed || r.value(m.Status.Column) == status
	}
	l.id, l.transactionID, l.outTradeNo = r.name(m.ID), r.name(m.TransactionID), r.name(m.OutTradeNo)
	if l.kind == refund || l.kind == refundFailure {
		l.refundNo, l.refundID = r.name(m.Refund.No), r.name(m.Refund.ID)
	}
	if l.kind != ignored {
		r.required(l)
		r.money(l)
		var err error
		if l.at, err = time.ParseInLocation(m.layout, r.value(m.Date.Column), m.zone); err != nil {
			r.bad(m.Date.Column, "%q is not a date in the mapping's format", r.value(m.Date.Column))
		}
	}
	if r.problem == nil {
		r.addUp(l)
	}
	return l, r.problem
}

// required checks that a row has its numbers.
func (r *reader) required(l *line) {
	m := r.m
	switch {
	case m.ID != "" && l.id == "":
		r.bad(m.ID, "is empty")
	case l.kind == payment && l.transactionID == "":
		r.bad(m.TransactionID, "is empty: a payment without its number cannot be compared")
	case (l.kind == refund || l.kind == refundFailure) && l.refundNo == "" && l.refundID == "":
		r.bad(m.Refund.No, "is empty: a refund without its number cannot be compared")
	}
}

// name reads a number that the gateway or the merchant has given.
func (r *reader) name(column string) string {
	v := r.value(column)
	if wrong := importer.BadName(v); wrong != "" || len(v) > 64 {
		r.bad(column, "%.80q is not a number of at most 64 printable ASCII characters", v)
	}
	return v
}

// money reads the amounts.
func (r *reader) money(l *line) {
	m := r.m
	column := m.Amount.Column
	if (l.kind == refund || l.kind == refundFailure) && m.Amount.Refund != "" {
		column = m.Amount.Refund
	}
	l.currency = r.currency(m.Currency.Column, m.Currency.Code)
	l.settledCurrency = l.currency
	settled := m.Settled.Column
	if m.Settled.Currency != "" {
		l.settledCurrency = r.currency(m.Settled.Currency, "")
	}
	if settled != "" {
		l.settledAmount = r.number(settled)
	}
	ofBalance := l.kind != payment && l.kind != refund && l.kind != refundFailure
	if settled != "" && (ofBalance || r.value(column) == "") {
		l.amount, l.currency = l.settledAmount, l.settledCurrency
	} else {
		l.amount = r.number(column)
	}
	if settled == "" {
		l.settledAmount = l.amount
	}
	if l.currency == "" {
		r.bad(m.Currency.Column, "is empty, and the amount is not")
	}
	if l.kind == payment && l.amount.Coef.Sign() <= 0 {
		r.bad(column, "%s is not the amount of a payment: it must be above zero", l.amount)
	}
	if l.kind == refund && l.amount.Coef.IsZero() {
		r.bad(column, "the amount of the refund is zero")
	}
	r.fee(l)
	if l.kind != fee && l.kind != other {
		l.amount, l.settledAmount = abs(l.amount), abs(l.settledAmount)
	}
}

// fee reads the fee, which the gateway keeps.
func (r *reader) fee(l *line) {
	if r.m.Fee.Column != "" {
		if l.fee = r.number(r.m.Fee.Column); r.m.Fee.Sign == "balance" {
			l.fee = neg(l.fee)
		}
	}
	if l.kind == fee { // the row moves the balance by its amount less its fee
		var ok bool
		if l.fee, ok = add(l.fee, neg(l.settledAmount)); !ok {
			r.bad(r.m.Fee.Column, "the fee has more than 38 digits")
		}
	}
}

func (r *reader) currency(column, code string) string {
	if column == "" {
		return code
	}
	v := strings.ToUpper(r.value(column))
	if wrong := importer.BadName(v); v == "" || len(v) > 16 || wrong != "" {
		if r.m.Settled.Currency != "" && column == r.m.Currency.Column && v == "" {
			return "" // the settled amount has the currency
		}
		r.bad(column, "%.20q is not a currency", v)
	}
	return v
}

// number reads a decimal. An empty one is zero.
func (r *reader) number(column string) amount.Decimal {
	text := r.value(column)
	if text == "" {
		return amount.Decimal{}
	}
	d, err := csvfile.ParseNumber(text, r.m.Amount.Decimal, r.m.Amount.Group)
	if err != nil {
		r.bad(column, "%.80q is not an amount: %v", text, err)
	}
	return d
}

// addUp adds the row to the sums that the file's totals are compared with.
func (r *reader) addUp(l *line) {
	for _, s := range r.m.sums {
		if _, again := r.sums[s]; !again {
			r.sums[s] = amount.Decimal{}
		}
	}
	for s, before := range r.sums {
		if s.of != "" && s.of != l.kind {
			continue
		}
		n := amount.NewDecimal(amount.FromInt64(1), 0)
		if s.column != "" {
			n = r.number(s.column)
		}
		var ok bool
		if r.sums[s], ok = add(before, n); !ok {
			r.bad(s.column, "the sum of the column has more than 38 digits")
		}
	}
}

// compareTotals compares the totals that the file states with the sums of its rows.
func (r *reader) compareTotals(rows *rows) (wrong []string) {
	for _, s := range r.m.sums {
		what := strings.TrimSpace(string(s.of) + "s " + s.column)
		if s.of == "" {
			what = strings.TrimSpace("rows " + s.column)
		}
		text, said := rows.stated[s]
		if !said {
			wrong = append(wrong, fmt.Sprintf("%s: the total of %s is missing: the file may be cut off", r.path, what))
			continue
		}
		stated, err := csvfile.ParseNumber(text, r.m.Amount.Decimal, r.m.Amount.Group)
		if err != nil || stated != r.sums[s] {
			wrong = append(wrong, fmt.Sprintf("%s: the total of %s is stated as %s, and the rows have %s", r.path, what,
				strconv.Quote(text), r.sums[s]))
		}
	}
	return wrong
}

func abs(d amount.Decimal) amount.Decimal {
	if d.Coef.Sign() < 0 {
		return neg(d)
	}
	return d
}

func neg(d amount.Decimal) amount.Decimal { return amount.NewDecimal(d.Coef.Neg(), d.Scale) }

// add adds two decimals. It returns false beyond 38 digits.
func add(a, b amount.Decimal) (amount.Decimal, bool) {
	scale := max(a.Scale, b.Scale)
	x, err := a.Minor(scale)
	y, err2 := b.Minor(scale)
	n, ok := x.Add(y)
	return amount.NewDecimal(n, scale), err == nil && err2 == nil && ok
}
