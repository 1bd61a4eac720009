package server

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/rpc"
)

func TestReadTimeoutEndsASlowBody(t *testing.T) {
	t.Parallel()
	got := make(chan error, 1)
	s := serving(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		got <- err
	}), 50*time.Millisecond)
	defer s.Close()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err == nil {
			t.Error("the body was read to its end")
		}
	case <-time.After(10 * time.Second):
		t.Error("the server did not time out")
	}
}

func TestResponseMayOutlastTheReadTimeout(t *testing.T) {
	t.Parallel()
	const within = 50 * time.Millisecond
	s := serving(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != "whole" {
			t.Errorf("body %q, %v", b, err)
		}
		for range 4 {
			select {
			case <-time.After(within):
			case <-r.Context().Done():
				t.Error("the call was cut off")
				return
			}
			_, _ = io.WriteString(w, "on\n")
			_ = http.NewResponseController(w).Flush()
		}
	}), within)
	defer s.Close()
	for _, h2 := range []bool{false, true} {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(!h2)
		transport.Protocols.SetUnencryptedHTTP2(h2)
		res, err := (&http.Client{Transport: transport}).Post(s.URL, "text/plain", strings.NewReader("whole"))
		if err != nil {
			t.Fatal(err)
		}
		lines := 0
		for scan := bufio.NewScanner(res.Body); scan.Scan(); {
			lines++
		}
		res.Body.Close()
		if lines != 4 {
			t.Errorf("HTTP/2 %v: %d lines", h2, lines)
		}
	}
}

func serving(h http.Handler, within time.Duration) *httptest.Server {
	s := httptest.NewUnstartedServer(h)
	s.Config = newHTTP(h, within)
	s.Start()
	return s
}

func TestPanicIsLoggedWithTheRequestID(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	s := serving(rpc.NewAdmission(nil).Handler(slog.New(slog.NewJSONHandler(&log, nil)), http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { panic("unexpected") })), time.Minute)
	req, err := http.NewRequest("GET", s.URL+"/path", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Request-ID", "mine")
	if res, err := http.DefaultClient.Do(req); err == nil {
		t.Errorf("got %d, want a closed connection", res.StatusCode)
	}
	s.Close()
	for _, want := range []string{`"level":"ERROR"`, `"request_id":"mine"`, `"path":"/path"`, "panic: unexpected",
		"goroutine"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in %s", want, &log)
		}
	}
}
