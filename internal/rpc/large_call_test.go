package rpc_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// admittedBytes returns the metric of large requests in flight, in bytes.
func (c *caller) admittedBytes() int { return c.metric("ledgerd_admission_bytes") }

// metric returns a metric of the server, which is a whole number.
func (c *caller) metric(name string) int {
	c.T.Helper()
	_, page := servertest.Get(c.T, c.Base+"/metrics", c.watcher())
	for line := range strings.Lines(page) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				c.T.Fatal(err)
			}
			return int(n)
		}
	}
	c.T.Fatal("there is no " + name)
	return 0
}

// flood starts a batch that uses the tenant's whole share of memory, and blocks on a locked account until the returned
// function is called.
func (c *caller) flood(account string) (end func()) {
	c.T.Helper()
	ctx := context.Background()
	tx, err := c.Pool.Begin(ctx)
	if err != nil {
		c.T.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "select from ledger_accounts where code = $1 for update", account); err != nil {
		c.T.Fatal(err)
	}
	r := &ledgerv1.TransferBatchRequest{AllOrNothing: true}
	for i := range 700 {
		r.Items = append(r.Items, item(fmt.Sprint("flood", i), account, "0.01", ""))
		r.Items[i].Transfer.Metadata = map[string]string{"note": strings.Repeat("n", 12<<10)}
	}
	done := make(chan answer, 1)
	go func() { done <- c.call(connectProto, "TransferBatch", r) }()
	eventually(c.T, time.Minute, "the batch is in flight", func() bool { return c.admittedBytes() > 8<<20 })
	return func() {
		c.T.Helper()
		if err := tx.Rollback(ctx); err != nil {
			c.T.Fatal(err)
		}
		if a := <-done; a.Code != "" {
			c.T.Errorf("the blocked batch: %s %s", a.Code, a.Message)
		}
	}
}

// chunked sends a request of unknown length.
func (c *caller) chunked(body []byte) answer {
	c.T.Helper()
	req, err := http.NewRequest(http.MethodPost, c.Base+path(method(c.T, "TransferBatch")),
		io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		c.T.Fatal(err)
	}
	req.Header.Set("Content-Type", connectJSON.ContentType)
	req.Header.Set("Authorization", "Bearer "+c.apiKey)
	res, err := servertest.HTTP1.Do(req)
	if err != nil {
		c.T.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		c.T.Fatal(err)
	}
	return answer{connectJSON.Read(c.T, res, raw)}
}

// A tenant whose share is used up gets one BUSY for a large call, in every protocol, before the body is read: invalid
// bodies are not detected. Small calls and other tenants are not affected.
func TestLargeCallsAreRefusedBeforeDecoding(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	end := c.flood("u:a")
	garbage := bytes.Repeat([]byte{0xff}, 100<<10)
	name := path(method(t, "TransferBatch"))
	other := &caller{s, s.Key("theirs", "boss", access.Admin)}
	calls := map[string]struct {
		send func() answer
		want string
	}{
		"1 MiB": {func() answer {
			return c.send(connectProto, name,
				bytes.Repeat(garbage, 10))
		}, "BUSY"},
		"of unknown length": {func() answer { return c.chunked(garbage) }, "BUSY"},
		"compressed": {func() answer {
			return c.send(connectProto, name, zipped(garbage),
				"Content-Encoding", "gzip")
		}, "BUSY"},
		"compressed gRPC": {func() answer {
			return c.send(grpc, name, garbage, "Grpc-Encoding",
				"gzip")
		}, "BUSY"},
		"small": {func() answer { return c.send(connectJSON, name, garbage[:4<<10]) },
			"FIELD_INVALID"},
		"small, of unknown length": {func() answer { return c.chunked(garbage[:4<<10]) }, "FIELD_INVALID"},
		"of another tenant": {func() answer { return other.send(connectJSON, name, garbage) },
			"FIELD_INVALID"},
		"of another tenant, compressed": {func() answer {
			return other.send(connectJSON, name, zipped(garbage),
				"Content-Encoding", "gzip")
		}, "FIELD_INVALID"},
		"without a key, with much to say": {func() answer { return (&caller{s, ""}).send(connectJSON, name, garbage) },
			"UNAUTHENTICATED"},
	}
	for _, p := range protocols {
		x := calls["1 MiB"]
		x.send = func() answer { return c.send(p, name, garbage) }
		calls[p.Name] = x
	}
	var all sync.WaitGroup
	for what, x := range calls {
		all.Go(func() {
			a := x.send()
			if got := a.Reason(t); got != x.want {
				t.Errorf("%s: %s %s, want %s", what, got, a.Message, x.want)
			}
			info, found := servertest.Detail(a.Answer, new(errdetails.RetryInfo))
			if x.want == "BUSY" && (a.Code != "resource_exhausted" || !found ||
				info.GetRetryDelay().AsDuration() <= 0 || a.Header.Get("Retry-After") != "1") {
				t.Errorf("%s: %s, %v, Retry-After %q", what, a.Code, info, a.Header.Get("Retry-After"))
			}
		})
	}
	all.Wait()
	end()
	eventually(t, 10*time.Second, "all memory is released", func() bool { return c.admittedBytes() == 0 })
	if a := c.send(connectProto, name, garbage); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("after the release: %s", a.Message)
	}
}

