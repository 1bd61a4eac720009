package server_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

func TestRotatedKeysAreFetchedAndOldOnesForgotten(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	old, next := i.newSigner("old", jose.ES256), i.newSigner("next", jose.RS256)
	i.keys = []jose.JSONWebKey{old.public()}
	s := trusting(t, i)
	if got := tryRead(s, old.token(nil)); got != "" {
		t.Fatal(got)
	}
	i.set(func() { i.keys = []jose.JSONWebKey{next.public()} })
	servertest.Eventually(t, 20*time.Second, "the new key", func() bool { return tryRead(s, next.token(nil)) == "" })
	if got := tryRead(s, old.token(map[string]any{"jti": "fresh"})); got != "UNAUTHENTICATED" {
		t.Errorf("the withdrawn key: %q", got)
	}
}

// TestGarbageDoesNotFloodTheIssuer sends 200 tokens of unknown keys.
func TestGarbageDoesNotFloodTheIssuer(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good := i.newSigner("good", jose.ES256)
	i.keys = []jose.JSONWebKey{good.public()}
	s := trusting(t, i)
	start := time.Now()
	bad := i.newSigner("", jose.ES256)
	for n := range 200 {
		bad.id = fmt.Sprint("unknown-", n)
		if got := tryRead(s, bad.token(nil)); got != "UNAUTHENTICATED" {
			t.Fatalf("token %d: %q", n, got)
		}
	}
	// Two requests at the start, and two at most every 5 s.
	if most := 4 + 2*int(time.Since(start)/(5*time.Second)); i.count() > most {
		t.Errorf("the issuer got %d requests, not %d", i.count(), most)
	}
	if got := tryRead(s, good.token(nil)); got != "" {
		t.Errorf("a good token: %q", got)
	}
}

func TestIssuerMayBeAwayAtTheStart(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good := i.newSigner("good", jose.ES256)
	i.keys, i.down = []jose.JSONWebKey{good.public()}, true
	s := trusting(t, i)
	for range 3 {
		if got := tryRead(s, good.token(nil)); got != "ISSUER_UNAVAILABLE" {
			t.Errorf("while the issuer is away: %q", got)
		}
	}
	const away = "the keys of an issuer of tokens cannot be fetched"
	if n := len(s.Log.With("msg", away)); n != 1 {
		t.Errorf("%d warnings", n)
	}
	i.set(func() { i.down = false })
	servertest.Eventually(t, 20*time.Second, "accepted", func() bool { return tryRead(s, good.token(nil)) == "" })
}

// TestIssuerThatHangsStallsNoOther calls with known keys while another token waits for its key from the issuer.
func TestIssuerThatHangsStallsNoOther(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good, unknown := i.newSigner("good", jose.ES256), i.newSigner("unknown", jose.ES256)
	i.keys = []jose.JSONWebKey{good.public()}
	s := trusting(t, i)
	if got := tryRead(s, good.token(nil)); got != "" {
		t.Fatal(got)
	}
	hang := make(chan struct{})
	i.set(func() { i.hang = hang })
	t.Cleanup(func() { close(hang) })
	hits := i.count()
	ended := make(chan string, 1)
	go func() { // waits for the issuer, once it may be asked again
		got := ""
		for i.count() == hits {
			got = tryRead(s, unknown.token(nil))
		}
		ended <- got
	}()
	servertest.Eventually(t, 20*time.Second, "the issuer is asked", func() bool { return i.count() > hits })
	for n := range 20 {
		start := time.Now()
		if got := tryWrite(s, good.token(map[string]any{"jti": fmt.Sprint(n)})); got != "" ||
			time.Since(start) > 2*time.Second {
			t.Errorf("a known key meanwhile: %q after %v", got, time.Since(start))
		}
	}
	select {
	case got := <-ended:
		if got != "ISSUER_UNAVAILABLE" {
			t.Errorf("an unknown key: %q", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("a call waits for the issuer for more than 10 s")
	}
}

func TestStreamEndsWithItsToken(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good := i.newSigner("good", jose.ES256)
	i.keys = []jose.JSONWebKey{good.public()}
	s := trusting(t, i)
	token := good.token(map[string]any{"exp": time.Now().Add(-25 * time.Second).Unix()}) // the leeway is 30 s
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := newLedger(servertest.HTTP2, s, token).WatchEntries(ctx, &ledgerv1.WatchEntriesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for stream.Receive() {
	}
	if got := reasonOf(stream.Err()); got != "UNAUTHENTICATED" {
		t.Errorf("the stream ended with %q: %v", got, stream.Err())
	}
	if got := tryRead(s, token); got != "UNAUTHENTICATED" {
		t.Errorf("a call: %q", got)
	}
}
