package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/bench/load"
)

// made is a report with the given rates.
func made(rates map[string]float64) *Report {
	r := &Report{Document: LedgerDocument, Rounds: 3, Phases: []Phase{{Tables: Small, Accounts: 10, Transfers: 11}}}
	for _, c := range smallCases() {
		rate, ok := rates[c.Name]
		if !ok {
			continue
		}
		x := Result{Tables: Small, Case: c}
		for _, times := range []float64{1, 0.9, 1.2} {
			x.Rounds = append(x.Rounds, Round{Rates: Rates{PerSecond: rate * times, P50: time.Millisecond,
				P99: 13 * time.Millisecond},
				ServerMemory: 100 << 20})
		}
		x.summarise()
		r.Results = append(r.Results, x)
	}
	r.judge()
	return r
}

func TestRatiosAreToTheBetterBaselineOfTheSameAccounts(t *testing.T) {
	t.Parallel()
	r := made(map[string]float64{"a-16": 1000, "a-32": 2000, "t-32": 9000, "a-16-hot": 300, "a-32-hot": 200,
		"b-256": 4000, "b-256-hot": 3000,
		"b-64": 10, "b-1024": 10})
	if x := r.find(Small, "b-256"); x.PerSecond != 4000 || x.Least != 3600 || x.Most != 4800 || x.Ratio != 2 {
		t.Errorf("even: %+v", x)
	}
	if x := r.find(Small, "b-256-hot"); x.Ratio != 10 {
		t.Errorf("hot: %v", x.Ratio)
	}
	got := map[string]bool{}
	for _, target := range r.Targets {
		if target.Measured {
			got[target.What+" "+target.Want] = target.Reached
		}
	}
	want := map[string]bool{"b-256 >= 1.7 × (a)": true, "b-256-hot >= 8 × (a)": true, "b-256-hot >= 0.9 × b-256": false,
		"b-64, p99 < 12 ms": false, "b-1024, memory of the server < 256 MB": true}
	if len(got) != len(want) {
		t.Errorf("judged: %v", got)
	}
	for what, reached := range want {
		if got[what] != reached {
			t.Errorf("%s: %v", what, got[what])
		}
	}
}

func TestEveryTargetIsOfACaseThatExists(t *testing.T) {
	t.Parallel()
	for _, target := range ratioTargets {
		if len(selected(smallCases(), []string{target.name})) != 1 {
			t.Errorf("no case %s", target.name)
		}
		if target.tables == Big && len(selected(bigCases(), []string{target.name})) != 1 {
			t.Errorf("no case %s on the big tables", target.name)
		}
		if target.of != "" && len(selected(smallCases(), []string{target.of})) != 1 {
			t.Errorf("no case %s", target.of)
		}
	}
}

func TestPatternsWithoutAMatchAreRefused(t *testing.T) {
	t.Parallel()
	if err := CheckPatterns([]string{"a-*", "w-256"}); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"x-1", "[", "b-2"} {
		if CheckPatterns([]string{bad}) == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestDocumentKeepsTextOutsideItsMarks(t *testing.T) {
	begin, end := LedgerDocument.marks()
	docBegin, docEnd := string(begin), string(end)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "performance.md")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := made(map[string]float64{"a-16": 1234, "d-8": 12345})
	r.Machine.Model = strings.Repeat("a model ", 20)
	for range 2 {
		write("before\n" + docBegin + "\nold\n" + docEnd + "\nafter\n")
		if err := LedgerDocument.Write(file, r.WriteMarkdown); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"before\n", "\nafter\n",
		"| d-8 | TransferBatch of 1,000 | 8 | even | 12,345 [11,110..14,814] |", "|---|", "10.00 ×"} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%q is missing:\n%s", part, text)
		}
	}
	if strings.Contains(string(text), "old") {
		t.Error("the old table is still there")
	}
	for line := range strings.Lines(string(text)) {
		if len(line) > 121 && line[0] != '|' {
			t.Errorf("wider than 120 columns: %s", line)
		}
	}
	write(docEnd + docBegin)
	if LedgerDocument.Write(file, r.WriteMarkdown) == nil || LedgerDocument.Check(file) == nil {
		t.Error("marks in the wrong order are accepted")
	}
}

func TestForeignCPUExcludesOurProcesses(t *testing.T) {
	t.Parallel()
	second := time.Second
	run := newRun(&load.Result{Measured: 1000, Seconds: 2},
		[2]sample{{}, {client: second, server: second / 2, postgres: second / 4,
			self: second / 4, machine: 3 * second, stolen: second}})
	if run.PerSecond != 500 || run.CPU != (CPU{1000, 500, 250}) || run.Foreign != 0.5 || run.Stolen != 0.5 {
		t.Errorf("%+v", run)
	}
}
