package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

const (
	done    = idempotencyv1.WorkOutcome_WORK_OUTCOME_DONE
	refused = idempotencyv1.WorkOutcome_WORK_OUTCOME_REFUSED
	unknown = idempotencyv1.WorkOutcome_WORK_OUTCOME_UNKNOWN
)

func init() {
	maps.Copy(changes, map[string]change{
		"Idempotency.Begin": {well: func(tag string) proto.Message {
			return &idempotencyv1.BeginRequest{Scope: "new",
				Key: tag}
		}},
		"Idempotency.Extend": {well: func(tag string) proto.Message {
			return &idempotencyv1.ExtendRequest{Scope: "runs", Key: tag, Fence: prepared,
				Lease: durationpb.New(time.Minute)}
		}},
		"Idempotency.Complete": {well: func(tag string) proto.Message {
			return &idempotencyv1.CompleteRequest{Scope: "runs", Key: tag, Fence: prepared, Outcome: done,
				Answer: &idempotencyv1.RecordedAnswer{Status: 201, Body: []byte("made " + tag)}}
		}},
		"Idempotency.Abandon": {well: func(tag string) proto.Message {
			return &idempotencyv1.AbandonRequest{Scope: "runs", Key: tag, Fence: prepared}
		}},
		"Idempotency.ResolveWork": {reason: "WORK_NOT_PARKED", well: func(tag string) proto.Message {
			return &idempotencyv1.ResolveWorkRequest{Scope: "parked", Key: tag, Fence: prepared,
				Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE}
		}, refused: func(tag string) proto.Message {
			return &idempotencyv1.ResolveWorkRequest{Scope: "runs", Key: tag, Fence: prepared,
				Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_FREE}
		}},
	})
}

// workName is the name of a piece of work in site.fences.
func workName(scope, key string) string { return "work " + scope + " " + key }

// prepareWork creates running and parked work.
func (c *caller) prepareWork(tag string) {
	c.T.Helper()
	for _, kind := range []string{"runs", "parked"} {
		fence := c.run(&idempotencyv1.BeginRequest{Scope: kind, Key: tag, Lease: durationpb.New(time.Hour)}).GetFence()
		c.fences.Store(workName(kind, tag), fence)
		if kind == "parked" {
			c.complete(kind, tag, fence, unknown, "")
		}
	}
}

func (c *caller) begin(r *idempotencyv1.BeginRequest, headers ...string) *idempotencyv1.BeginResponse {
	c.T.Helper()
	return ok(c, "Idempotency.Begin", r, new(idempotencyv1.BeginResponse), headers...)
}

// run begins work, and fails the test unless the work may run.
func (c *caller) run(r *idempotencyv1.BeginRequest, headers ...string) *idempotencyv1.WorkRun {
	c.T.Helper()
	res := c.begin(r, headers...)
	if res.GetRun().GetFence() == 0 {
		c.T.Fatalf("begin %v: %v", r, res)
	}
	return res.GetRun()
}

func completion(scope, key string, fence int64, o idempotencyv1.WorkOutcome,
	body string) *idempotencyv1.CompleteRequest {
	return &idempotencyv1.CompleteRequest{Scope: scope, Key: key, Fence: fence, Outcome: o,
		Answer: &idempotencyv1.RecordedAnswer{Status: 201,
			Headers: []*idempotencyv1.RecordedHeader{{Name: "Location", Value: "/orders/7"}, {Name: "Vary", Value: "a"},
				{Name: "Vary", Value: "b<\""}},
			Body: []byte(body)}}
}

func (c *caller) complete(scope, key string, fence int64, o idempotencyv1.WorkOutcome,
	body string) *idempotencyv1.CompleteResponse {
	c.T.Helper()
	return ok(c, "Idempotency.Complete", completion(scope, key, fence, o, body), new(idempotencyv1.CompleteResponse))
}

func (c *caller) record(scope, key string) *idempotencyv1.Work {
	c.T.Helper()
	return ok(c, "Idempotency.GetWork", &idempotencyv1.GetWorkRequest{Scope: scope, Key: key},
		new(idempotencyv1.GetWorkResponse)).GetWork()
}

