package webhook_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
)

func TestOnlyPublicAddressesAreReached(t *testing.T) {
	var g webhook.URLPolicy
	for _, text := range []string{"0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1",
		"127.255.255.254", "168.63.129.16", "169.254.169.254",
		"172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1",
		"198.51.100.1", "203.0.113.1",
		"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
		"64:ff9b:1::1", "100::1", "2001::1", "2001:10::1",
		"2001:db8::1", "2002:7f00:1::1", "2002:808:808::1", "3fff::1", "5f00::1", "fc00::1", "fd00:ec2::254", "fe80::1",
		"fe80::1%eth0", "fec0::1", "ff02::1"} {
		if g.Address(netip.AddrPortFrom(netip.MustParseAddr(text), 443)) == nil {
			t.Errorf("%s is accepted as public", text)
		}
	}
	for _, text := range []string{"1.1.1.1", "8.8.8.8", "93.184.215.14", "172.15.0.1", "172.32.0.1", "100.63.0.1",
		"100.128.0.1", "11.0.0.1", "192.0.1.1",
		"2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "240e::1", "::ffff:8.8.8.8", "64:ff9b::808:808"} {
		if err := g.Address(netip.AddrPortFrom(netip.MustParseAddr(text), 443)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	allowed := webhook.URLPolicy{Allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for text, want := range map[string]bool{"10.1.2.3": true, "::ffff:10.1.2.3": true, "10.2.0.1": false} {
		if err := allowed.Address(netip.AddrPortFrom(netip.MustParseAddr(text), 443)); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	if g.Address(netip.AddrPortFrom(netip.MustParseAddr("8.8.8.8"), 25)) == nil {
		t.Error("port 25 is allowed")
	}
}

func TestURLs(t *testing.T) {
	strict, lax := webhook.URLPolicy{}, webhook.URLPolicy{HTTP: true, Ports: []uint16{9000},
		Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for text, want := range map[string][2]bool{ // by the strict and the lax guard
		"https://example.com/hook?a=b":                    {true, true},
		"https://example.com:8443":                        {true, true},
		"https://8.8.8.8/":                                {true, true},
		"https://[2606:4700:4700::1111]/":                 {true, true},
		"http://example.com":                              {false, true},
		"https://example.com:9000":                        {false, true},
		"https://10.0.0.1/":                               {false, true},
		"https://user@example.com":                        {},
		"https://user:pass@example.com":                   {},
		"https://example.com:25":                          {},
		"https://example.com:99999":                       {},
		"https://127.0.0.1/":                              {},
		"https://[::1]/":                                  {},
		"https://[::ffff:169.254.169.254]/":               {},
		"https://[fe80::1%25eth0]/":                       {},
		"ftp://example.com":                               {},
		"file:///etc/passwd":                              {},
		"https:example.com":                               {},
		"https:///path":                                   {},
		"https://example.com/#x":                          {},
		"https://example.com/#":                           {},
		"//example.com":                                   {},
		"":                                                {},
		"https://exa mple.com":                            {},
		"https://example.com/" + string(make([]byte, 10)): {},
	} {
		if err := strict.URL(text); (err == nil) != want[0] {
			t.Errorf("strict: %q: %v", text, err)
		}
		if err := lax.URL(text); (err == nil) != want[1] {
			t.Errorf("lax: %q: %v", text, err)
		}
	}
}

// resolver returns a resolver with a DNS server over UDP, which answers the n-th question with the n-th list of
// addresses.
func resolver(t *testing.T, lists ...[]string) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		b := make([]byte, 512)
		var asked int
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if m.Questions[0].Type == dnsmessage.TypeA {
				for _, text := range lists[min(asked, len(lists)-1)] {
					m.Answers = append(m.Answers, dnsmessage.Resource{
						Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA,
							Class: dnsmessage.ClassINET},
						Body: &dnsmessage.AResource{A: netip.MustParseAddr(text).As4()}})
				}
				asked++
			}
			if out, err := m.Pack(); err == nil {
				_, _ = c.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

// DNS rebinding: a name first resolves to an allowed address, and then to a forbidden one, or to both. No connection to
// the forbidden one is made.
func TestDNSRebindingIsBlocked(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = inner.Close() }()
	var reached atomic.Int64
	go func() {
		for {
			c, err := inner.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = c.Close()
		}
	}()
	port := inner.Addr().(*net.TCPAddr).Port
	outer, err := net.Listen("tcp", "127.0.0.2:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	var taken atomic.Int64
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Connection", "close")
		taken.Add(1)
	})}
	go func() { _ = s.Serve(outer) }()
	defer func() { _ = s.Close() }()

	both := []string{"127.0.0.1", "127.0.0.2"}
	sender, err := webhook.New(webhook.Settings{Master: secret.New(), Log: slog.New(slog.DiscardHandler),
		URLs: webhook.URLPolicy{HTTP: true, Ports: []uint16{uint16(port)},
			Allow:    []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")},
			Resolver: resolver(t, []string{"127.0.0.2"}, []string{"127.0.0.1"}, both, []string{"127.0.0.1"})},
		Find: func(_ context.Context, k webhook.Key) (webhook.Endpoint, error) {
			return webhook.Endpoint{Key: k, ID: 1, Version: 1, URL: "http://hook.example.com:" + strconv.Itoa(port)},
				nil
		},
		Observe: func(_ context.Context, o webhook.Observation) error {
			t.Errorf("%+v: a blocked attempt must not be observed", o)
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	for i, good := range []bool{true, false, true, false} {
		_, err := sender.Send(t.Context(), &send.Message{Key: "k", Recipient: "e", Content: send.Content{Type: "a"}})
		f := &send.Failure{}
		if err != nil {
			f = send.Failed(err)
		}
		if good && err != nil || !good && (f.Outcome != send.Refused || f.Code != "blocked") {
			t.Errorf("attempt %d: %v", i, err)
		}
	}
	if reached.Load() != 0 || taken.Load() != 2 {
		t.Errorf("%d connections to the forbidden address, %d requests at the allowed one", reached.Load(),
			taken.Load())
	}
}
