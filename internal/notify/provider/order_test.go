package provider_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ledgerd/ledgerd/internal/notify/emailtest"
	"github.com/ledgerd/ledgerd/internal/notify/provider"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// pair is a sender with two SMTP servers, a before b.
type pair struct {
	a, b    *emailtest.Server
	sender  send.Sender
	metrics *prometheus.Registry
	log     *bytes.Buffer
}

// settings returns the YAML of an SMTP provider, with additional lines.
func settings(name string, s *emailtest.Server, more ...string) string {
	text := fmt.Sprintf("  - kind: smtp\n    name: %s\n    host: %s\n    port: %d\n    tls: none\n    from: "+
		"Shop <no-reply@shop.example>\n", name, s.Host, s.Port)
	for _, m := range more {
		text += "    " + m + "\n"
	}
	return text
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "notify.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func tenantNumber(name string) (int32, error) {
	n, ok := map[string]int32{"shop": 1, "shop-eu": 2}[name]
	if !ok {
		return 0, errors.New("there is none of that name")
	}
	return n, nil
}

func build(t *testing.T, text string) (*provider.Senders, *prometheus.Registry, *bytes.Buffer) {
	t.Helper()
	f, err := provider.ReadFile(write(t, text))
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	reg := prometheus.NewPedanticRegistry()
	senders, err := f.Build(&provider.Env{Tenant: tenantNumber, Registerer: reg,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = senders.Close() })
	return senders, reg, &log
}

func newPair(t *testing.T, ofA, ofB []string) *pair {
	t.Helper()
	p := &pair{a: emailtest.Start(t, emailtest.Options{}), b: emailtest.Start(t, emailtest.Options{})}
	var senders *provider.Senders
	senders, p.metrics, p.log = build(t, "email:\n"+settings("a", p.a, ofA...)+settings("b", p.b, ofB...))
	p.sender = senders.ByChannel[send.Email]
	return p
}

func message() *send.Message {
	return &send.Message{Tenant: 1, ID: 7, Key: "k-7", Channel: send.Email, Attempt: 1,
		Recipient: "ada@customer.example",
		Content:   send.Content{Subject: "Your order", Text: "hello"}}
}

// try sends a message and returns the provider that accepted it, or the failure.
func (p *pair) try(t *testing.T, m *send.Message) string {
	t.Helper()
	r, err := p.sender.Send(t.Context(), m)
	if err == nil {
		return r.Provider + " took it"
	}
	f := send.Failed(err)
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Provider, f.Code, f.Outcome))
}

func (p *pair) expect(t *testing.T, m *send.Message, want string, a, b int) {
	t.Helper()
	if got := p.try(t, m); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if na, nb := len(p.a.Messages()), len(p.b.Messages()); na != a || nb != b {
		t.Errorf("%d and %d messages arrived, want %d and %d", na, nb, a, b)
	}
}

func TestFailoverOnlyIfTheMessageWasNotSent(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		phase, does, want string
		a, b              int
	}{
		{emailtest.Mail, "", "a took it", 1, 0},
		{emailtest.Connect, "reset", "b took it", 0, 1},
		{emailtest.Mail, "451 4.3.0 later", "b took it", 0, 1},
		{emailtest.Mail, "reset", "b took it", 0, 1},
		{emailtest.Rcpt, "450 4.2.0 greylisted", "b took it", 0, 1},
		{emailtest.Rcpt, "550 5.7.1 relaying denied", "b took it", 0, 1},
		{emailtest.End, "451 4.3.0 disk full", "b took it", 0, 1},
		{emailtest.Rcpt, "550 5.1.1 no such user", "a smtp_550_5.1.1 permanent", 0, 0},
		{emailtest.End, "close", "a connection unknown", 0, 0},
		{emailtest.Taken, "close", "a connection unknown", 1, 0},
	} {
		p := newPair(t, nil, nil)
		p.a.Do(c.phase, c.does)
		p.expect(t, message(), c.want, c.a, c.b)
	}
}

func TestUnknownFailsOverOnlyIfFileAndMessageAllowIt(t *testing.T) {
	t.Parallel()
	p := newPair(t, []string{"resend_unknown: true"}, nil)
	p.a.Do(emailtest.Taken, "close")
	p.expect(t, message(), "b took it", 1, 1)
	once := message()
	once.Park = true
	p.expect(t, once, "a connection unknown", 2, 1)
	// Whatever b answers, a may have sent the message.
	for _, does := range []string{"451 4.3.0 later", "550 5.7.1 relaying denied", "550 5.1.1 no such user"} {
		p.b.Do(emailtest.Rcpt, does)
		m := message()
		if got := p.try(t, m); got != "a connection unknown" {
			t.Errorf("%s: %s", does, got)
		}
	}
}

