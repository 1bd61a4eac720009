package load

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

func TestHistogramIsWithinOnePercent(t *testing.T) {
	t.Parallel()
	var h Histogram
	var all []time.Duration
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		d := time.Duration(1+random.Int64N(1<<random.IntN(32))) * time.Microsecond
		all = append(all, d)
		h.Add(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[max(int(q*float64(len(all))+0.5), 1)-1]
		if got := h.Quantile(q); got < want || float64(got) > float64(want)*1.01 {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
	if h.Max() != all[len(all)-1] {
		t.Errorf("the greatest is %v, not %v", h.Max(), all[len(all)-1])
	}
}

func TestHistogramBucketsFollowOneAnother(t *testing.T) {
	t.Parallel()
	for bucket := range buckets - 1 {
		top := topOf(bucket)
		if bucketOf(top) != bucket || bucketOf(top+1) != bucket+1 {
			t.Fatalf("bucket %d ends at %d, which is in bucket %d, and the next value in %d",
				bucket, top, bucketOf(top),
				bucketOf(top+1))
		}
	}
	if (&Histogram{}).Quantile(0.5) != 0 {
		t.Error("an empty histogram has a median")
	}
	if bucketOf(1<<63) != buckets-1 {
		t.Error("a century has a bucket of its own")
	}
}

// serve starts a real server and returns a connection to it.
func serve(t *testing.T, handler http.HandlerFunc) *httpConn {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	c := &httpConn{address: s.Listener.Addr().String(), patience: 5 * time.Second}
	t.Cleanup(c.close)
	return c
}

func TestAnswersOfEverySizeAreRead(t *testing.T) {
	t.Parallel()
	var size, status int
	var mode string
	var addresses []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		addresses = append(addresses, r.RemoteAddr)
		w.Header().Set("X-Told", string(body))
		w.Header().Set("X-Long", strings.Repeat("x", 1000))
		if mode == "close" {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(status)
		part := bytes.Repeat([]byte("a"), size/2)
		_, _ = w.Write(part)
		if mode == "chunked" {
			w.(http.Flusher).Flush()
		}
		_, _ = w.Write(part)
	})
	request := []byte("POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
	// Sizes around net/http's limit for a Content-Length, and around the buffer.
	for _, mode = range []string{"plain", "chunked", "close"} {
		for _, size = range []int{0, 2, 2046, 2048, 4096, 8192, 100_000} {
			for _, status = range []int{200, 400, 503} {
				got, body, err := c.roundTrip(request)
				if err != nil || got != status || len(body) != size || strings.Trim(string(body), "a") != "" {
					t.Fatalf("%s, %d bytes, status %d: got %d, %d bytes, %v", mode, size, status, got, len(body), err)
				}
			}
		}
	}
	// One connection for everything, plus one for each answer that closes it: 20 follow the first.
	if slices.Sort(addresses); len(slices.Compact(addresses)) != 21 {
		t.Errorf("%d connections", len(slices.Compact(addresses)))
	}
}

func TestBrokenAnswersAreErrorsAndTheNextCallConnectsAgain(t *testing.T) {
	t.Parallel()
	var raw string
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, raw)
			_ = conn.Close()
		}
	})
	for _, raw = range []string{
		"",
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\nabcde",
		"HTTP/1.1 200 OK\r\n\r\nabcde",
		"HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n",
		"SSH-2.0-OpenSSH_9.2p1 Debian\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabcde\r\n0\r\n\r\n",
	} {
		if _, _, err := c.roundTrip([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err == nil || c.conn != nil {
			t.Errorf("%q was accepted: %v", raw, err)
		}
	}
	raw = "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
	if status, _, err := c.roundTrip([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); status != 204 || err != nil {
		t.Errorf("after them: %d, %v", status, err)
	}
}

// testCalls are so many that one of ten accounts, drawn at random, pays in all but one of 10¹³ runs.
const testCalls = 300

func TestTheServerDecodesTheRequests(t *testing.T) {
	t.Parallel()
	for _, spec := range []Spec{{Hot: -1}, {Hot: 7000, Keys: true}, {Hot: -1, Items: 3}} {
		var mu sync.Mutex
		var got []*ledgerv1.TransferRequest
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			body, _ := io.ReadAll(r.Body)
			if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("Connect-Protocol-Version") != "1" {
				t.Errorf("headers: %v", r.Header)
			}
			if spec.Items > 0 {
				var batch ledgerv1.TransferBatchRequest
				if err := proto.Unmarshal(body, &batch); err != nil {
					t.Error(err)
				}
				for _, item := range batch.GetItems() {
					got = append(got, item.GetTransfer())
				}
				return
			}
			var one ledgerv1.TransferRequest
			if err := proto.Unmarshal(body, &one); err != nil {
				t.Error(err)
			}
			if key := r.Header.Get("Idempotency-Key"); spec.Keys != (key == "key-"+one.GetBizNo()) {
				t.Errorf("key %q", key)
			}
			got = append(got, &one)
		}))
		spec.URL, spec.APIKey, spec.Run, spec.Accounts, spec.Stride, spec.Patience = s.URL, "secret", "r001", 10, 700,
			time.Second
		c, err := newConnectCaller(&spec, 0x2f)
		if err != nil {
			t.Fatal(err)
		}
		for range testCalls {
			c.call()
		}
		c.close()
		s.Close()
		checkRequests(t, &spec, got)
	}
}