// age moves all times of a piece of work into the past.
func (s *site) age(key string, by time.Duration) {
	s.T.Helper()
	tag, err := s.Pool.Exec(context.Background(), `update
		work_records set lease_expires_at = lease_expires_at - $2::interval, begun_at = begun_at - $2::interval,
		created_at = created_at - $2::interval, settled_at = settled_at - $2::interval,
		expires_at = expires_at - $2::interval where key = $1`, key, by)
	if err != nil || tag.RowsAffected() != 1 {
		s.T.Fatal(tag, err)
	}
}

func newWorker(t *testing.T) *caller {
	s := newSite(t)
	return &caller{s, s.Key("mine", "boss", access.Admin)}
}

func TestOneOfAThousandBeginsRuns(t *testing.T) {
	t.Parallel()
	one := newWorker(t)
	servers := []*caller{one, one.second()}
	fingerprint := []byte("content")
	var mu sync.Mutex
	var wg sync.WaitGroup
	runs, answers := map[int64]int{}, map[string]int{}
	for i := range 1000 {
		wg.Go(func() {
			c := servers[i%2]
			res := c.begin(&idempotencyv1.BeginRequest{Scope: "s", Key: "k", Fingerprint: fingerprint,
				Wait: durationpb.New(50 * time.Second)})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case res.GetRun() != nil:
				runs[res.GetRun().GetFence()]++
				wg.Go(func() { c.complete("s", "k", res.GetRun().GetFence(), done, "the answer") })
			case res.GetReplay() != nil:
				answers[string(res.GetReplay().GetAnswer().GetBody())]++
			default:
				t.Errorf("got %v", res)
			}
		})
	}
	wg.Wait()
	if len(runs) != 1 || len(answers) != 1 || answers["the answer"] != 999 {
		t.Errorf("runs %v, answers %v", runs, answers)
	}
	if n := one.Count("select attempt from work_records"); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

func TestReplayIsByteForByteAndMarked(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	noise := make([]byte, 1<<20) // incompressible
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	for name, body := range map[string]string{"empty": "", "zero-first": "\x00\x01",
		"alike": strings.Repeat("alike ", 100_000), "noise": string(noise)} {
		fence := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: name}, "X-Request-ID", "first-"+name).GetFence()
		c.complete("s", name, fence, refused, body)
		a := c.call(grpc, "Idempotency.Begin", &idempotencyv1.BeginRequest{Scope: "s", Key: name})
		res := new(idempotencyv1.BeginResponse)
		grpc.Decode(t, a.Raw, res)
		replay := res.GetReplay()
		want := completion("s", name, fence, refused, body).GetAnswer()
		if !a.Replayed() || replay.GetOutcome() != refused || replay.GetFirstRequestId() != "first-"+name ||
			!proto.Equal(replay.GetAnswer(), want) || replay.GetSettleTime() == nil {
			t.Errorf("%s: replayed %v, %d bytes for %d, %.300v", name, a.Replayed(), len(replay.GetAnswer().GetBody()),
				len(body), replay)
		}
		if rec := c.record("s", name); !proto.Equal(rec.GetAnswer(), want) ||
			rec.GetState() != idempotencyv1.WorkState_WORK_STATE_REFUSED {
			t.Errorf("%s: record %.300v", name, rec)
		}
	}
	worst := completion("s", "worst", c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "worst"}).GetFence(), done, "")
	worst.Answer.Headers = nil
	for range 7 { // the maximum size, of characters with the longest encoding
		worst.Answer.Headers = append(worst.Answer.Headers,
			&idempotencyv1.RecordedHeader{Name: "X", Value: strings.Repeat("\x01\"", 4096)})
	}
	ok(c, "Idempotency.Complete", worst, new(idempotencyv1.CompleteResponse))
	if got := c.record("s", "worst").GetAnswer(); !proto.Equal(got, worst.GetAnswer()) {
		t.Errorf("the largest headers are replayed as %.300v", got)
	}
	worst.Answer.Headers = append(worst.Answer.Headers, worst.Answer.Headers[0], worst.Answer.Headers[0])
	if a := c.call(connectJSON, "Idempotency.Complete", worst); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("more than 64 KiB of headers: %s", a.Code)
	}
	if n := c.Count("select sum(octet_length(body)) from work_records where key = 'alike'"); n > 20_000 {
		t.Errorf("a repetitive answer takes %d bytes", n)
	}
	if a := c.call(connectJSON, "Idempotency.Complete",
		completion("s", "k", 1, done, string(noise)+"x")); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("more than 1 MiB: %s", a.Code)
	}
}

