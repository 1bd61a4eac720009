package importer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
)

func TestAnUnreachableServerIsNamedAfterAllAttempts(t *testing.T) {
	c := Dial("http://127.0.0.1:1", "")
	pauses := 0
	c.pause = func(context.Context, int) error { pauses++; return nil }
	err := c.EnsureAssets(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "http://127.0.0.1:1 does not answer") || pauses != attempts-1 {
		t.Fatalf("%v after %d pauses", err, pauses)
	}
}

func TestNoRedirectReceivesTheKey(t *testing.T) {
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	for _, status := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect} {
		server := httptest.NewServer(http.RedirectHandler(other.URL, status))
		c := Dial(server.URL, "ldg_key")
		c.pause = func(context.Context, int) error { return errors.New("a retry") }
		err := c.EnsureAssets(t.Context(), nil)
		server.Close()
		if connect.CodeOf(err) != connect.CodeFailedPrecondition ||
			!strings.Contains(err.Error(), "redirected to "+other.URL) {
			t.Errorf("%d: %v", status, err)
		}
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("%d calls reached the other server", n)
	}
}

func TestTheHashCoversFileAndSettings(t *testing.T) {
	hash := func(text, setting string) string {
		s, err := Spool(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		first, err := s.First(setting)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, first, 1); err != nil { // unread bytes count too
			t.Fatal(err)
		}
		h, err := s.Hash()
		if err != nil {
			t.Fatal(err)
		}
		again, err := s.Again()
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(again); err != nil || string(b) != text {
			t.Fatalf("%q, %v", b, err)
		}
		return h
	}
	long := strings.Repeat("x", 1<<18)
	one, again := hash(long, "a"), hash(long, "a")
	if one != again || hash(long, "a") == hash(long, "b") || hash(long, "a") == hash(long+"y", "a") {
		t.Fatal("the hash does not distinguish inputs")
	}
}

func TestProgressWithoutATerminalIsALinePerTenth(t *testing.T) {
	var b bytes.Buffer
	p := NewProgress(&b, 1000)
	for range 100 {
		p.Add(10)
	}
	p.End()
	if n := strings.Count(b.String(), "\n"); n != 10 || strings.ContainsAny(b.String(), "\r\x1b") ||
		!strings.Contains(b.String(), "1,000 of 1,000 (100 %)") {
		t.Fatalf("%d lines: %q", n, b.String())
	}
}

func TestCountsHaveCommas(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000",
		-100: "-100"} {
		if got := Count(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}
