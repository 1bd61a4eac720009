package bench

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// A short run measures every case, loses nothing, and writes its tables.
func TestMessagesAreMeasured(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Postgres and processes")
	}
	r, err := RunNotify(t.Context(), NotifyOptions{Backlog: 1000, Callers: 32, Held: time.Second,
		Lease:   4 * time.Second,
		Options: Options{wal: 4, Measure: time.Second, Warmup: 500 * time.Millisecond, Progress: t.Output()}})
	if err != nil {
		t.Fatal(err)
	}
	results := r.Messages.Results
	if len(results) != len(notifyCases()) {
		t.Fatalf("%d of %d cases were measured", len(results), len(notifyCases()))
	}
	for i := range results {
		x := &results[i]
		if x.Messages == 0 || x.PerSecond == 0 && x.P95 == 0 && !strings.HasSuffix(x.Name, "kill") {
			t.Errorf("%s: %s", x.Name, x.line())
		}
	}
	for i := range r.Targets {
		if !r.Targets[i].Measured {
			t.Errorf("%s is not measured", r.Targets[i].What)
		}
	}
	var text, markdown bytes.Buffer
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteMarkdown(&markdown); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"burn-down", "held-pickup", "< 15 ms", "leases of 4s"} {
		if !strings.Contains(text.String(), want) || !strings.Contains(markdown.String(), want) {
			t.Errorf("%q is missing in\n%s\n%s", want, &text, &markdown)
		}
	}
}

// Repeats under one key and under two keys are distinguished.
func TestTheSinkDistinguishesRepeats(t *testing.T) {
	s, err := newNotifySink()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for _, text := range []string{"a", "b", "c", "d"} {
		s.expect(text, time.Now())
	}
	sender := newSinkSender(s.url)
	for _, m := range [][2]string{{"a", "1"}, {"b", "2"}, {"b", "2"}, {"c", "3"}, {"c", "4"}} {
		if _, err := sender.Send(t.Context(), message(m[0], m[1])); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.result(); r.Messages != 4 || r.Lost != 1 || r.Repeated != 1 || r.Twice != 1 {
		t.Errorf("%+v", r)
	}
}

func message(text, key string) *send.Message {
	return &send.Message{Key: key, Content: send.Content{Text: text}}
}