func TestOtherFingerprintIsRefusedInEveryState(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	r := func(fingerprint string) *idempotencyv1.BeginRequest {
		return &idempotencyv1.BeginRequest{Scope: "s", Key: "k", Fingerprint: []byte(fingerprint)}
	}
	other := func(when string) {
		t.Helper()
		if a := c.call(connectJSON, "Idempotency.Begin", r("other")); a.Reason(t) != "WORK_KEY_REUSED" ||
			a.State("first_request_id") != "the-first" {
			t.Errorf("%s: %s %s", when, a.Code, a.Message)
		}
	}
	fence := c.run(r("this"), "X-Request-ID", "the-first").GetFence()
	other("running")
	c.age("k", time.Minute)
	other("lapsed")
	c.complete("s", "k", fence, unknown, "")
	other("parked")
	ok(c, "Idempotency.Abandon", &idempotencyv1.AbandonRequest{Scope: "s", Key: "k", Fence: fence},
		new(idempotencyv1.AbandonResponse))
	other("free")
	fence = c.run(r("this")).GetFence()
	c.complete("s", "k", fence, done, "")
	other("done")
	c.age("k", 25*time.Hour)
	if run := c.run(r("other")); run.GetAttempt() != 1 || run.GetFence() <= fence {
		t.Errorf("after its life: %v", run)
	}
	// Work that was abandoned with forget accepts another fingerprint.
	fence = c.record("s", "k").GetFence()
	ok(c, "Idempotency.Abandon", &idempotencyv1.AbandonRequest{Scope: "s", Key: "k", Fence: fence, Forget: true},
		new(idempotencyv1.AbandonResponse))
	if run := c.run(r("corrected")); run.GetAttempt() != 2 {
		t.Errorf("corrected: %v", run)
	}
	if a := c.call(connectJSON, "Idempotency.Begin", r("this")); a.Reason(t) != "WORK_KEY_REUSED" {
		t.Errorf("the new fingerprint is not enforced: %s", a.Code)
	}
}

func TestExpiredLeaseIsTakenOverAndTheFormerHolderLosesItsFence(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	r := &idempotencyv1.BeginRequest{Scope: "s", Key: "k"}
	first := c.run(r)
	if wait := c.begin(r).GetWait(); wait.GetRetryDelay().AsDuration() <= 0 ||
		!wait.GetLeaseExpireTime().AsTime().Equal(first.GetLeaseExpireTime().AsTime()) {
		t.Errorf("while it runs: %v", wait)
	}
	c.age("k", 31*time.Second)
	if state := c.record("s", "k").GetState(); state != idempotencyv1.WorkState_WORK_STATE_LAPSED {
		t.Errorf("state %v", state)
	}
	// Without a takeover the holder may continue, and complete the work.
	extended := ok(c, "Idempotency.Extend", &idempotencyv1.ExtendRequest{Scope: "s", Key: "k", Fence: first.GetFence()},
		new(idempotencyv1.ExtendResponse))
	if left := time.Until(extended.GetLeaseExpireTime().AsTime()); left < 25*time.Second || left > 31*time.Second {
		t.Errorf("extended by %v", left)
	}
	c.age("k", 31*time.Second)
	second := c.run(r)
	if second.GetFence() <= first.GetFence() || second.GetAttempt() != 2 || !second.GetTakenOver() {
		t.Errorf("first %v, second %v", first, second)
	}
	for name, m := range map[string]proto.Message{
		"Extend":   &idempotencyv1.ExtendRequest{Scope: "s", Key: "k", Fence: first.GetFence()},
		"Complete": completion("s", "k", first.GetFence(), done, "old"),
		"Abandon":  &idempotencyv1.AbandonRequest{Scope: "s", Key: "k", Fence: first.GetFence()},
		"ResolveWork": &idempotencyv1.ResolveWorkRequest{Scope: "s", Key: "k", Fence: first.GetFence(),
			Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_FREE},
	} {
		a := c.call(connectJSON, "Idempotency."+name, m)
		if a.Reason(t) != "FENCE_LOST" || a.Code != "aborted" ||
			a.State("newest_fence") != fmt.Sprint(second.GetFence()) {
			t.Errorf("%s: %s %s", name, a.Code, a.Message)
		}
	}
	c.age("k", 31*time.Second) // the lease has lapsed, but the fence is current
	c.complete("s", "k", second.GetFence(), done, "new")
	if body := c.begin(r).GetReplay().GetAnswer().GetBody(); string(body) != "new" {
		t.Errorf("the answer is %q", body)
	}
}

