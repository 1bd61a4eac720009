package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

const (
	transferProcedure = ledgerv1connect.LedgerServiceTransferProcedure
	batchProcedure    = ledgerv1connect.LedgerServiceTransferBatchProcedure
)

// answer is the result of one of many concurrent calls.
type answer struct {
	res  *ledgerv1.TransferResponse
	info *client.Info
	err  error
}

// together makes the calls concurrently.
func together(ctx context.Context, c *client.Client, requests []*ledgerv1.TransferRequest) []answer {
	answers := make([]answer, len(requests))
	var calls sync.WaitGroup
	for i, r := range requests {
		calls.Go(func() {
			ctx, info := client.WithInfo(ctx)
			res, err := c.Ledger.Transfer(ctx, r)
			answers[i] = answer{res, info, err}
		})
	}
	calls.Wait()
	return answers
}

func TestGatheredCallsGetTheirOwnAnswersFromFewRPCs(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		var seen rpcs
		c := newClient(t, url, append(opts, client.WithGather(), seen.option())...)
		const n = 1000
		requests := make([]*ledgerv1.TransferRequest, n)
		for i := range requests {
			requests[i] = transfer(fmt.Sprintf("%s-%d", t.Name(), i), "world", "bob", "0.01")
			if i%3 == 1 {
				requests[i].Postings[0].From, requests[i].Postings[0].Amount = "shop", "5.00" // shop has no money
			}
		}
		keys := map[string]bool{}
		for i, a := range together(t.Context(), c, requests) {
			switch {
			case i%3 == 1 && !errors.Is(a.err, client.ReasonInsufficientFunds):
				t.Fatalf("call %d: %v, want %s", i, a.err, client.ReasonInsufficientFunds)
			case i%3 != 1 && a.err != nil:
				t.Fatalf("call %d: %v", i, a.err)
			case i%3 != 1 && a.res.GetTransfer().GetBizNo() != requests[i].GetBizNo():
				t.Fatalf("call %d got the answer of %s", i, a.res.GetTransfer().GetBizNo())
			case a.info.Key == "" || a.info.RequestID == "" || a.info.Replayed || a.info.Attempts != 1:
				t.Fatalf("call %d: info %+v", i, a.info)
			}
			keys[a.info.Key] = true
		}
		if len(keys) != n {
			t.Errorf("%d keys for %d calls", len(keys), n)
		}
		if sent := len(seen.of(transferProcedure)) + len(seen.of(batchProcedure)); sent > n/4 {
			t.Errorf("%d calls took %d RPCs", n, sent)
		}
	})
}

// gatherBehind makes a client whose two lanes are occupied, so that the next calls gather. free releases the
// lanes.
func gatherBehind(t *testing.T, url string, opts ...client.Option) (c *client.Client, seen *rpcs, free func()) {
	t.Helper()
	seen = new(rpcs)
	gate, arrived := make(chan struct{}), make(chan struct{})
	hold := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if m, ok := req.Any().(*ledgerv1.TransferRequest); ok && m.GetBizNo() == "blocker" {
				arrived <- struct{}{}
				<-gate
				return nil, connect.NewError(connect.CodeAborted, errors.New("a blocker"))
			}
			return next(ctx, req)
		}
	})
	c = newClient(t, url, append(opts, client.WithGather(), client.WithInterceptors(hold), seen.option())...)
	var blockers sync.WaitGroup
	for range client.GatherLanes {
		blockers.Go(func() { _, _ = c.Ledger.Transfer(context.Background(), transfer("blocker", "world", "bob", "1")) })
		<-arrived
	}
	free = sync.OnceFunc(func() { close(gate); blockers.Wait() })
	t.Cleanup(free)
	return c, seen, free
}

// inLine makes calls and returns once all of them wait in line. The answers come after free.
func inLine(ctx context.Context, c *client.Client, requests []*ledgerv1.TransferRequest) <-chan []answer {
	before := client.InLine(c)
	done := make(chan []answer, 1)
	go func() { done <- together(ctx, c, requests) }()
	client.AwaitLine(c, before+len(requests))
	return done
}

