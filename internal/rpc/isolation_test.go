package rpc_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// answers makes calls of a tenant with new keys, each of which the server must look up.
func answers(t *testing.T, s *site, load string) {
	t.Helper()
	for i := range 3 {
		c := &caller{s, s.Key("other", load+fmt.Sprint(i), access.Write)}
		const timeout = "5000"
		a := c.call(connectJSON, "Idempotency.ClaimKey", &idempotencyv1.ClaimKeyRequest{Key: load + fmt.Sprint(i)},
			"Connect-Timeout-Ms", timeout)
		a.wants(t, "a write during "+load, "")
		a = c.call(connectJSON, "GetBalance", &ledgerv1.GetBalanceRequest{Account: ref("u:a", "COIN")},
			"Connect-Timeout-Ms", timeout)
		a.wants(t, "a read during "+load, "")
	}
}

// Watches and reads of one key that wait for a table, and reconnect when they are refused, delay no other tenant.
func TestWatchesAndReadsOfOneKeyDelayNoOtherTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	(&caller{s, s.Key("other", "boss", access.Admin)}).prepareLedger("a")
	(&caller{s, s.Key("mine", "boss", access.Admin)}).prepareLedger("m")
	reader := &caller{s, s.Key("mine", "reader", access.Read)}
	wide := func(ctx context.Context) {
		_, _ = reader.client().ListEntries(ctx, &ledgerv1.ListEntriesRequest{Account: ref("u:m", "COIN")})
	}
	for _, load := range []struct {
		name    string
		callers int
		call    func(ctx context.Context)
	}{{"watches-150", 150, reader.watchOnce}, {"watches-1000", 1000, reader.watchOnce}, {"reads-64", 64, wide}} {
		tx, err := s.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		if _, err := tx.Exec(t.Context(), "lock ledger_entries in access exclusive mode"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range load.callers {
			all.Go(func() {
				for ctx.Err() == nil {
					load.call(ctx)
				}
			})
		}
		eventually(t, 30*time.Second, load.name+" wait for the table", func() bool {
			return s.Count("select count(*) from pg_locks where not granted "+
				"and relation = 'ledger_entries'::regclass") >= 5
		})
		answers(t, s, load.name)
		cancel()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		all.Wait()
	}
}

// watchOnce watches until ctx ends. A refused watch ends at once.
func (c *caller) watchOnce(ctx context.Context) {
	stream, err := c.client().WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{Cursor: "0"})
	if err != nil {
		return
	}
	defer stream.Close()
	for stream.Receive() {
	}
}

// A request has the limit of its call, before and after decompression, in each protocol.
func TestRequestsHaveTheLimitOfTheirCall(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	name := path(method(t, "GetBalance"))
	large := append([]byte(`{"account":{"code":"a","asset":"COIN"}}`), bytes.Repeat([]byte(" "), 64<<10)...)
	refused := func(what string, a answer) {
		t.Helper()
		info, _ := servertest.Detail(a.Answer, new(errdetails.ErrorInfo)) // the errors of gunzip have no request id
		if info.GetReason() != "FIELD_INVALID" ||
			!strings.Contains(a.Message, "larger than 64 KiB, the limit of this call") {
			t.Errorf("%s: %s %s", what, a.Code, a.Message)
		}
	}
	for _, p := range protocols {
		refused(p.Name, c.send(p, name, large))
	}
	refused("compressed", c.send(connectJSON, name, zipped(large), "Content-Encoding", "gzip"))
	refused("a bomb", c.send(connectJSON, name, bomb(t, 16<<20), "Content-Encoding", "gzip"))
	if a := c.send(connectJSON, name, large[:60<<10]); a.Reason(t) == "FIELD_INVALID" {
		t.Errorf("60 KiB: %s", a.Message)
	}
	q := url.Values{"connect": {"v1"}, "encoding": {"json"}, "base64": {"1"}, "compression": {"gzip"},
		"message": {base64.RawURLEncoding.EncodeToString(bomb(t, 8<<20))}}
	req, err := http.NewRequest(http.MethodGet, c.Base+name+"?"+q.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.apiKey)
	res, err := servertest.HTTP1.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusBadRequest ||
		!strings.Contains(string(text), "64 KiB") {
		t.Errorf("GET: %d %s", res.StatusCode, text)
	}
}

// 128 bombs at the same time, of calls with and without a small limit, take no more memory than the budget.
func TestBombsTakeLittleMemory(t *testing.T) { // not parallel: it measures the memory of the process
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	small := bomb(t, 16<<20)
	if len(small) > 20<<10 {
		t.Fatalf("the bomb has %d bytes", len(small))
	}
	// Garbage does not count as memory taken: frequent collections leave little of it, even of other tests.
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	var stats runtime.MemStats
	debug.FreeOSMemory()
	runtime.ReadMemStats(&stats)
	before, peak, done := stats.HeapInuse, uint64(0), make(chan struct{})
	measured := make(chan struct{})
	go func() {
		defer close(measured)
		for {
			runtime.ReadMemStats(&stats)
			peak = max(peak, stats.HeapInuse)
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	var all sync.WaitGroup
	for i := range 128 {
		all.Go(func() {
			name := path(method(t, []string{"TransferBatch", "GetBalance", "Notify.Send", "Transfer"}[i%4]))
			if a := c.send(connectJSON, name, small, "Content-Encoding", "gzip"); a.Code == "" {
				t.Error("a bomb was accepted")
			}
		})
	}
	all.Wait()
	close(done)
	<-measured
	const budget = 64 << 20 // the limit of admission, and uncollected garbage
	if grown := int64(peak) - int64(before); grown > budget {
		t.Errorf("128 bombs took %d MiB", grown>>20)
	} else {
		t.Logf("128 bombs took %d MiB", grown>>20)
	}
}