func TestFencesGrowAfterTheRowIsDeleted(t *testing.T) {
	t.Parallel()
	one := newWorker(t)
	servers := []*caller{one, one.second()}
	last := int64(0)
	for i := range 20 {
		c := servers[i%2]
		fence := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "k", Lease: durationpb.New(time.Second),
			Life: durationpb.New(time.Second)}).GetFence()
		if fence <= last {
			t.Fatalf("fence %d after %d", fence, last)
		}
		last = fence
		c.age("k", time.Minute)
		if i%4 < 2 {
			if _, err := c.Pool.Exec(context.Background(), "delete from work_records"); err != nil {
				t.Fatal(err)
			}
		}
		if a := c.call(connectJSON, "Idempotency.Complete",
			completion("s", "k", fence, done, "late")); a.Reason(t) != "FENCE_LOST" {
			t.Errorf("after expiry: %s", a.Code)
		}
	}
}

func TestCallsMayBeRepeatedAfterALostResponse(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	r := &idempotencyv1.BeginRequest{Scope: "s", Key: "k"}
	first := c.run(r, "Idempotency-Key", "try-1")
	again := c.call(connectProto, "Idempotency.Begin", r, "Idempotency-Key", "try-1")
	res := new(idempotencyv1.BeginResponse)
	connectProto.Decode(t, again.Raw, res)
	if !again.Replayed() || !proto.Equal(res.GetRun(), first) {
		t.Errorf("repeated call: replayed %v, %v", again.Replayed(), res)
	}
	fence := first.GetFence()
	for i, want := range []bool{false, true, true} {
		if got := c.complete("s", "k", fence, done, "a").GetExisted(); got != want {
			t.Errorf("completion %d existed: %v", i, got)
		}
	}
	// The work has ended: the key of its Begin does not replay the right to run.
	if res := c.begin(r, "Idempotency-Key", "try-1"); string(res.GetReplay().GetAnswer().GetBody()) != "a" {
		t.Errorf("after it ended: %v", res)
	}
	for name, m := range map[string]*idempotencyv1.CompleteRequest{"another body": completion("s", "k", fence, done,
		"b"),
		"another outcome": completion("s", "k", fence, refused, "a"),
		"unknown":         completion("s", "k", fence, unknown, "a")} {
		if a := c.call(connectJSON, "Idempotency.Complete", m); a.Reason(t) != "ANSWER_DIFFERS" {
			t.Errorf("%s: %s %s", name, a.Code, a.Message)
		}
	}
	lapsed := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "l"}, "Idempotency-Key", "try-2")
	c.age("l", time.Minute)
	if run := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "l"}, "Idempotency-Key",
		"try-2"); run.GetFence() <= lapsed.GetFence() || !run.GetTakenOver() {
		t.Errorf("a lapsed right to run was replayed: %v, then %v", lapsed, run)
	}
}

