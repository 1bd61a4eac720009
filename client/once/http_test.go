package once_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/client/once"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

func TestManyClicksOnTwoInstancesHaveOneEffect(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Location", "/orders/1")
		w.Header().Add("Link", "a")
		w.Header().Add("Link", "b")
		w.Header().Set("Set-Cookie", "secret")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "made %s", body)
	})
	copies := []string{s.url, s.copy(s.client)}
	var mu sync.Mutex
	var wg sync.WaitGroup
	answers, firsts := map[string]int{}, 0
	for i := range 200 {
		wg.Go(func() {
			r := s.post(copies[i%2], "order", "Idempotency-Key", "k", "User", "ann")
			mu.Lock()
			defer mu.Unlock()
			answers[fmt.Sprint(r.status, r.body, r.header["Location"], r.header["Link"])]++
			if !r.replayed() {
				firsts++
			} else if r.header.Get("Set-Cookie") != "" {
				t.Error("a replay sets a cookie")
			}
		})
	}
	wg.Wait()
	if len(answers) != 1 || firsts != 1 || answers["201made order[/orders/1] [a b]"] != 200 {
		t.Errorf("%d firsts of %v", firsts, answers)
	}
	s.effected(1)
	if r := s.post(s.url, "order", "Idempotency-Key", `"k"`, "User", "ann"); !r.replayed() {
		t.Errorf("the quoted key is a different key: %v", r)
	}
}

