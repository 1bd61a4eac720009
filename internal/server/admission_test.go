package server_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// admitted is what the server says it has in flight of large requests, in bytes.
func (c *caller) admitted() (bytes int) {
	c.t.Helper()
	_, page := get(c.t, c.base+"/metrics", c.apiKey)
	for line := range strings.Lines(page) {
		if value, found := strings.CutPrefix(line, "ledgerd_admission_bytes "); found {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				c.t.Fatal(err)
			}
			return int(n)
		}
	}
	c.t.Fatal("there is no ledgerd_admission_bytes")
	return 0
}

// flood has a batch in flight that takes all that one tenant may have, until the returned function lets it end. The row
// of an account is locked meanwhile.
func (c *caller) flood(account string) (end func()) {
	c.t.Helper()
	ctx := context.Background()
	tx, err := c.pool.Begin(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "select from ledger_accounts where code = $1 for update", account); err != nil {
		c.t.Fatal(err)
	}
	r := &ledgerv1.TransferBatchRequest{AllOrNothing: true}
	for i := range 700 {
		r.Items = append(r.Items, item(fmt.Sprint("flood", i), account, "0.01", ""))
		r.Items[i].Transfer.Metadata = map[string]string{"note": strings.Repeat("n", 12<<10)}
	}
	done := make(chan answer, 1)
	go func() { done <- c.call(connectProto, "TransferBatch", r) }()
	soon(c.t, time.Minute, "the batch is in flight", func() bool { return c.admitted() > 8<<20 })
	return func() {
		c.t.Helper()
		if err := tx.Rollback(ctx); err != nil {
			c.t.Fatal(err)
		}
		if a := <-done; a.code != "" {
			c.t.Errorf("the batch that was in flight: %s %s", a.code, a.message)
		}
	}
}

// chunked sends a request of unknown length.
func (c *caller) chunked(body []byte) answer {
	c.t.Helper()
	req, err := http.NewRequest(http.MethodPost, c.base+path(method(c.t, "TransferBatch")),
		io.MultiReader(bytes.NewReader(body)))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Content-Type", connectJSON.contentType)
	req.Header.Set("Authorization", "Bearer "+c.apiKey)
	res, err := http1.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return connectJSON.read(c.t, res, raw)
}

// A tenant with all its room taken gets one BUSY for a large call, in every protocol, before anything of the call is
// read: it is garbage, and that is not noticed. Small calls, and other tenants, go on.
func TestLargeCallsBeyondTheBoundAreRefusedBeforeTheyAreDecoded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	end := c.flood("u:a")
	garbage := bytes.Repeat([]byte{0xff}, 100<<10)
	name := path(method(t, "TransferBatch"))
	other := &caller{s, s.key("theirs", "boss", access.Write)}
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
		calls[p.name] = x
	}
	var all sync.WaitGroup
	for what, x := range calls {
		all.Go(func() {
			a := x.send()
			if got := a.reason(t); got != x.want {
				t.Errorf("%s: %s %s, want %s", what, got, a.message, x.want)
			}
			info, found := detail(a, new(errdetails.RetryInfo))
			if x.want == "BUSY" && (a.code != "resource_exhausted" || !found ||
				info.GetRetryDelay().AsDuration() <= 0 || a.header.Get("Retry-After") != "1") {
				t.Errorf("%s: %s, %v, Retry-After %q", what, a.code, info, a.header.Get("Retry-After"))
			}
		})
	}
	all.Wait()
	end()
	soon(t, 10*time.Second, "all room is given back", func() bool { return c.admitted() == 0 })
	if a := c.send(connectProto, name, garbage); a.reason(t) != "FIELD_INVALID" {
		t.Errorf("with room again: %s", a.message)
	}
}

// Room is given back however a call ends.
func TestRoomIsGivenBackHoweverACallEnds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.key("mine", "boss", access.Write)}
	c.prepare("a")
	name := path(method(t, "TransferBatch"))
	r := &ledgerv1.TransferBatchRequest{}
	for i := range 200 {
		r.Items = append(r.Items, item(fmt.Sprint("n", i), "u:a", "0.01", ""))
	}
	good := connectProto.encode(t, r)
	for what, end := range map[string]func(){
		"success":        func() { ok(c, "TransferBatch", r, new(ledgerv1.TransferBatchResponse)) },
		"success, gRPC":  func() { c.call(grpc, "TransferBatch", r) },
		"a bad request":  func() { c.send(connectProto, name, bytes.Repeat([]byte{0xff}, 100<<10)) },
		"no whole gzip":  func() { c.send(connectProto, name, zipped(good)[:200], "Content-Encoding", "gzip") },
		"much in little": func() { c.send(connectJSON, name, bomb(t, 20<<20), "Content-Encoding", "gzip") },
		"too large":      func() { c.chunked(bytes.Repeat([]byte(" "), 17<<20)) },
		"a disconnect": func() {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/proto\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
				name, c.apiKey, len(good))
			if _, err := conn.Write(good[:len(good)/2]); err != nil {
				t.Fatal(err)
			}
			soon(t, 10*time.Second, "the call is being read", func() bool { return c.admitted() > 0 })
		},
		"an early answer": func() { // on a connection that goes on
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			for range 2 {
				fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n\r\n%s", name, len(good), good)
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
		soon(t, 10*time.Second, "room is given back after "+what, func() bool { return c.admitted() == 0 })
	}
}

// What is left of a body that was refused half-way is not taken for another request on the same connection.
func TestRestOfARefusedBodyIsNoRequest(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("mine", "boss", access.Write)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const size = 18 << 20
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n",
		path(method(t, "TransferBatch")), key, size)
	go func() { _, _ = io.CopyN(conn, spaces{}, size) }() // fails when the server closes the connection
	answers := bufio.NewReader(conn)
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _ = io.Copy(io.Discard, res.Body); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a body of 18 MiB: %s", res.Status)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(answers, nil); err == nil {
		t.Errorf("the rest of the body was answered with %s", res.Status)
	}
}

// bomb is so much white space, compressed.
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