func TestParkedWorkWaitsForAnOperator(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	resolve := func(key string, fence int64, r idempotencyv1.WorkResolution, body string) answer {
		m := &idempotencyv1.ResolveWorkRequest{Scope: "s", Key: key, Fence: fence, Resolution: r}
		if body != "" {
			m.Answer = &idempotencyv1.RecordedAnswer{Body: []byte(body)}
		}
		return c.call(connectJSON, "Idempotency.ResolveWork", m)
	}
	told := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "told"}).GetFence()
	c.complete("s", "told", told, unknown, "the gateway did not answer")
	silent := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "silent", ParkLapsed: true}).GetFence()
	alive := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "alive", ParkLapsed: true}).GetFence()
	c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "other"})
	c.age("silent", 3000*time.Hour)
	c.age("told", 3000*time.Hour)
	parked := map[string]int64{}
	for token := ""; ; {
		page := ok(c, "Idempotency.ListWorks",
			&idempotencyv1.ListWorksRequest{State: idempotencyv1.WorkState_WORK_STATE_PARKED, PageSize: 1,
				PageToken: token},
			new(idempotencyv1.ListWorksResponse))
		for _, r := range page.GetWorks() {
			parked[r.GetKey()] = r.GetFence()
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(parked) != 2 || parked["told"] != told || parked["silent"] != silent {
		t.Errorf("parked %v", parked)
	}
	for key, fence := range parked {
		if res := c.begin(&idempotencyv1.BeginRequest{Scope: "s", Key: key,
			Wait: durationpb.New(time.Second)}); res.GetParked().GetFence() != fence {
			t.Errorf("%s: %v", key, res)
		}
	}
	if a := resolve("told", told-1, idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE, "x"); told > 1 &&
		a.Reason(t) != "FENCE_LOST" {
		t.Errorf("another fence: %s", a.Code)
	}
	if a := resolve("alive", alive, idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE,
		"x"); a.Reason(t) != "WORK_NOT_PARKED" || a.State("state") != "running" {
		t.Errorf("running work: %s %s", a.Code, a.Message)
	}
	if a := resolve("nowhere", 1, idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE,
		"x"); a.Reason(t) != "WORK_NOT_FOUND" {
		t.Errorf("unknown work: %s", a.Code)
	}
	if a := resolve("told", told, idempotencyv1.WorkResolution_WORK_RESOLUTION_FREE,
		"x"); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("free with an answer: %s", a.Code)
	}
	for i, want := range []string{"", `"existed":true`} {
		if a := resolve("told", told, idempotencyv1.WorkResolution_WORK_RESOLUTION_DONE,
			"it was paid"); a.Code != "" || !bytes.Contains(a.Raw, []byte(want)) {
			t.Errorf("resolve %d: %s %s", i, a.Code, a.Raw)
		}
	}
	if body := c.begin(&idempotencyv1.BeginRequest{Scope: "s",
		Key: "told"}).GetReplay().GetAnswer().GetBody(); string(body) != "it was paid" {
		t.Errorf("resolved to %q", body)
	}
	if a := resolve("silent", silent, idempotencyv1.WorkResolution_WORK_RESOLUTION_FREE, ""); a.Code != "" {
		t.Errorf("free: %s", a.Message)
	}
	if a := c.call(connectJSON, "Idempotency.Complete",
		completion("s", "silent", silent, done, "after all")); a.Reason(t) != "FENCE_LOST" ||
		a.State("state") != "free" {
		t.Errorf("completed after it was freed: %s", a.Code)
	}
	if run := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "silent"}); run.GetFence() <= silent ||
		run.GetTakenOver() {
		t.Errorf("freed: %v", run)
	}
	if n := c.Count("select count(*) from audit.works where state = 'parked'"); n != 0 {
		t.Errorf("auditors see %d parked", n)
	}
}