func TestAttemptBeginsAfterTheLastFailedProvider(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, nil)
	m := message()
	m.LastProvider = "a"
	p.expect(t, m, "b took it", 0, 1)
	m.LastProvider = "b"
	p.expect(t, m, "a took it", 1, 1)
	m.LastProvider = "removed"
	p.expect(t, m, "a took it", 2, 1)
	m.LastProvider = "a"
	p.b.Do(emailtest.Mail, "451 4.3.0 later")
	p.expect(t, m, "a took it", 3, 1)
}

func TestUnsureMessageGoesToTheSameProvider(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, []string{"resend_unknown: true"})
	m := message()
	m.LastProvider, m.Unsure = "a", true
	p.expect(t, m, "a took it", 1, 0)
	p.a.Do(emailtest.Rcpt, "451 4.3.0 later")
	p.expect(t, m, "a smtp_451_4.3.0 temporary", 1, 0)
	m.LastProvider = "gone"
	p.expect(t, m, "provider_gone refused", 1, 0)
	m.LastProvider = ""
	p.expect(t, m, "a smtp_451_4.3.0 temporary", 1, 0) // the first provider
	p.a.Do(emailtest.Rcpt, "")
	m.LastProvider = "b" // which has resend_unknown
	p.expect(t, m, "a took it", 2, 0)
}

func TestProviderIsRecordedUnlessItIsTheFirst(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, nil)
	var turns []string
	turned := func(m *send.Message, want string) {
		t.Helper()
		if got := strings.Join(turns, " "); got != want {
			t.Errorf("recorded: %q, want %q", got, want)
		}
		turns = nil
	}
	m := message()
	m.MarkProvider = func(_ context.Context, provider string) error { turns = append(turns, provider); return nil }
	p.expect(t, m, "a took it", 1, 0)
	turned(m, "")
	p.a.Do(emailtest.Rcpt, "451 4.3.0 later")
	p.expect(t, m, "b took it", 1, 1)
	turned(m, "b")
	p.b.Do(emailtest.Rcpt, "451 4.3.0 later")
	p.a.Do(emailtest.Rcpt, "")
	m.LastProvider = "a"
	p.expect(t, m, "a took it", 2, 1)
	turned(m, "b a")
	m.LastProvider, m.Unsure = "b", true
	p.b.Do(emailtest.Rcpt, "")
	p.expect(t, m, "b took it", 2, 2) // already recorded
	turned(m, "")
	m.LastProvider, m.Unsure, m.Park = "a", false, true
	p.expect(t, m, "b took it", 2, 3) // a parked message is never retried, so nothing is recorded
	turned(m, "")
	m.Park = false
	m.MarkProvider = func(context.Context, string) error { return errors.New("no database") }
	p.expect(t, m, "a took it", 3, 3) // and b is not asked
}

func TestRefusedByAllIsRefusedButAWrongPasswordIsTemporary(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, nil)
	p.a.Do(emailtest.Rcpt, "550 5.7.1 relaying denied")
	p.b.Do(emailtest.Rcpt, "550 5.7.1 relaying denied")
	p.expect(t, message(), "b smtp_550_5.7.1 refused", 0, 0)
	p.b.Do(emailtest.Rcpt, "451 4.3.0 later")
	p.expect(t, message(), "b smtp_451_4.3.0 temporary", 0, 0)
	p.a.Do(emailtest.Rcpt, "")
	p.a.Do(emailtest.Mail, "530 5.7.0 log in")
	p.b.Do(emailtest.Rcpt, "")
	p.b.Do(emailtest.Mail, "530 5.7.0 log in")
	p.expect(t, message(), "b smtp_530_5.7.0 temporary", 0, 0)
	// Both are skipped for a while.
	r, err := p.sender.Send(t.Context(), message())
	f := send.Failed(err)
	if err == nil || f.Provider != "" || f.Code != "passed_over" || f.Outcome != send.Temporary || f.RetryAfter <= 0 ||
		f.RetryAfter > 2*time.Second {
		t.Errorf("%+v, %+v", r, f)
	}
}

func TestDeadProviderIsSkippedUntilItIsBack(t *testing.T) {
	t.Parallel()
	p := newPair(t, nil, nil)
	p.expect(t, message(), "a took it", 1, 0)
	p.a.Kill()
	for n := range 20 {
		p.expect(t, message(), "b took it", 1, n+1)
	}
	if err := testutil.GatherAndCompare(p.metrics, strings.NewReader(`
		# HELP ledgerd_notify_provider_breaker_open 1 while the provider is skipped after failures.
		# TYPE ledgerd_notify_provider_breaker_open gauge
		ledgerd_notify_provider_breaker_open{channel="email",provider="a"} 1
		ledgerd_notify_provider_breaker_open{channel="email",provider="b"} 0
	`), "ledgerd_notify_provider_breaker_open"); err != nil {
		t.Error(err)
	}
	if sent := p.sent(t); sent["a"] != 1 || sent["b"] != 20 {
		t.Errorf("sent: %v", sent)
	}
	p.a.Restart()
	late := time.Now().Add(20 * time.Second)
	for p.try(t, message()) != "a took it" {
		if time.Now().After(late) {
			t.Fatal("the provider is not asked again")
		}
	}
	for range 5 {
		if got := p.try(t, message()); got != "a took it" {
			t.Error(got)
		}
	}
	// The breaker opens again if the 20 messages take longer than it first stays open, about a second.
	for line, most := range map[string]int{"is skipped after failures": 5, "works again": 1} {
		if n := strings.Count(p.log.String(), line); n < 1 || n > most {
			t.Errorf("%q is logged %d times:\n%s", line, n, p.log)
		}
	}
	if strings.Contains(p.log.String(), "ada") {
		t.Error("the log contains a recipient")
	}
}

