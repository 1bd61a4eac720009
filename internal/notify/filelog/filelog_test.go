package filelog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/notify/filelog"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// many keys cause collisions between processes
const many = 3000

func TestMain(m *testing.M) {
	if name := os.Getenv("FILELOG_TEST_FILE"); name != "" {
		_, _ = io.ReadAll(os.Stdin) // until all processes have started
		s, err := filelog.New(name)
		for _, n := range rand.Perm(many) {
			if err == nil {
				_, err = s.Send(context.Background(), message(fmt.Sprintf("k-%d", n)))
			}
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func message(key string) *send.Message {
	return &send.Message{Tenant: 1, ID: 7, Key: key, Channel: send.SMS, Attempt: 1, Recipient: "+8613812345678",
		Content: send.Content{Text: "<hello>\n"}}
}

func open(t *testing.T, name string) *filelog.Sender {
	t.Helper()
	s, err := filelog.New(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func write(t *testing.T, s *filelog.Sender, m *send.Message) send.Receipt {
	t.Helper()
	r, err := s.Send(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func keys(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for l := range strings.Lines(string(text)) {
		var m struct{ Key string }
		if err := json.Unmarshal([]byte(l), &m); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		all = append(all, m.Key)
	}
	return all
}

func TestMessageIsALineOfJSON(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new", "messages.json")
	s := open(t, name)
	m := message("k")
	m.Content = send.Content{Subject: "s", Text: "<t>\n", HTML: "<p>",
		Attachments: []send.Attachment{{Name: "a", Type: "b/c", Data: []byte("123")}},
		Template:    map[string]string{"p": "T1"}, Params: []send.Param{{Name: "n", Value: "v"}}, Type: "order.paid",
		Data: []byte(`{"a": 1}`), Headers: map[string]string{"X": "y"}}
	write(t, s, m)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), `","channel"`)
	const want = `:"sms","tenant":1,"id":7,"key":"k","attempt":1,"recipient":"+8613812345678","subject":"s",` +
		`"text":"<t>\n","html":"<p>",` +
		`"attachments":[{"name":"a","type":"b/c","bytes":3}],"template":{"p":"T1"},"params":[{"name":"n",` +
		`"value":"v"}],"type":"order.paid","data":{"a":1},"headers":{"X":"y"}}` + "\n"
	if rest != want {
		t.Errorf("got\n%s\nwant\n%s", rest, want)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	m.Content.Data = []byte("no JSON")
	m.Key = "other"
	if _, err := s.Send(t.Context(), m); send.Failed(err).Outcome != send.Permanent {
		t.Error(err)
	}
}

func TestKeyIsWrittenOnce(t *testing.T) {
	name := filepath.Join(t.TempDir(), "messages.json")
	s := open(t, name)
	first := write(t, s, message("a"))
	if second := write(t, s, message("a")); second != first || first.ProviderMessageID == "" {
		t.Errorf("%v, then %v", first, second)
	}
	if r := write(t, open(t, name), message("a")); r != first {
		t.Errorf("another process: %v, want %v", r, first)
	}
	write(t, s, message("b"))
	if k := keys(t, name); len(k) != 2 {
		t.Errorf("%v", k)
	}
	if err := os.Truncate(name, 0); err != nil {
		t.Fatal(err)
	}
	write(t, s, message("a"))
	if k := keys(t, name); len(k) != 1 {
		t.Errorf("after truncation: %v", k)
	}
}

func TestIncompleteLineIsRemoved(t *testing.T) {
	name := filepath.Join(t.TempDir(), "messages.json")
	write(t, open(t, name), message("a"))
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	torn := append(text, strings.ReplaceAll(string(text[:len(text)-3]), `"key":"a"`, `"key":"b"`)...)
	if err := os.WriteFile(name, torn, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, name)
	for _, key := range []string{"a", "b", "c"} {
		write(t, s, message(key))
	}
	if k := strings.Join(keys(t, name), ""); k != "abc" {
		t.Errorf("%s", k)
	}
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestProcessesWriteOneFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "messages.json")
	var all sync.WaitGroup
	var begin []io.Closer
	for range 3 {
		process := exec.Command(os.Args[0])
		process.Env = append(os.Environ(), "FILELOG_TEST_FILE="+name)
		var out bytes.Buffer
		process.Stdout, process.Stderr = &out, &out
		stdin, err := process.StdinPipe()
		if err == nil {
			err = process.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		begin = append(begin, stdin)
		all.Go(func() {
			if err := process.Wait(); err != nil {
				t.Errorf("%v: %s", err, &out)
			}
		})
	}
	for _, b := range begin {
		_ = b.Close()
	}
	s := open(t, name)
	for range 4 {
		all.Go(func() {
			for _, n := range rand.Perm(many) {
				if _, err := s.Send(t.Context(), message(fmt.Sprintf("k-%d", n))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	seen := map[string]bool{}
	for _, k := range keys(t, name) {
		if seen[k] {
			t.Errorf("%s twice", k)
		}
		seen[k] = true
	}
	if len(seen) != many {
		t.Errorf("%d keys", len(seen))
	}
}

func TestCancelledAttemptWritesNothing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "messages.json")
	s := open(t, name)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Send(ctx, message("a")); send.Failed(err).Outcome != send.Temporary {
		t.Error(err)
	}
	if k := keys(t, name); len(k) != 0 {
		t.Errorf("%v", k)
	}
}