func TestWaitingBeginReturnsWhenTheHolderEnds(t *testing.T) {
	t.Parallel()
	one := newWorker(t)
	servers := map[string]*caller{"the same server": one, "another server": one.second()}
	for name, other := range servers {
		fence := one.run(&idempotencyv1.BeginRequest{Scope: "s", Key: name}).GetFence()
		got, start := make(chan *idempotencyv1.BeginResponse, 1), one.now()
		go func() {
			got <- other.begin(&idempotencyv1.BeginRequest{Scope: "s", Key: name,
				Wait: durationpb.New(50 * time.Second)})
		}()
		one.waited(start)
		ok(one, "Idempotency.Abandon", &idempotencyv1.AbandonRequest{Scope: "s", Key: name, Fence: fence},
			new(idempotencyv1.AbandonResponse))
		select {
		case res := <-got:
			if res.GetRun().GetFence() <= fence || res.GetRun().GetTakenOver() {
				t.Errorf("%s: %v", name, res)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the wait has not ended", name)
		}
	}
	r := &idempotencyv1.BeginRequest{Scope: "s", Key: "long", Wait: durationpb.New(50 * time.Second)}
	one.run(r)
	if a := one.call(connectProto, "Idempotency.Begin", r, "Connect-Timeout-Ms", "1000"); a.Code != "" || a.Replayed() {
		t.Errorf("with a short deadline: %s %s", a.Code, a.Message)
	}
	got, start := make(chan *idempotencyv1.BeginResponse, 1), one.now()
	go func() { got <- one.begin(r) }()
	one.waited(start)
	one.Server.Stop()
	if res := <-got; res.GetWait() == nil {
		t.Errorf("after Stop: %v", res)
	}
}

func (s *site) now() (now time.Time) {
	s.T.Helper()
	if err := s.Pool.QueryRow(context.Background(), "select clock_timestamp()").Scan(&now); err != nil {
		s.T.Fatal(err)
	}
	return now
}

// waited waits until a server has polled for a waiting call.
func (s *site) waited(since time.Time) {
	s.T.Helper()
	eventually(s.T, 20*time.Second, "a call waits", func() bool {
		return s.Count("select count(*) from pg_stat_activity where query like '%WorkBusy%' "+
			"and datname = current_database() and pid <> pg_backend_pid() and query_start > $1", since) > 0
	})
}

func TestBeginInAnExecuteRunsOrFails(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	c.prepare("a")
	begin := operation("begin", &idempotencyv1.BeginRequest{Scope: "s", Key: "k"})
	whole := func(bizNo string) *batchv1.ExecuteRequest {
		return execute(begin, operation("", pay(bizNo, "u:a", "empty:a", "1")),
			operation("", &idempotencyv1.CompleteRequest{Scope: "s", Key: "k", Outcome: done,
				Answer: &idempotencyv1.RecordedAnswer{Body: []byte("paid")}}, "fence=begin:run.fence"))
	}
	c.executed(whole("one"))
	if rec := c.record("s", "k"); rec.GetState() != idempotencyv1.WorkState_WORK_STATE_DONE ||
		string(rec.GetAnswer().GetBody()) != "paid" {
		t.Errorf("record %v", rec)
	}
	if a := c.call(connectJSON, "Batch.Execute", whole("two")); a.Reason(t) != "WORK_SETTLED" ||
		a.State("state") != "done" {
		t.Errorf("again: %s %s", a.Code, a.Message)
	}
	c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "held"})
	if a := c.call(connectJSON, "Batch.Execute", execute(operation("", pay("three", "u:a", "empty:a", "1")),
		operation("", &idempotencyv1.BeginRequest{Scope: "s", Key: "held"}))); a.Reason(t) != "WORK_RUNNING" {
		t.Errorf("held: %s %s", a.Code, a.Message)
	}
	if a := c.call(connectJSON, "Batch.Execute",
		execute(operation("", &idempotencyv1.BeginRequest{Scope: "s", Key: "w",
			Wait: durationpb.New(time.Second)}))); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("waiting: %s %s", a.Code, a.Message)
	}
	if b := c.balance("empty:a"); b != "1.00" {
		t.Errorf("paid %s", b)
	}
	dry := whole("four")
	dry.DryRun = true
	dry.Operations[0] = operation("begin", &idempotencyv1.BeginRequest{Scope: "s", Key: "dry"})
	dry.Operations[2] = operation("", &idempotencyv1.CompleteRequest{Scope: "s", Key: "dry", Outcome: done},
		"fence=begin:run.fence")
	c.executed(dry)
	if a := c.call(connectJSON, "Idempotency.GetWork",
		&idempotencyv1.GetWorkRequest{Scope: "s", Key: "dry"}); a.Reason(t) != "WORK_NOT_FOUND" {
		t.Errorf("a dry run left %s", a.Raw)
	}
}

func TestCleanerDeletesExpiredWorkOnly(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	for i, state := range []string{"running", "lapsed", "parked", "parked by lapse", "done", "refused", "free",
		"fresh"} {
		fence := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: state, ParkLapsed: state == "parked by lapse",
			Lease: durationpb.New(time.Hour), Life: durationpb.New(time.Second)}).GetFence()
		switch state {
		case "parked":
			c.complete("s", state, fence, unknown, "")
		case "done", "fresh":
			c.complete("s", state, fence, done, strconv.Itoa(i))
		case "refused":
			c.complete("s", state, fence, refused, "")
		case "free":
			ok(c, "Idempotency.Abandon", &idempotencyv1.AbandonRequest{Scope: "s", Key: state, Fence: fence},
				new(idempotencyv1.AbandonResponse))
		}
		switch state {
		case "running":
			c.age(state, 30*time.Minute) // its life has ended, its lease has not
		case "fresh":
			c.age(state, -time.Hour)
		default:
			c.age(state, 3*time.Hour)
		}
	}
	if a := c.call(connectJSON, "Idempotency.GetWork",
		&idempotencyv1.GetWorkRequest{Scope: "s", Key: "done"}); a.Code != "" && a.Reason(t) != "WORK_NOT_FOUND" ||
		a.Code == "" {
		t.Errorf("expired work still exists: %s", a.Raw)
	}
	eventually(t, 40*time.Second, "expired work is deleted",
		func() bool { return c.Count("select count(*) from work_records where expires_at < now()") == 0 })
	if n := c.Count("select count(*) from work_records " +
		"where key in ('running', 'parked', 'parked by lapse', 'fresh')"); n != 4 {
		t.Errorf("%d of 4 are left", n)
	}
}