func TestKeysAreScopedToTheCallerAndToOneRequest(t *testing.T) {
	t.Parallel()
	s := newShop(t, answering(200, "ok"), once.WithRequiredKey())
	for _, user := range []string{"ann", "bob", "a/b", "a", "", strings.Repeat("long", 100)} {
		if r := s.post(s.url, "x", "Idempotency-Key", "b/k", "User", user); r.replayed() || r.status != 200 {
			t.Errorf("%q: %v", user, r)
		}
	}
	s.effected(6)
	if r := s.post(s.url, "x", "Idempotency-Key", "k", "User", "a/b"); r.replayed() { // must not be user a's key b/k
		t.Errorf("%v", r)
	}
	s.effected(7)
	for name, c := range map[string]struct {
		url, body string
		headers   []string
		status    int
		code      string
	}{
		"other body": {s.url, "y", []string{"Idempotency-Key", "b/k", "User", "ann"}, 422, "idempotency-key-reused"},
		"other path": {s.url + "/v2", "x", []string{"Idempotency-Key", "b/k", "User", "ann"}, 422,
			"idempotency-key-reused"},
		"no key": {s.url, "x", []string{"User", "ann"}, 400, "idempotency-key-missing"},
		"two keys": {s.url, "x", []string{"Idempotency-Key", "1", "Idempotency-Key", "2"}, 400,
			"idempotency-key-invalid"},
		"empty":       {s.url, "x", []string{"Idempotency-Key", ""}, 400, "idempotency-key-invalid"},
		"half quoted": {s.url, "x", []string{"Idempotency-Key", `"a`}, 400, "idempotency-key-invalid"},
		"long": {s.url, "x", []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400,
			"idempotency-key-invalid"},
		"large": {s.url, strings.Repeat("x", 1<<20+1), []string{"Idempotency-Key", "l"}, 413, "body-too-large"},
	} {
		if r := s.post(c.url, c.body, c.headers...); r.status != c.status || !strings.Contains(r.body, `"`+c.code+`"`) {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	s.effected(7)
	if res, err := http.Get(s.url); err != nil || res.StatusCode != 200 {
		t.Errorf("a read: %v, %v", res, err)
	}
	s.effected(8)
}

func TestAnswersAreRecordedByTheRule(t *testing.T) {
	t.Parallel()
	s := newShop(t, nil)
	send := func(key, body string) reply { return s.post(s.url, body, "Idempotency-Key", key) }
	effects := int64(0)
	for _, status := range []int{201, 303, 402, 409, 410, 422} {
		s.will(answering(status, "first"))
		key := fmt.Sprint("kept", status)
		first := send(key, "x")
		s.will(answering(200, "second"))
		if again := send(key, "x"); first.status != status || again.status != status || again.body != "first" ||
			!again.replayed() {
			t.Errorf("%d: %v, then %v", status, first, again)
		}
		effects++
	}
	s.effected(effects)
	for _, status := range []int{400, 404, 415, 408, 429, 500, 503} {
		s.will(answering(status, "first"))
		key := fmt.Sprint("again", status)
		first := send(key, "x")
		s.will(answering(200, "second"))
		if other := send(key, "corrected"); (other.status == 200) != slices.Contains([]int{400, 404, 415}, status) {
			t.Errorf("%d with other content: %v", status, other)
		} else if other.status == 200 {
			effects += 2
			continue
		}
		if again := send(key, "x"); first.status != status || again.status != 200 || again.replayed() {
			t.Errorf("%d: %v, then %v", status, first, again)
		}
		effects += 2
	}
	s.effected(effects)
	s.will(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if _, err := s.try(context.Background(), s.url, "x", "Idempotency-Key", "panic"); err == nil {
		t.Error("a panic was answered")
	}
	s.effects.Store(effects) // Go's client itself retries a request with an Idempotency-Key
	s.will(answering(200, "second"))
	if again := send("panic", "x"); again.status != 200 || again.replayed() {
		t.Errorf("after a panic: %v", again)
	}
	s.will(answering(200, strings.Repeat("large", 300_000)))
	if first := send("large", "x"); len(first.body) != 1_500_000 {
		t.Errorf("%d bytes", len(first.body))
	}
	if again := send("large", "x"); again.status != 200 || again.body != "" ||
		again.header.Get("Idempotency-Body") != "omitted" {
		t.Errorf("repeat of a large answer: %d, %d bytes, %v", again.status, len(again.body), again.header)
	}
	s.effected(effects + 2)
}

func TestUnknownOutcomesAreParkedUntilResolved(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(w http.ResponseWriter, r *http.Request) {
		once.Unknown(r.Context())
		http.Error(w, "the provider did not answer", http.StatusGatewayTimeout)
	})
	if r := s.post(s.url, "x", "Idempotency-Key", "k", "User", "ann"); r.status != http.StatusGatewayTimeout {
		t.Errorf("first %v", r)
	}
	if r := s.post(s.url, "x", "Idempotency-Key", "k", "User", "ann"); r.status != http.StatusConflict ||
		!strings.Contains(r.body, "outcome-unknown") {
		t.Errorf("repeat %v", r)
	}
	rec := s.record("ann/k")
	if _, err := s.client.Idempotency.ResolveWork(context.Background(),
		&idempotencyv1.ResolveWorkRequest{Scope: "shop", Key: "ann/k", Fence: rec.GetFence(),
			Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE,
			Answer:     &idempotencyv1.RecordedAnswer{Status: 201, Body: []byte("it was paid")}}); err != nil {
		t.Fatal(err)
	}
	if r := s.post(s.url, "x", "Idempotency-Key", "k", "User", "ann"); r.status != 201 || r.body != "it was paid" ||
		!r.replayed() {
		t.Errorf("resolved %v", r)
	}
	s.effected(1)
}

func TestTheLeaseIsRenewedWhileTheHandlerRuns(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := newShop(t, func(w http.ResponseWriter, r *http.Request) {
		if a, ok := once.AttemptOf(r.Context()); !ok || a.Number != 1 || a.Fence == 0 || a.TakenOver {
			t.Errorf("attempt %v", a)
		}
		select {
		case <-release:
		case <-r.Context().Done():
			t.Errorf("ended: %v", context.Cause(r.Context()))
		}
		answering(200, "at last")(w, r)
	}, once.WithLease(3*time.Second), once.WithWait(time.Minute))
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		_, err := s.try(ctx, s.url, "x", "Idempotency-Key", "k", "User", "ann")
		left <- err
	}()
	soon(t, "the handler works", func() bool { return s.effects.Load() == 1 })
	began := s.record("ann/k").GetLeaseExpireTime().AsTime()
	leave() // the caller hangs up and another one arrives
	if err := <-left; err == nil {
		t.Error("the caller did not hang up")
	}
	second := make(chan reply, 1)
	go func() { second <- s.post(s.url, "x", "Idempotency-Key", "k", "User", "ann") }()
	soon(t, "the lease is renewed past its first end", func() bool {
		return s.record("ann/k").GetLeaseExpireTime().AsTime().Sub(began) > 3500*time.Millisecond
	})
	close(release)
	if r := <-second; r.body != "at last" || !r.replayed() {
		t.Errorf("second %v", r)
	}
	s.effected(1)
}

func TestALeaseThatCannotBeRenewedEndsTheHandler(t *testing.T) {
	t.Parallel()
	cause := make(chan error, 1)
	s := newShop(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
			cause <- context.Cause(r.Context())
		case <-time.After(20 * time.Second):
			cause <- errors.New("the handler's context did not end")
		}
		http.Error(w, "stopped", http.StatusServiceUnavailable)
	}, once.WithLease(2*time.Second))
	done := make(chan reply, 1)
	go func() { done <- s.post(s.url, "x", "Idempotency-Key", "k") }()
	soon(t, "the handler works", func() bool { return s.effects.Load() == 1 })
	begun := time.Now()
	s.stopped = true
	s.ledgerd.Stop()
	if err := <-cause; !errors.Is(err, once.ErrLeaseLost) {
		t.Error(err)
	}
	if after := time.Since(begun); after > 12*time.Second {
		t.Errorf("after %v", after)
	}
	if r := <-done; r.status != http.StatusServiceUnavailable {
		t.Errorf("got %v", r)
	}
}

func TestWithoutLedgerdRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t, answering(200, "ok"))
	gone := client.New("http://127.0.0.1:1", client.WithRetry(1, 0, 0))
	closed, open := s.copy(gone, once.WithLease(time.Second)),
		s.copy(gone, once.WithFailOpen(), once.WithLease(time.Second))
	if r := s.post(closed, "x", "Idempotency-Key", "k"); r.status != http.StatusServiceUnavailable ||
		r.header.Get("Retry-After") == "" {
		t.Errorf("closed: %v", r)
	}
	s.effected(0)
	if r := s.post(open, "x", "Idempotency-Key", "k"); r.status != 200 || r.replayed() {
		t.Errorf("open: %v", r)
	}
	s.effected(1)
}

func TestLostAnswersFromLedgerdLoseNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, answering(200, "ok"))
	for _, path := range []string{"/Begin", "/Complete"} {
		for lost, retries := range map[int32]int{1: 3, 2: 1} {
			l := &losing{HTTPClient: http.DefaultClient, path: path}
			c := client.New("http://"+s.ledgerd.Addr(), client.WithHTTPClient(l),
				client.WithRetry(retries, time.Millisecond, time.Millisecond))
			url := s.copy(c)
			l.lose.Store(lost)
			s.effects.Store(0)
			key := fmt.Sprint(path, lost)
			first := s.post(url, "x", "Idempotency-Key", key)
			// the middleware does not know whether it may run: it must not, and abandons the work
			if path == "/Begin" && retries == 1 {
				if first.status != http.StatusServiceUnavailable {
					t.Errorf("%s: %v", key, first)
				}
				s.effected(0)
				soon(t, "the work is abandoned",
					func() bool { return s.record("/"+key).GetState() == idempotencyv1.WorkState_WORK_STATE_FREE })
				if r := s.post(s.url, "x", "Idempotency-Key", key); r.status != 200 || r.replayed() {
					t.Errorf("%s: then %v", key, r)
				}
				continue
			}
			soon(t, "the answer is recorded",
				func() bool { return s.record("/"+key).GetState() == idempotencyv1.WorkState_WORK_STATE_DONE })
			if again := s.post(s.url, "x", "Idempotency-Key", key); first.status != 200 || first.replayed() ||
				again.body != "ok" || !again.replayed() {
				t.Errorf("%s: %v, then %v", key, first, again)
			}
			s.effected(1)
		}
	}
}

// cuttable is an HTTP client whose connection to ledgerd can be cut.
type cuttable struct{ cut atomic.Bool }

func (c *cuttable) Do(r *http.Request) (*http.Response, error) {
	if c.cut.Load() {
		return nil, fmt.Errorf("dial: %w", io.ErrUnexpectedEOF)
	}
	return http.DefaultClient.Do(r)
}

