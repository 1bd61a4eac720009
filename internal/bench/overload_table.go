package bench

import (
	"fmt"
	"io"
	"time"
)

// WriteText writes a report for a terminal.
func (r *OverloadReport) WriteText(w io.Writer) error { return r.write(w, textTable(w)) }

// WriteMarkdown writes a report for a document.
func (r *OverloadReport) WriteMarkdown(w io.Writer) error { return r.write(w, markdownTable(w)) }

func (r *OverloadReport) write(w io.Writer, table func([][]string) error) error {
	m := &r.Machine
	fmt.Fprintf(w, "%s: %d cores of %s, %.0f GiB of memory, %s, PostgreSQL %s with fsync and synchronous_commit on, %s. Load, service and "+
		"database share the machine.\n\n", r.StartedAt.UTC().Format(time.DateOnly), m.Cores, m.Model,
		float64(m.Memory)/(1<<30), m.System, m.Postgres, m.Go)
	fmt.Fprintf(w, "Every call of the large tenant is a TransferBatch of %s. %d callers of the small tenant make single transfers. %d rounds of %v "+
		"after %v of warm-up; medians.\n\n", thousands(overloadItems), r.Beside, r.Rounds, r.Measure, r.Warmup)
	if err := table(r.rows()); err != nil {
		return err
	}
	fmt.Fprint(w, "\nTargets.\n\n")
	if err := table(targetRows(r.Targets)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nVerified in SQL after every run. The whole took %v.\n", r.Took.Round(time.Second))
	return err
}

func (r *OverloadReport) rows() [][]string {
	rows := [][]string{{"case", "what", "callers", "transfers/s [min..max]", "× peak", "refused calls/s", "p50",
		"small tenant/s", "its p50",
		"its p99", "server RSS", "CPU µs client + server + Postgres", "cores of others"}}
	for i := range r.Results {
		x := &r.Results[i]
		rows = append(rows, []string{x.Name, x.What, thousands(float64(x.Callers)),
			fmt.Sprintf("%s [%s..%s]", thousands(x.PerSecond), thousands(x.Least), thousands(x.Most)),
			fmt.Sprintf("%.2f", x.Ratio),
			thousands(x.Refused), milliseconds(x.P50), fmt.Sprintf("%.1f", x.SmallPerSecond), milliseconds(x.SmallP50),
			milliseconds(x.SmallP99),
			megabytes(x.ServerMemory), fmt.Sprintf("%.0f + %.0f + %.0f", x.CPU.Client, x.CPU.Server, x.CPU.Postgres),
			fmt.Sprintf("%.1f", x.Foreign)})
	}
	return rows
}