func TestOutcomesOfWorkAreCountedAndLogged(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	r := &idempotencyv1.BeginRequest{Scope: "s", Key: "secret-key", Fingerprint: []byte("a")}
	first := c.run(r, "X-Request-ID", "the-first").GetFence()
	c.begin(r)
	c.age("secret-key", time.Minute)
	second := c.run(r).GetFence()
	c.call(connectJSON, "Idempotency.Extend", &idempotencyv1.ExtendRequest{Scope: "s", Key: "secret-key", Fence: first})
	c.call(connectJSON, "Idempotency.Begin",
		&idempotencyv1.BeginRequest{Scope: "s", Key: "secret-key", Fingerprint: []byte("b")})
	c.complete("s", "secret-key", second, done, "")
	c.complete("s", "secret-key", second, done, "")
	c.begin(r, "X-Request-ID", "the-last")
	req, err := http.NewRequest(http.MethodGet, c.Base+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+c.watcher())
	res, err := servertest.HTTP1.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	for what, n := range map[string]int{"begin run": 1, "begin wait": 1, "begin taken_over": 1, "begin mismatch": 1,
		"begin replayed": 1, "extend fence_lost": 1,
		"complete ok": 1, "complete repeat": 1} {
		call, outcome, _ := strings.Cut(what, " ")
		if line := fmt.Sprintf("ledgerd_work_outcomes_total{call=%q,outcome=%q} %d\n", call, outcome,
			n); !strings.Contains(string(text), line) {
			t.Errorf("no %s", line)
		}
	}
	if strings.Contains(string(text), "secret-key") {
		t.Error("keys are labels")
	}
	for msg, want := range map[string]string{"work replayed": "the-first",
		"work begun with another fingerprint": "the-first"} {
		if lines := c.Log.With("msg", msg); len(lines) != 1 || lines[0]["first_request_id"] != want ||
			lines[0]["key"] != "secret-key" || lines[0]["request_id"] == "" {
			t.Errorf("%s: %v", msg, lines)
		}
	}
	for _, msg := range []string{"work taken over from a holder whose lease expired", "fence lost"} {
		if lines := c.Log.With("msg", msg); len(lines) != 1 || lines[0]["key"] != "secret-key" {
			t.Errorf("%s: %v", msg, lines)
		}
	}
}

func TestRecordsAreListedByScopeAndKey(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	list := func(r *idempotencyv1.ListWorksRequest) (keys []string) {
		for {
			page := ok(c, "Idempotency.ListWorks", r, new(idempotencyv1.ListWorksResponse))
			for _, rec := range page.GetWorks() {
				keys = append(keys, rec.GetScope()+"/"+rec.GetKey())
			}
			if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
				return keys
			}
		}
	}
	for _, name := range []string{"b/1", "a/2", "b/2", "a/1", "c/1", "a/3"} {
		scope, key, _ := strings.Cut(name, "/")
		fence := c.run(&idempotencyv1.BeginRequest{Scope: scope, Key: key, Life: durationpb.New(time.Hour)}).GetFence()
		switch name {
		case "a/2", "b/2":
			c.complete(scope, key, fence, done, "secret")
		case "c/1":
			c.complete(scope, key, fence, unknown, "")
		case "a/3":
			c.age("3", time.Minute)
		}
	}
	for want, r := range map[string]*idempotencyv1.ListWorksRequest{
		"[a/1 a/2 a/3 b/1 b/2 c/1]": {PageSize: 1},
		"[a/1 a/2 a/3]":             {Scope: "a", PageSize: 2},
		"[a/2 b/2]":                 {State: idempotencyv1.WorkState_WORK_STATE_DONE, PageSize: 2},
		"[a/1 b/1]":                 {State: idempotencyv1.WorkState_WORK_STATE_RUNNING, PageSize: 1},
		"[a/3]":                     {State: idempotencyv1.WorkState_WORK_STATE_LAPSED, PageSize: 1},
		"[c/1]":                     {State: idempotencyv1.WorkState_WORK_STATE_PARKED},
		"[b/2]":                     {Scope: "b", State: idempotencyv1.WorkState_WORK_STATE_DONE},
		"[]":                        {Scope: "z"},
	} {
		if got := fmt.Sprint(list(r)); got != want {
			t.Errorf("%v: %s, not %s", r, got, want)
		}
	}
	page := ok(c, "Idempotency.ListWorks", &idempotencyv1.ListWorksRequest{PageSize: 1},
		new(idempotencyv1.ListWorksResponse))
	for _, r := range []*idempotencyv1.ListWorksRequest{{Scope: "a", PageToken: page.GetNextPageToken()},
		{PageToken: "x"},
		{State: idempotencyv1.WorkState_WORK_STATE_DONE, PageToken: page.GetNextPageToken()}} {
		if a := c.call(connectJSON, "Idempotency.ListWorks", r); a.Reason(t) != "PAGE_TOKEN_INVALID" {
			t.Errorf("%v: %s", r, a.Code)
		}
	}
}

