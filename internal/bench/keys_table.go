package bench

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes a report for a terminal.
func (r *KeyReport) WriteText(w io.Writer) error {
	fmt.Fprintln(w, strings.Join(r.conditions(), "\n\n")+"\n")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.rows() {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// WriteMarkdown writes a report for a document.
func (r *KeyReport) WriteMarkdown(w io.Writer) error {
	fmt.Fprintln(w, strings.Join(r.conditions(), "\n\n")+"\n")
	for i, row := range r.rows() {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintln(w, "|"+strings.Repeat("---|", len(row)))
		}
	}
	_, err := fmt.Fprintf(w, "\nThe whole took %v.\n", r.Took.Round(time.Second))
	return err
}

func (r *KeyReport) conditions() []string {
	m := &r.Machine
	redis := "Redis was not there"
	if r.RedisVersion != "" {
		redis = "Redis " + r.RedisVersion + " with appendonly, appendfsync everysec"
	}
	return []string{
		fmt.Sprintf("%s: %d cores of %s, %.0f GiB of memory, %s, PostgreSQL %s with fsync and synchronous_commit on, %s, %s.",
			r.StartedAt.UTC().Format(time.DateOnly), m.Cores, m.Model, float64(m.Memory)/(1<<30), m.System, m.Postgres,
			redis, m.Go),
		fmt.Sprintf("One write of 8 KiB that waits for the disk: median %s, p99 %s.", milliseconds(m.Sync),
			milliseconds(m.SyncP99)),
		fmt.Sprintf("%d callers; %d rounds of %v after %v of warm-up; medians.", r.Callers, r.Rounds, r.Measure,
			r.Warmup),
	}
}

func (r *KeyReport) rows() [][]string {
	rows := [][]string{{"case", "what", "where", "operations/s [min..max]", "p50", "p99", "× Redis"}}
	for i := range r.Results {
		x := &r.Results[i]
		ratio := ""
		if x.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", x.Ratio)
		}
		rows = append(rows, []string{x.Name, x.What, x.Where,
			fmt.Sprintf("%s [%s..%s]", thousands(x.PerSecond), thousands(x.Least), thousands(x.Most)),
			milliseconds(x.P50), milliseconds(x.P99), ratio})
	}
	return rows
}