func checkRequests(t *testing.T, spec *Spec, got []*ledgerv1.TransferRequest) {
	t.Helper()
	if len(got) != testCalls*max(spec.Items, 1) {
		t.Fatalf("%d transfers", len(got))
	}
	used := map[string]bool{}
	for _, r := range got {
		if p := r.GetPostings()[0]; p.GetFrom() == p.GetTo() || spec.Hot >= 0 && p.GetTo() != Code(spec.Hot) ||
			p.GetAmount() < "1.00" {
			t.Errorf("posting %v", p)
		}
		if !strings.HasPrefix(r.GetBizNo(), "r001-00000") || !strings.HasSuffix(r.GetBizNo(), "-002f") {
			t.Errorf("biz_no %s", r.GetBizNo())
		}
		used[r.GetPostings()[0].GetFrom()] = true
		if used[r.GetBizNo()] {
			t.Errorf("%s occurs twice", r.GetBizNo())
		}
		used[r.GetBizNo()] = true
	}
	if !used[Code(6300)] {
		t.Error("the last account never paid")
	}
}

func TestCallLongerThanTheWindowIsMeasured(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusBadRequest} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if status == http.StatusOK {
				<-time.After(150 * time.Millisecond) // the elapsed time is measured
			}
			w.WriteHeader(status)
		}))
		defer s.Close()
		spec := &Spec{Kind: HTTP, Callers: 2, Hot: -1, URL: s.URL, Run: "r001", Accounts: 10, Stride: 1,
			Measure: 50 * time.Millisecond, Patience: time.Minute}
		r, err := run(t.Context(), spec, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		if status == http.StatusOK && (r.Measured == 0 || r.P50 < 150*time.Millisecond) {
			t.Errorf("slow calls: %+v", r)
		}
		if status != http.StatusOK && (r.Measured != 0 || r.Refused == 0) {
			t.Errorf("refused calls: %+v", r)
		}
	}
}

func TestBatchOutcomeCountsResults(t *testing.T) {
	t.Parallel()
	made := &ledgerv1.TransferBatchResult{Transfer: &ledgerv1.Transfer{Id: 1, BizNo: "x"}, Existed: true}
	bad := &ledgerv1.TransferBatchResult{Error: &ledgerv1.ItemError{Reason: "INSUFFICIENT_FUNDS"}}
	body, err := proto.Marshal(&ledgerv1.TransferBatchResponse{Results: []*ledgerv1.TransferBatchResult{made, bad,
		made}})
	if err != nil {
		t.Fatal(err)
	}
	if o := batchOutcome(body, 3); o.Succeeded != 2 || o.Refused != 1 || o.Unknown != 0 ||
		!strings.Contains(o.Err.Error(), "INSUFFICIENT") {
		t.Errorf("outcome %+v", o)
	}
	if o := batchOutcome(body, 4); o.Unknown != 1 || o.Err == nil {
		t.Errorf("a result is missing: %+v", o)
	}
	if o := batchOutcome(body[:len(body)-1], 3); o.Unknown != 3 || o.Err == nil {
		t.Errorf("truncated: %+v", o)
	}
}

// The latency of a call that begins in the window counts even if the call ends later.
func TestLatenciesExceedTheWindow(t *testing.T) {
	t.Parallel()
	const window, slow = 100 * time.Millisecond, 300 * time.Millisecond
	calls := 0
	call := func() Outcome {
		took := 20 * time.Millisecond // warms up
		if calls++; calls > 1 {
			took = slow
		}
		<-time.After(took)
		return Outcome{Succeeded: 1}
	}
	fast := func() Outcome { <-time.After(time.Millisecond); return Outcome{Succeeded: 1} }
	r, err := Measure(t.Context(), []func() Outcome{call, fast}, window/10, window, func(string) {})
	if err != nil || r.Max < slow || r.P50 > slow/10 {
		t.Errorf("p50 %v, at most %v, %v", r.P50, r.Max, err)
	}
}
