package nats_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/ledgerd/ledgerd/internal/consumer/consumertest"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// startServer starts a real server with JetStream in a separate process.
func startServer(t *testing.T) (url string) {
	t.Helper()
	program, err := exec.LookPath("nats-server")
	if err != nil { // Debian installs it outside the PATH of ordinary users
		program, err = exec.LookPath("/usr/sbin/nats-server")
	}
	if err != nil {
		t.Skip("SKIPPED, NOT TESTED: nats-server is not installed (apt-get install nats-server)")
	}
	dir := t.TempDir()
	cmd := exec.Command(program, "--addr", "127.0.0.1", "--port", "-1", "--jetstream", "--store_dir", dir,
		"--ports_file_dir", dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	file := filepath.Join(dir, fmt.Sprintf("nats-server_%d.ports", cmd.Process.Pid))
	limit := time.After(30 * time.Second)
	for {
		var ports struct{ Nats []string }
		// The server writes the file once it listens.
		if text, err := os.ReadFile(file); err == nil && json.Unmarshal(text, &ports) == nil && len(ports.Nats) > 0 {
			return ports.Nats[0]
		}
		select {
		case <-ended:
			t.Fatalf("NATS ended:\n%s", &out)
		case <-limit:
			t.Fatal("NATS does not start")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// start makes a stream.
func start(t *testing.T) consumertest.Broker {
	t.Helper()
	url := startServer(t)
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.CreateStream(context.Background(),
		jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"events.>"}})
	if err != nil {
		t.Fatal(err)
	}
	return consumertest.Broker{
		Settings: []string{"broker: nats", "url: " + url, "stream: EVENTS", "subject: events.>"},
		Send: func(id, body string) {
			m := &nats.Msg{Subject: "events.pay", Data: []byte(body), Header: nats.Header{}}
			if id != "" {
				m.Header.Set(consumertest.IDHeader, id)
			}
			if _, err := js.PublishMsg(context.Background(), m); err != nil {
				t.Error(err)
			}
		},
		Left: func() int {
			c, err := stream.Consumer(context.Background(), "billing")
			if err != nil {
				t.Error(err)
				return -1
			}
			info, err := c.Info(context.Background())
			if err != nil {
				t.Error(err)
				return -1
			}
			return int(info.NumPending) + info.NumAckPending
		},
	}
}

func TestMessagesTakeEffectOnce(t *testing.T) {
	t.Parallel()
	consumertest.EffectsOnce(t, start)
}

func TestAKilledConsumerLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	consumertest.Killed(t, start, 1000, 8)
}