// Every way in which a call can end releases its memory.
func TestEveryCallReleasesItsAdmission(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	name := path(method(t, "TransferBatch"))
	r := &ledgerv1.TransferBatchRequest{}
	for i := range 200 {
		r.Items = append(r.Items, item(fmt.Sprint("n", i), "u:a", "0.01", ""))
	}
	good := connectProto.Encode(t, r)
	for what, end := range map[string]func(){
		"success":        func() { ok(c, "TransferBatch", r, new(ledgerv1.TransferBatchResponse)) },
		"success, gRPC":  func() { c.call(grpc, "TransferBatch", r) },
		"a bad request":  func() { c.send(connectProto, name, bytes.Repeat([]byte{0xff}, 100<<10)) },
		"truncated gzip": func() { c.send(connectProto, name, zipped(good)[:200], "Content-Encoding", "gzip") },
		"much in little": func() { c.send(connectJSON, name, bomb(t, 20<<20), "Content-Encoding", "gzip") },
		"too large":      func() { c.chunked(bytes.Repeat([]byte(" "), 17<<20)) },
		"a disconnect": func() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.Base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
				"application/proto\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
				name, c.apiKey, len(good))
			if _, err := conn.Write(good[:len(good)/2]); err != nil {
				t.Fatal(err)
			}
			eventually(t, 10*time.Second, "the call is being read", func() bool { return c.admittedBytes() > 0 })
		},
		"an early answer": func() { // on a connection that stays open
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.Base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for range 2 {
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+
					"application/proto\r\nContent-Length: %d\r\n\r\n%s", name, len(good), good)
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				if res.StatusCode != http.StatusUnauthorized {
					t.Errorf("without a key: %d", res.StatusCode)
				}
			}
		},
	} {
		end()
		eventually(t, 10*time.Second, "memory is released after "+what, func() bool { return c.admittedBytes() == 0 })
	}
}

// The rest of a body that was refused early must not be parsed as another request on the same connection: the server
// reads it to the end and answers the request after it, or closes the connection.
func TestRestOfARefusedBodyIsNotParsed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.Key("mine", "boss", access.Admin)
	for _, size := range []int64{18 << 20, 40 << 20} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.Base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: "+
			"Bearer %s\r\nContent-Length: %d\r\n\r\n",
			path(method(t, "TransferBatch")), key, size)
		go func() { // fails when the server closes the connection
			if _, err := io.CopyN(conn, spaces{}, size); err == nil {
				_, _ = io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: next\r\n\r\n")
			}
		}()
		answers := bufio.NewReader(conn)
		res, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, _ = io.Copy(io.Discard, res.Body); res.StatusCode != http.StatusBadRequest {
			t.Errorf("a body of %d MiB: %s", size>>20, res.Status)
		}
		res, err = http.ReadResponse(answers, nil)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %d MiB: %v", size>>20, err)
		}
		if err == nil && res.Header.Get("X-Request-Id") != "next" {
			t.Errorf("the rest of %d MiB was answered with %s", size>>20, res.Status)
		}
	}
}

// bomb returns compressed white space.
func bomb(t testing.TB, size int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := io.CopyN(w, spaces{}, int64(size)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

type spaces struct{}

func (spaces) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Reads of one tenant that wait for a table leave connections to its other principals and to other tenants, and delay
// no authentication.
func TestReadsOfOneTenantDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	mine, mate := &caller{s, s.Key("mine", "boss", access.Read)}, &caller{s, s.Key("mine", "mate", access.Read)}
	other := &caller{s, s.Key("other", "boss", access.Read)}
	tx, err := s.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "lock ledger_transfers in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	var blocked sync.WaitGroup
	block := func(c *caller, waiting int) {
		for range 40 {
			blocked.Go(func() {
				c.call(connectJSON, "ListTransfers", &ledgerv1.ListTransfersRequest{}, "Connect-Timeout-Ms", "20000")
			})
		}
		eventually(t, 20*time.Second, "reads wait for the table", func() bool {
			return s.Count("select count(*) from pg_locks where not granted "+
				"and relation = 'ledger_transfers'::regclass") >= waiting
		})
	}
	answers := func(who string, c *caller) {
		t.Helper()
		if a := c.call(connectJSON, "ListAssets", &ledgerv1.ListAssetsRequest{}, "Connect-Timeout-Ms",
			"10000"); a.Code != "" {
			t.Errorf("%s: %s %s", who, a.Code, a.Message)
		}
	}
	block(mine, 5)
	answers("another principal", mate)
	block(mate, 10)
	answers("another tenant", other)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	blocked.Wait()
}
