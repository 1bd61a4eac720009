package settlement

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// report is the result of a run.
type report struct {
	Gateway  string         `json:"gateway"`
	Files    []string       `json:"files"`
	Start    time.Time      `json:"start_time"`
	End      time.Time      `json:"end_time"`
	Rows     int            `json:"rows"`
	Repeated int            `json:"repeated_rows,omitempty"`
	Counts   map[Result]int `json:"counts"`
	Sums     []*money       `json:"sums"`
	Findings []*Finding     `json:"findings"`
	Posting  string         `json:"posting,omitempty"`
	Matches  bool           `json:"matches"`
	Accounts Accounts       `json:"-"`
}

// money has the sums of the files in one currency.
type money struct {
	Currency string `json:"currency"`
	Payments string `json:"payments"`
	Refunds  string `json:"refunds"`
	Fees     string `json:"fees"`
	Payouts  string `json:"payouts"`
}

func (r *report) fill(c *comparison) {
	r.Counts, r.Findings, r.Matches = map[Result]int{}, []*Finding{}, true
	for _, f := range c.findings {
		r.Counts[f.Result]++
		r.Findings = append(r.Findings, f)
		r.Matches = r.Matches && !f.Result.mismatch()
	}
	slices.SortStableFunc(r.Findings, func(a, b *Finding) int {
		return slices.Index(results, a.Result) - slices.Index(results, b.Result)
	})
	sums := map[string]map[string]amount.Decimal{}
	plus := func(currency, what string, n amount.Decimal) {
		if sums[currency] == nil {
			sums[currency] = map[string]amount.Decimal{}
		}
		if total, ok := add(sums[currency][what], n); ok {
			sums[currency][what] = total
		}
	}
	for _, l := range c.lines {
		switch l.kind {
		case payment, refund:
			plus(l.currency, string(l.kind), l.amount)
		case refundFailure:
			plus(l.currency, string(refund), neg(l.amount))
		case payout:
			plus(l.settledCurrency, string(payout), l.settledAmount)
		case payoutReversal:
			plus(l.settledCurrency, string(payout), neg(l.settledAmount))
		}
		if l.kind != other {
			plus(l.settledCurrency, string(fee), l.fee)
		}
	}
	for _, currency := range sorted(sums) {
		s := sums[currency]
		r.Sums = append(r.Sums, &money{currency, s[string(payment)].String(), s[string(refund)].String(),
			s[string(fee)].String(), s[string(payout)].String()})
	}
}

func (r *report) write(o *Options) error {
	if !o.All {
		r.Findings = slices.DeleteFunc(r.Findings, func(f *Finding) bool {
			return f.Result == Matched || f.Result == Posted
		})
	}
	if o.JSON {
		e := json.NewEncoder(o.Out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	return r.table(o.Out)
}

func (r *report) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	p := func(cells ...string) {
		for i := range cells {
			cells[i] = quoted(cells[i])
		}
		fmt.Fprintln(w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	p(fmt.Sprintf("%s, %s to %s: %s", r.Gateway, r.Start.Format(time.RFC3339), r.End.Format(time.RFC3339),
		importer.Plural(r.Rows, "row")))
	if r.Repeated > 0 {
		p(importer.Plural(r.Repeated, "row") + " of another file too")
	}
	for _, s := range r.Sums {
		p(fmt.Sprintf("%s: payments %s, refunds %s, fees %s, payouts %s", s.Currency, s.Payments, s.Refunds, s.Fees,
			s.Payouts))
	}
	if r.Accounts.Fee == "" {
		p("fees were not compared: give --fee-account")
	}
	if r.Accounts.Bank == "" {
		p("payouts were not compared: give --bank-account")
	}
	for _, result := range results {
		if n := r.Counts[result]; n > 0 {
			p(importer.Count(n) + " " + strings.ReplaceAll(string(result), "_", " "))
		}
	}
	if r.Posting != "" {
		p("posted: " + r.Posting)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(r.Findings) > 0 {
		fmt.Fprintln(out)
		p("RESULT", "WHAT", "LINE", "TRANSACTION", "NUMBER", "CURRENCY", "GATEWAY", "LEDGERD", "DETAIL")
	}
	for _, f := range r.Findings {
		number, place := f.OutTradeNo, ""
		if f.RefundNo != "" || f.RefundID != "" {
			if number = f.RefundNo; number == "" {
				number = f.RefundID
			}
		}
		if f.Line > 0 {
			place = fmt.Sprint(f.Line)
			if len(r.Files) > 1 {
				place = f.File + ":" + place
			}
		}
		p(strings.ReplaceAll(string(f.Result), "_", " "), f.Subject, place, f.TransactionID, number, f.Currency,
			f.Gateway, f.Ledgerd, f.Detail)
	}
	return w.Flush()
}
