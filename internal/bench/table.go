package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// section is a paragraph, or a table whose first row is its header.
type section struct {
	text string
	rows [][]string
}

// layout describes the reports of a benchmark.
type layout struct {
	body     func(*Report) []section
	verified string // how the results were verified
}

var layouts = map[Document]layout{
	LedgerDocument: {(*Report).ledgerSections,
		"Verified in SQL after every run and at the end: counts, sums, balances, versions. "},
	KeysDocument:     {(*Report).keySections, ""},
	NotifyDocument:   {(*Report).messageSections, ""},
	OverloadDocument: {(*Report).overloadSections, "Verified in SQL after every run. "},
	SaleDocument: {(*Report).saleSections,
		"Counted in SQL after every sale: one order for each unit, and none twice for a buyer. " +
			"All answers to a winner had the same order number. "},
	CheckoutDocument: {(*Report).checkoutSections,
		"Counted in SQL after every round: each acknowledged order is paid, sold and posted once. "},
	StockDocument: {(*Report).stockSections,
		"Counted in SQL at the end: every acknowledged sale, and no unit oversold. "},
}

// WriteText writes a report for a terminal.
func (r *Report) WriteText(w io.Writer) error {
	return r.write(w, func(rows [][]string) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
		return t.Flush()
	})
}

// WriteMarkdown writes a report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error {
	return r.write(w, func(rows [][]string) error {
		for i, row := range rows {
			if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
				return err
			}
			if i == 0 {
				fmt.Fprintln(w, "|"+strings.Repeat("---|", len(row)))
			}
		}
		return nil
	})
}

// write writes the report, with tables in the given format.
func (r *Report) write(w io.Writer, table func(rows [][]string) error) error {
	m, layout := &r.Machine, layouts[r.Document]
	commit := ""
	if m.Commit != "" {
		commit = ", ledgerd " + m.Commit
	}
	all := []section{
		{text: fmt.Sprintf("%s: %d cores of %s, %.0f GiB of memory, %s, PostgreSQL %s with fsync and "+
			"synchronous_commit on, %s%s.",
			r.StartedAt.UTC().Format(time.DateOnly), m.Cores, m.Model, float64(m.Memory)/(1<<30), m.System, m.Postgres,
			m.Go, commit)},
		{text: fmt.Sprintf("One write of 8 KiB that waits for the disk: median %s, p99 %s.", milliseconds(m.Sync),
			milliseconds(m.SyncP99))},
	}
	all = append(all, layout.body(r)...)
	if len(r.Targets) > 0 {
		all = append(all, section{text: "Targets."}, section{rows: r.targetRows()})
	}
	end := fmt.Sprintf("%sThe whole took %v.", layout.verified, r.Took.Round(time.Second))
	if len(r.Failures) > 0 {
		end = "VERIFICATION FAILED, the numbers are not valid:\n\n- " + strings.Join(r.Failures, "\n- ")
	}
	for _, s := range append(all, section{text: end}) {
		if s.rows == nil {
			fmt.Fprintln(w, wrap(s.text))
		} else if err := table(s.rows); err != nil {
			return err
		}
		if s.text != end {
			fmt.Fprintln(w)
		}
	}
	return nil
}

// wrap breaks lines at 120 columns.
func wrap(text string) string {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		column := 0
		for word := range strings.SplitSeq(line, " ") {
			switch {
			case column > 0 && column+1+len(word) > 120:
				b.WriteByte('\n')
				column = 0
			case column > 0:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += len(word)
		}
	}
	return b.String()
}

// length is the text of how long a benchmark measured.
func (r *Report) length() string {
	return fmt.Sprintf("%d rounds of %v after %v of warm-up; medians.", r.Rounds, r.Measure, r.Warmup)
}

func (r *Report) ledgerSections() []section {
	var settings []string
	for name, value := range r.Machine.Settings {
		settings = append(settings, name+"="+value)
	}
	slices.Sort(settings)
	all := []section{
		{text: "Postgres: " + strings.Join(settings, ", ") + "."},
		{text: r.length() + fmt.Sprintf(" Transfers between %s accounts.", thousands(float64(r.Active)))},
	}
	for _, p := range r.Phases {
		all = append(all,
			section{text: fmt.Sprintf("%s tables: %s accounts and %s entries to begin with (loaded in %.1f s, "+
				"copied for the baseline in %.1f s).",
				capital(p.Tables), thousands(float64(p.Accounts)), thousands(float64(2*p.Transfers)), p.Load.Seconds(),
				p.Baseline.Seconds())},
			section{rows: r.rows(p.Tables)})
	}
	return all
}

func (r *Report) rows(tables string) [][]string {
	rows := [][]string{{"case", "what", "callers", "accounts", "transfers/s [min..max]", "p50", "p99", "× (a)",
		"a batch", "server RSS", "CPU µs client + server + Postgres"}}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Tables != tables {
			continue
		}
		name, accounts, batch := x.Name, "even", ""
		if x.noisy() {
			name += " (noisy)"
		}
		if x.Hot {
			accounts = "one hot"
		}
		if x.PerBatch > 0 {
			batch = fmt.Sprintf("%.0f", x.PerBatch)
		}
		rows = append(rows, []string{name, x.What, thousands(float64(x.Callers)), accounts, x.rate(),
			milliseconds(x.P50), milliseconds(x.P99), x.ratio(), batch, megabytes(x.ServerMemory), x.CPU.String()})
	}
	return rows
}

// rate formats the operations a second with their range.
func (r *Result) rate() string {
	return fmt.Sprintf("%s [%s..%s]", thousands(r.PerSecond), thousands(r.Least), thousands(r.Most))
}

// ratio formats the ratio, if there is one.
func (r *Result) ratio() string {
	if r.Ratio == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", r.Ratio)
}

// String formats the three times.
func (c CPU) String() string {
	return fmt.Sprintf("%.0f + %.0f + %.0f", c.Client, c.Server, c.Postgres)
}

func (r *Report) targetRows() [][]string {
	rows := [][]string{{"target", "wanted", "measured", ""}}
	missing := 0
	for _, t := range r.Targets {
		verdict := "not reached"
		if t.Reached {
			verdict = "reached"
		}
		if !t.Measured {
			missing++
			continue
		}
		rows = append(rows, []string{t.What, t.Want, t.Got, verdict})
	}
	if missing > 0 {
		rows = append(rows, []string{fmt.Sprintf("%d others", missing), "", "", "not measured"})
	}
	return rows
}

func milliseconds(d time.Duration) string {
	ms := float64(d) / float64(time.Millisecond)
	if ms < 10 {
		return fmt.Sprintf("%.2f ms", ms)
	}
	return fmt.Sprintf("%.1f ms", ms)
}

func megabytes(n int64) string { return fmt.Sprintf("%d MB", (n+1<<20-1)>>20) }

// thousands formats a whole number with commas.
func thousands(n float64) string {
	s := fmt.Sprintf("%.0f", n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
