package client_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

func TestEncodedItemsAreATransferBatchRequest(t *testing.T) {
	t.Parallel()
	want := &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{
		{Transfer: transfer("a", "alice", "bob", "1.00"), IdempotencyKey: "k1"},
		{Transfer: transfer("b", "alice", "bob", "2.00"), IdempotencyKey: "a longer key"},
		{Transfer: &ledgerv1.TransferRequest{}, IdempotencyKey: "k3"},
	}}
	var wire []byte
	for _, item := range want.GetItems() {
		b, err := client.EncodeItem(item.GetIdempotencyKey(), item.GetTransfer())
		if err != nil {
			t.Fatal(err)
		}
		wire = append(wire, b...)
	}
	got := new(ledgerv1.TransferBatchRequest)
	if err := proto.Unmarshal(wire, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("%v (%v), want %v", got, err, want)
	}
}

// cutter is a TCP proxy in front of a server. When armed, it forwards the next request and cuts the connection
// instead of forwarding the answer.
type cutter struct {
	net.Listener
	server string
	mu     sync.Mutex
	armed  int // connections to cut
	cut    int
}

func newCutter(t *testing.T, baseURL string) *cutter {
	t.Helper()
	u, err := url.Parse(baseURL)
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{server: u.Host}
	if c.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	go func() {
		for {
			in, err := c.Accept()
			if err != nil {
				return
			}
			go c.carry(in)
		}
	}()
	return c
}

func (c *cutter) url() string { return "http://" + c.Addr().String() }

func (c *cutter) arm(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = n
}

func (c *cutter) cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}

func (c *cutter) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer out.Close()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := out.Read(buf)
		if err != nil || c.cutNow() {
			return
		}
		if _, err := in.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (c *cutter) cutNow() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.armed == 0 {
		return false
	}
	c.armed--
	c.cut++
	return true
}

func TestACallWhoseConnectionIsCutHappensOnce(t *testing.T) {
	t.Parallel()
	server := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		proxy := newCutter(t, server)
		c := newClient(t, proxy.url(), append(opts, client.WithRetry(5, 1, 1))...)
		proxy.arm(2) // new connections, on which no transport retries by itself
		ctx, info := client.WithInfo(t.Context())
		res, err := c.Ledger.Transfer(ctx, transfer(t.Name(), "alice", "bob", "1.00"))
		if err != nil {
			t.Fatal(err)
		}
		if res.GetTransfer().GetBizNo() != t.Name() || info.Attempts != 3 || proxy.cuts() != 2 {
			t.Errorf("%v in %d attempts over %d cuts", res, info.Attempts, proxy.cuts())
		}
	})
	if got := balance(t, server, "alice"); got != "97.00" {
		t.Errorf("alice has %s, want 97.00", got)
	}
}