func TestABatchOfOneIsSentAsTransferUnderTheSameKey(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	c, seen, free := gatherBehind(t, url)
	ctx := client.WithKey(t.Context(), `"quoted" key`)
	request := transfer("single", "alice", "bob", "1.00")
	done := inLine(ctx, c, []*ledgerv1.TransferRequest{request})
	free()
	if a := (<-done)[0]; a.err != nil || a.info.Replayed || a.info.Key != `"quoted" key` {
		t.Fatalf("%v, %+v", a.err, a.info)
	}
	if len(seen.of(batchProcedure)) != 0 {
		t.Error("a single call was sent as a batch")
	}
	// The key works in a batch too.
	c, seen, free = gatherBehind(t, url)
	done = inLine(ctx, c, []*ledgerv1.TransferRequest{request, request, request})
	free()
	for _, a := range <-done {
		if a.err != nil || !a.info.Replayed {
			t.Errorf("%v, %+v", a.err, a.info)
		}
	}
	if len(seen.of(batchProcedure)) != 1 {
		t.Errorf("%d batches, want 1", len(seen.of(batchProcedure)))
	}
	if got := balance(t, url, "alice"); got != "99.00" {
		t.Errorf("alice has %s, want 99.00", got)
	}
}

func TestACancelledCallIsNotSentAndDoesNotAffectOthers(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	c, _, free := gatherBehind(t, url)
	ctx, cancel := context.WithCancel(t.Context())
	gone := inLine(ctx, c, []*ledgerv1.TransferRequest{transfer("gone-1", "alice", "bob", "1.00"),
		transfer("gone-2", "alice", "bob", "1.00")})
	stay := inLine(t.Context(), c, []*ledgerv1.TransferRequest{transfer("stay-1", "alice", "bob", "2.00"),
		transfer("stay-2", "alice", "bob", "2.00")})
	cancel()
	for _, a := range <-gone {
		if connect.CodeOf(a.err) != connect.CodeCanceled || !errors.Is(a.err, context.Canceled) {
			t.Errorf("%v, want canceled", a.err)
		}
	}
	free()
	for _, a := range <-stay {
		if a.err != nil {
			t.Error(a.err)
		}
	}
	if got := balance(t, url, "alice"); got != "96.00" {
		t.Errorf("alice has %s, want 96.00: cancelled calls were sent, or others were not", got)
	}
}

// Closed-loop callers must not all end up in one lane's batch.
func TestLanesShareTheLine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, flying, want int }{
		{1, 1, 1}, {12, 0, 12}, {99, 1, 50}, {50, 50, 50}, {10, 90, 10}, {5000, 1000, 1000},
	} {
		if n := client.Share(c.line, c.flying); n != c.want {
			t.Errorf("%d in line, %d in flight: a batch of %d, want %d", c.line, c.flying, n, c.want)
		}
	}
}

func TestOneBadCallDoesNotSpoilTheBatch(t *testing.T) {
	t.Parallel()
	c, seen, free := gatherBehind(t, startLedger(t))
	requests := make([]*ledgerv1.TransferRequest, 100)
	for i := range requests {
		requests[i] = transfer(fmt.Sprint(i), "world", "bob", "1.00")
	}
	requests[41].BizNo = ""
	done := inLine(t.Context(), c, requests)
	free()
	for i, a := range <-done {
		if (a.err != nil) != (i == 41) {
			t.Errorf("call %d: %v", i, a.err)
		}
	}
	if lone, batches := len(seen.of(transferProcedure)), len(seen.of(batchProcedure)); lone != 0 ||
		batches != client.GatherLanes {
		t.Errorf("%d single calls and %d batches, want one batch per lane", lone, batches)
	}
}

// narrow is a service behind a proxy that rejects batches.
type narrow struct{ stub }

func (narrow) TransferBatch(context.Context, *ledgerv1.TransferBatchRequest) (*ledgerv1.TransferBatchResponse, error) {
	return nil, connect.NewError(connect.CodeResourceExhausted, errors.New("too large"))
}

func TestCallsAreSentAloneWhereBatchesAreRejected(t *testing.T) {
	t.Parallel()
	c, seen, free := gatherBehind(t, serve(t, narrow{}))
	done := inLine(t.Context(), c, []*ledgerv1.TransferRequest{transfer("1", "a", "b", "1"),
		transfer("2", "a", "b", "1")})
	free()
	for _, a := range <-done {
		if a.err != nil {
			t.Error(a.err)
		}
	}
	if lone, batches := len(seen.of(transferProcedure)), len(seen.of(batchProcedure)); lone != 2 || batches != 1 {
		t.Errorf("%d single calls and %d batches", lone, batches)
	}
}

