package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes a report for a terminal.
func (r *Report) WriteText(w io.Writer) error { return r.write(w, textTable(w)) }

// WriteMarkdown writes a report for a document.
func (r *Report) WriteMarkdown(w io.Writer) error { return r.write(w, markdownTable(w)) }

// textTable writes the rows of a table for a terminal.
func textTable(w io.Writer) func(rows [][]string) error {
	return func(rows [][]string) error {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(t, strings.Join(row, "\t"))
		}
		return t.Flush()
	}
}

// markdownTable writes the rows of a table for a document, the first one as its head.
func markdownTable(w io.Writer) func(rows [][]string) error {
	return func(rows [][]string) error {
		for i, row := range rows {
			if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
				return err
			}
			if i == 0 {
				fmt.Fprintln(w, "|"+strings.Repeat("---|", len(row)))
			}
		}
		return nil
	}
}

// write gives the parts of a report, with the tables in the form that is wanted.
func (r *Report) write(w io.Writer, table func(rows [][]string) error) error {
	fmt.Fprintln(w, strings.Join(r.conditions(), "\n\n"))
	for _, p := range r.Phases {
		fmt.Fprintf(w, "\n%s tables: %s accounts and %s entries to begin with (loaded in %.1f s, copied for the baseline in %.1f s).\n\n",
			capital(p.Tables), thousands(float64(p.Accounts)), thousands(float64(2*p.Transfers)), p.Load.Seconds(),
			p.Baseline.Seconds())
		if err := table(r.rows(p.Tables)); err != nil {
			return err
		}
	}
	fmt.Fprint(w, "\nTargets.\n\n")
	if err := table(r.targetRows()); err != nil {
		return err
	}
	if len(r.Failures) == 0 {
		_, err := fmt.Fprintf(w, "\nVerified in SQL after every run and at the end: counts, sums, balances, versions. The whole took %v.\n", r.Took.Round(time.Second))
		return err
	}
	_, err := fmt.Fprintf(w, "\nVERIFICATION FAILED, the numbers are not to be believed:\n\n- %s\n",
		strings.Join(r.Failures, "\n- "))
	return err
}

func (r *Report) conditions() []string {
	m := &r.Machine
	var settings []string
	for name, value := range m.Settings {
		settings = append(settings, name+"="+value)
	}
	slices.Sort(settings)
	commit := ""
	if m.Commit != "" {
		commit = ", ledgerd " + m.Commit
	}
	return []string{
		fmt.Sprintf("%s: %d cores of %s, %.0f GiB of memory, %s, PostgreSQL %s, %s%s.",
			r.StartedAt.UTC().Format(time.DateOnly), m.Cores,
			m.Model, float64(m.Memory)/(1<<30), m.System, m.Postgres, m.Go, commit),
		"Postgres: " + strings.Join(settings, ", ") + ".",
		fmt.Sprintf("One write of 8 KiB that waits for the disk: median %s, p99 %s.", milliseconds(m.Sync),
			milliseconds(m.SyncP99)),
		fmt.Sprintf("%d rounds of %v after %v of warm-up; medians. Transfers between %s accounts.", r.Rounds, r.Measure,
			r.Warmup,
			thousands(float64(r.Active))),
	}
}

func (r *Report) rows(tables string) [][]string {
	rows := [][]string{{"case", "what", "callers", "accounts", "transfers/s [min..max]", "p50", "p99", "× (a)",
		"a batch", "server RSS",
		"CPU µs client + server + Postgres"}}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Tables != tables {
			continue
		}
		name, accounts, ratio, batch := x.Name, "even", "", ""
		if x.noisy() {
			name += " (noisy)"
		}
		if x.Hot {
			accounts = "one hot"
		}
		if x.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", x.Ratio)
		}
		if x.PerBatch > 0 {
			batch = fmt.Sprintf("%.0f", x.PerBatch)
		}
		rows = append(rows, []string{name, x.What, thousands(float64(x.Callers)), accounts,
			fmt.Sprintf("%s [%s..%s]", thousands(x.PerSecond), thousands(x.Least), thousands(x.Most)),
			milliseconds(x.P50), milliseconds(x.P99), ratio, batch, megabytes(x.ServerMemory),
			fmt.Sprintf("%.0f + %.0f + %.0f", x.CPU.Client, x.CPU.Server, x.CPU.Postgres)})
	}
	return rows
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

// thousands writes a whole number with commas.
func thousands(n float64) string {
	s := fmt.Sprintf("%.0f", n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