func TestWithRerunTheNextRequestTakesOverAndTheFirstAnswerIsDropped(t *testing.T) {
	t.Parallel()
	way := &cuttable{}
	s := newShop(t, nil, once.WithRerun(), once.WithLease(2*time.Second), once.WithWait(30*time.Second))
	cutOff := s.copy(client.New("http://"+s.ledgerd.Addr(), client.WithHTTPClient(way), client.WithRetry(1, 0, 0)),
		once.WithRerun(), once.WithLease(2*time.Second))
	release := make(chan struct{})
	s.will(func(w http.ResponseWriter, r *http.Request) {
		a, _ := once.AttemptOf(r.Context())
		if a.Number == 1 {
			way.cut.Store(true)
			<-r.Context().Done() // the lease is lost, but the handler continues
			<-release
			way.cut.Store(false)
		} else if !a.TakenOver {
			t.Errorf("attempt %+v", a)
		}
		answering(200, fmt.Sprint("attempt ", a.Number))(w, r)
	})
	first := make(chan reply, 1)
	go func() { first <- s.post(cutOff, "x", "Idempotency-Key", "k") }()
	soon(t, "the handler works", func() bool { return s.effects.Load() == 1 })
	if r := s.post(s.url, "x", "Idempotency-Key", "k"); r.body != "attempt 2" || r.replayed() {
		t.Errorf("second %v", r)
	}
	close(release)
	if r := <-first; r.status != http.StatusConflict || !strings.Contains(r.body, "lease-lost") {
		t.Errorf("first %v", r)
	}
	if r := s.post(cutOff, "x", "Idempotency-Key", "k"); r.body != "attempt 2" || !r.replayed() {
		t.Errorf("afterwards %v", r)
	}
}

func TestOptionsChooseTheRecordedAnswersAndHeaders(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/1")
		w.Header().Set("X-Shard", "7")
		w.Header().Set("Set-Cookie", "secret")
		w.WriteHeader(http.StatusNotFound)
	}, once.WithHeaders(func(name string) bool { return name != "X-Shard" }),
		once.WithRule(func(status int, h http.Header) once.Outcome {
			if h.Get("Location") == "/1" {
				return once.Refused
			}
			return once.DefaultRule(status, h)
		}))
	first, again := s.post(s.url, "x", "Idempotency-Key", "k"), s.post(s.url, "x", "Idempotency-Key", "k")
	if first.header.Get("X-Shard") != "7" || first.header.Get("Set-Cookie") == "" {
		t.Errorf("first %v", first)
	}
	if again.status != 404 || !again.replayed() || again.header.Get("Location") != "/1" ||
		again.header.Get("X-Shard") != "" || again.header.Get("Set-Cookie") != "" {
		t.Errorf("repeat %v", again)
	}
	s.effected(1)
	if state := s.record("/k").GetState(); state != idempotencyv1.WorkState_WORK_STATE_REFUSED {
		t.Errorf("state %v", state)
	}
}

func TestRepeatsHaveTheHeadersOfTheFirstBehindOtherMiddleware(t *testing.T) {
	s := newShop(t, answering(http.StatusCreated, "made"))
	middleware := once.New(s.client, "shop", byUser)
	inner := middleware.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header()["Link"] = []string{"</a>", "</b>"}
		w.Header().Set("Vary", "Accept")
		w.WriteHeader(http.StatusCreated)
	}))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private")
		w.Header().Set("Link", "</c>")
		w.Header().Set("Vary", "Origin")
		inner.ServeHTTP(w, r)
	}))
	defer web.Close()
	first, again := s.post(web.URL, "x", "Idempotency-Key", "k"), s.post(web.URL, "x", "Idempotency-Key", "k")
	for _, name := range []string{"Cache-Control", "Link", "Vary"} {
		a, b := first.header.Values(name), again.header.Values(name)
		slices.Sort(a)
		if slices.Sort(b); !slices.Equal(a, b) || !again.replayed() {
			t.Errorf("%s was %q, and is %q in the repeat", name, a, b)
		}
	}
}