// sized is a service that records the sizes of its batches.
type sized struct {
	stub
	mu           sync.Mutex
	items, bytes []int
}

func (s *sized) TransferBatch(ctx context.Context,
	r *ledgerv1.TransferBatchRequest) (*ledgerv1.TransferBatchResponse, error) {
	s.mu.Lock()
	s.items, s.bytes = append(s.items, len(r.GetItems())), append(s.bytes, proto.Size(r))
	s.mu.Unlock()
	return s.stub.TransferBatch(ctx, r)
}

func TestBatchesHaveAtMostAThousandItemsAndFourMiB(t *testing.T) {
	t.Parallel()
	server := new(sized)
	c, _, free := gatherBehind(t, serve(t, server))
	requests := make([]*ledgerv1.TransferRequest, 2500)
	for i := range requests {
		requests[i] = transfer(fmt.Sprint(i), "world", "bob", "1.00")
	}
	small := inLine(t.Context(), c, requests)
	large := make([]*ledgerv1.TransferRequest, 40)
	for i := range large {
		large[i] = transfer(fmt.Sprint(i), "world", "bob", "1.00")
		large[i].Metadata = map[string]string{"note": strings.Repeat("x", 200<<10)}
	}
	rest := inLine(t.Context(), c, large)
	free()
	for _, a := range append(<-small, <-rest...) {
		if a.err != nil {
			t.Fatal(a.err)
		}
	}
	if most := slices.Max(server.items); most != 1000 {
		t.Errorf("batches of %v items, want at most 1000", server.items)
	}
	if most := slices.Max(server.bytes); most > 4<<20 || most < 2<<20 {
		t.Errorf("batches of %v bytes, want at most 4 MiB", server.bytes)
	}
}

func TestDryRunsAndCallsWithHeadersAreSentAlone(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	c, seen, free := gatherBehind(t, url)
	// bounds calls that would wrongly wait for the lanes
	within, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	dry := transfer("dry", "alice", "bob", "1.00")
	dry.DryRun = true
	if _, err := c.Ledger.Transfer(within, dry); err != nil {
		t.Error(err)
	}
	ctx, call := connect.NewClientContext(within)
	call.RequestHeader().Set("X-Colour", "green")
	if _, err := c.Ledger.Transfer(ctx, transfer("green", "alice", "bob", "1.00")); err != nil {
		t.Error(err)
	}
	if client.Replayed(call) {
		t.Error("a first call was replayed")
	}
	free()
	if n := len(seen.of(batchProcedure)); n != 0 {
		t.Errorf("%d batches, want none", n)
	}
}

func TestALostBatchIsRetriedWithTheSameItemKeys(t *testing.T) {
	t.Parallel()
	url := startLedger(t)
	eachProtocol(t, func(t *testing.T, opts ...client.Option) {
		h := newLosing(0)
		c, seen, free := gatherBehind(t, url, append(opts, client.WithHTTPClient(h), client.WithRetry(5, 1, 1))...)
		h.lose.Store(2)
		requests := make([]*ledgerv1.TransferRequest, 50)
		for i := range requests {
			requests[i] = transfer(fmt.Sprintf("%s-%d", t.Name(), i), "world", "shop", "0.01")
		}
		done := inLine(t.Context(), c, requests)
		free()
		again := 0
		for i, a := range <-done {
			if a.err != nil {
				t.Fatalf("call %d: %v", i, a.err)
			}
			if a.info.Replayed {
				again++
			}
		}
		if again == 0 || len(seen.of(batchProcedure)) < 2 {
			t.Errorf("%d answers replayed in %d batches: nothing was lost", again, len(seen.of(batchProcedure)))
		}
	})
	if got := balance(t, url, "shop"); got != "1.50" {
		t.Errorf("shop has %s, want 1.50: a transfer was done twice or not at all", got)
	}
}

func balance(t *testing.T, url, account string) string {
	t.Helper()
	ctx := client.WithKey(t.Context(), client.NewKey())
	dry := transfer(client.NewKey(), "world", account, "0.01")
	dry.DryRun = true
	res, err := newClient(t, url).Ledger.Transfer(ctx, dry)
	if err != nil {
		t.Fatal(err)
	}
	return res.GetTransfer().GetEntries()[1].GetBalanceBefore()
}