// sent returns the number of sent messages by provider, from the metrics.
func (p *pair) sent(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := p.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if f.GetName() == "ledgerd_notify_provider_attempts_total" && labels["outcome"] == "sent" {
				all[labels["provider"]] = m.GetCounter().GetValue()
			}
		}
	}
	return all
}

func TestTenantsAndOverrides(t *testing.T) {
	t.Parallel()
	p := newPair(t, []string{"tenants: [shop-eu]"},
		[]string{"overrides:", "  shop-eu: {from: post@shop-eu.example, reply_to: help@shop-eu.example}",
			"  shop: {hello: other.example, from: own@shop.example}"})
	one, two, three := message(), message(), message()
	two.Tenant, three.Tenant = 2, 3
	p.expect(t, one, "b took it", 0, 1)
	p.expect(t, two, "a took it", 1, 1)
	p.expect(t, three, "b took it", 1, 2)
	p.a.Do(emailtest.Mail, "451 4.3.0 later")
	p.expect(t, two, "b took it", 1, 3)
	var from []string
	for _, m := range p.b.Messages() {
		from = append(from, m.From)
	}
	if strings.Join(from, " ") != "own@shop.example no-reply@shop.example post@shop-eu.example" {
		t.Errorf("from %v", from)
	}
	senders, _, _ := build(t, "email:\n"+settings("a", p.a, "tenants: [shop-eu]"))
	if _, err := senders.ByChannel[send.Email].Send(t.Context(), one); send.Failed(err).Code != "no_provider" ||
		send.Failed(err).Outcome != send.Refused {
		t.Errorf("%v", err)
	}
}

func TestConcurrencyLimit(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	server.Do(emailtest.End, "slow 20ms")
	senders, _, _ := build(t, "email:\n"+settings("a", server, "concurrency: 3"))
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if _, err := senders.ByChannel[send.Email].Send(t.Context(), message()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n, c := len(server.Messages()), server.Count("connection"); n != 30 || c > 3 {
		t.Errorf("%d messages over %d connections", n, c)
	}
	// A full provider leaves the message to the next one.
	stuck, next := emailtest.Start(t, emailtest.Options{}), emailtest.Start(t, emailtest.Options{})
	stuck.Do(emailtest.Mail, "stall")
	senders, _, _ = build(t, "email:\n"+settings("a", stuck, "concurrency: 1")+settings("b", next))
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() { _, _ = senders.ByChannel[send.Email].Send(ctx, message()) })
	stuck.Wait(emailtest.Mail)
	if r, err := senders.ByChannel[send.Email].Send(t.Context(), message()); err != nil || r.Provider != "b" {
		t.Errorf("%+v, %v", r, err)
	}
	cancel()
	all.Wait()
}

func TestRateLimit(t *testing.T) {
	t.Parallel()
	server := emailtest.Start(t, emailtest.Options{})
	senders, _, _ := build(t, "email:\n"+settings("a", server, "rate: 10"))
	start := time.Now()
	var all sync.WaitGroup
	var mu sync.Mutex
	later := 0
	for range 60 {
		all.Go(func() {
			_, err := senders.ByChannel[send.Email].Send(t.Context(), message())
			if err == nil {
				return
			}
			f := send.Failed(err)
			if f.Provider != "" || f.Outcome != send.Temporary || f.RetryAfter <= 0 {
				t.Errorf("%+v", f)
			}
			mu.Lock()
			later++
			mu.Unlock()
		})
	}
	all.Wait()
	took := time.Since(start).Seconds()
	if n := len(server.Messages()); n+later != 60 || later == 0 || n < 5 || float64(n) > 10*took+2 {
		t.Errorf("%d messages in %.2f s, %d deferred", n, took, later)
	}
}

func TestAttemptWithoutTimeDoesNotFailOver(t *testing.T) {
	t.Parallel()
	p := newPair(t, []string{"timeout: 1s"}, nil)
	p.a.Do(emailtest.Mail, "stall")
	ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
	defer cancel()
	_, err := p.sender.Send(ctx, message())
	if f := send.Failed(err); err == nil || f.Provider != "a" || f.Code != "timeout" || f.Outcome != send.Temporary ||
		len(p.b.Messages()) != 0 {
		t.Errorf("%v", err)
	}
	p.expect(t, message(), "b took it", 0, 1)
}
