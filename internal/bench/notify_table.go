package bench

import (
	"fmt"
	"io"
	"time"
)

// WriteText writes a report for a terminal.
func (r *NotifyReport) WriteText(w io.Writer) error { return r.write(w, textTable(w)) }

// WriteMarkdown writes a report for a document.
func (r *NotifyReport) WriteMarkdown(w io.Writer) error { return r.write(w, markdownTable(w)) }

func (r *NotifyReport) write(w io.Writer, table func([][]string) error) error {
	m := &r.Machine
	fmt.Fprintf(w, "%s: %d cores of %s, %.0f GiB of memory, %s, PostgreSQL %s with fsync and synchronous_commit on, %s. Load, provider, service and "+
		"database share the machine.\n\n", r.StartedAt.UTC().Format(time.DateOnly), m.Cores, m.Model,
		float64(m.Memory)/(1<<30), m.System, m.Postgres, m.Go)
	fmt.Fprintf(w, "One write of 8 KiB that waits for the disk: median %s, p99 %s. %d callers; a backlog of %s; leases of %v; the snapshot is held for %v "+
		"under load.\n\n", milliseconds(m.Sync), milliseconds(m.SyncP99), r.Callers, thousands(float64(r.Backlog)),
		r.Lease, r.Held)
	if err := table(r.rows()); err != nil {
		return err
	}
	fmt.Fprint(w, "\nTargets.\n\n")
	if err := table(targetRows(r.Targets)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nThe whole took %v.\n", r.Took.Round(time.Second))
	return err
}

func (r *NotifyReport) rows() [][]string {
	rows := [][]string{{"case", "what", "messages", "messages/s", "p50", "p95", "lost", "asked for again",
		"sent twice"}}
	for i := range r.Results {
		x := &r.Results[i]
		rate, p50, p95 := "", "", ""
		if x.PerSecond > 0 {
			rate = thousands(x.PerSecond)
		}
		if x.P95 > 0 {
			p50, p95 = milliseconds(x.P50), milliseconds(x.P95)
		}
		rows = append(rows, []string{x.Name, x.What, thousands(float64(x.Messages)), rate, p50, p95, fmt.Sprint(x.Lost),
			fmt.Sprint(x.Repeated), fmt.Sprint(x.Twice)})
	}
	return rows
}

func targetRows(targets []Target) [][]string {
	rows := [][]string{{"target", "wanted", "measured", ""}}
	for _, t := range targets {
		verdict := "not reached"
		if t.Reached {
			verdict = "reached"
		}
		if !t.Measured {
			verdict = "not measured"
		}
		rows = append(rows, []string{t.What, t.Want, t.Got, verdict})
	}
	return rows
}
