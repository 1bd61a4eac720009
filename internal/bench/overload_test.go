package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// A short run measures and verifies every case, and writes its tables.
func TestOverloadIsMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Postgres and processes")
	}
	r, err := RunOverload(t.Context(), OverloadOptions{Peak: 2, Times: 3, Beside: 2,
		Options: Options{Rounds: 1, Active: 1000, wal: 4,
			Measure: 500 * time.Millisecond, Warmup: 200 * time.Millisecond, Progress: t.Output()}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 3 || len(r.Targets) != 4 {
		t.Fatalf("%d cases and %d targets", len(r.Results), len(r.Targets))
	}
	for i := range r.Results {
		if x := &r.Results[i]; x.PerSecond == 0 || x.SmallPerSecond == 0 || x.SmallP50 == 0 {
			t.Errorf("%s: %+v", x.Name, x)
		}
	}
	var text, markdown bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"at-once", "retry-info", ">= 0.8 × the peak", "< 150 ms"} {
		if !strings.Contains(text.String(), want) || !strings.Contains(markdown.String(), want) {
			t.Errorf("%q is missing in\n%s\n%s", want, &text, &markdown)
		}
	}
}