// Outcomes of work and messages are also counted by the hour, for auditors.
func TestOutcomesOfWorkAndMessagesAreInSQL(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "k", Lease: durationpb.New(time.Second),
		Fingerprint: []byte("a")})
	if _, err := c.Pool.Exec(t.Context(),
		"update work_records set begun_at = begun_at - interval '1 min', lease_expires_at = lease_expires_at - "+
			"interval '1 min', created_at = created_at - interval '1 min'"); err != nil {
		t.Fatal(err)
	}
	run := c.run(&idempotencyv1.BeginRequest{Scope: "s", Key: "k", Fingerprint: []byte("a")})
	c.complete("s", "k", run.GetFence(), done, "")
	c.begin(&idempotencyv1.BeginRequest{Scope: "s", Key: "k", Fingerprint: []byte("a")})
	c.call(connectJSON, "Idempotency.Begin",
		&idempotencyv1.BeginRequest{Scope: "s", Key: "k", Fingerprint: []byte("b")})
	message := func(content string) *inboxv1.ReceiveRequest {
		return &inboxv1.ReceiveRequest{Key: &inboxv1.MessageKey{ConsumerGroup: "g", MessageId: "m"},
			Delivery: &inboxv1.Delivery{Topic: "t", Content: []byte(content)}}
	}
	for _, content := range []string{"a", "a", "b"} {
		c.call(connectJSON, "Inbox.Receive", message(content))
	}
	eventually(t, 30*time.Second, "the counts are saved",
		func() bool { return c.Count("select count(*) from commit_counts") >= 7 })
	var got string
	if err := c.Pool.QueryRow(t.Context(), `select string_agg(concat_ws(' ', operation, first, replayed, mismatched,
		taken_over), ', ' order by operation)
		from audit.key_outcomes`).Scan(&got); err != nil || got != "idempotency.begin 0 0 0 1, "+
		"idempotency.work 1 1 1 0, inbox.message 1 1 1 0" {
		t.Errorf("counted %s, %v", got, err)
	}
}

// Takeovers of lapsed leases are counted by the hour, separately from the outcomes of keys.
func TestTakeoversAreCountedForAuditors(t *testing.T) {
	t.Parallel()
	c := newWorker(t)
	r := &idempotencyv1.BeginRequest{Scope: "s", Key: "k"}
	c.run(r, "Idempotency-Key", "1")
	c.age("k", 31*time.Second)
	c.run(r, "Idempotency-Key", "2")
	c.run(r, "Idempotency-Key", "2") // a replay, not another takeover
	lock := &lockv1.AcquireRequest{Name: "l"}
	ok(c, "Lock.Acquire", lock, new(lockv1.AcquireResponse))
	if _, err := c.Pool.Exec(t.Context(),
		"update lock_locks set acquired_at = acquired_at - interval '1 min', "+
			"expires_at = expires_at - interval '1 min'"); err != nil {
		t.Fatal(err)
	}
	ok(c, "Lock.Acquire", lock, new(lockv1.AcquireResponse))
	c.Server.Stop() // saves the counts
	var got string
	if err := c.Pool.QueryRow(t.Context(), `select string_agg(format('%s %s %s %s', operation, first, taken_over,
		hit_rate), '; ' order by operation)
		from audit.key_outcomes`).Scan(&got); err != nil || got != "idempotency.begin 2 1 0.3333; "+
		"idempotency.work 1 0 0.0000; lock.acquire 0 1 0.0000" {
		t.Errorf("%s, %v", got, err)
	}
}
