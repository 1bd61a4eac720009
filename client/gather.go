package client

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

const (
	// gatherLanes is the number of concurrent RPCs of gathered calls. Two keep the server busy while answers
	// travel; more would make batches smaller and calls more expensive.
	gatherLanes    = 2
	maxBatchItems  = 1000
	leastShare     = 16 // fewer calls are not worth splitting
	maxBatchBytes  = 4 << 20
	maxBatchFlight = 10 * time.Second
)

// gather is the interceptor that sends concurrent Transfer calls as one TransferBatch.
//
// An RPC in flight occupies a lane. A call that finds a free lane is sent alone, on its own goroutine; other
// calls wait in line. A finished RPC passes its lane on: to a batch of all waiting calls or, if there is only
// one, to that caller. So a lane is free only if no call waits, and the only additional goroutines are one per
// lane that carries batches.
type gather struct {
	send func(context.Context,
		*connect.Request[ledgerv1.TransferBatchRequest]) (*connect.Response[ledgerv1.TransferBatchResponse], error)

	mu     sync.Mutex
	lanes  int     // free lanes
	line   []*item // in order of arrival
	flying int     // calls in flight
}

func newGather(h connect.HTTPClient, baseURL string, opts []connect.ClientOption) *gather {
	method := ledgerv1.File_ledgerd_ledger_v1_ledger_service_proto.Services().ByName("LedgerService").
		Methods().ByName("TransferBatch")
	c := connect.NewClient[ledgerv1.TransferBatchRequest, ledgerv1.TransferBatchResponse](h,
		strings.TrimRight(baseURL, "/")+ledgerv1connect.LedgerServiceTransferBatchProcedure,
		append([]connect.ClientOption{connect.WithSchema(method)}, opts...)...)
	return &gather{send: c.CallUnary, lanes: gatherLanes}
}

func (g *gather) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		m, ok := req.Any().(*ledgerv1.TransferRequest)
		if !ok || m.GetDryRun() || ctx.Err() != nil {
			return next(ctx, req)
		}
		h := headerOf(req)
		if _, life := ctx.Value(keyLifeContext{}).(time.Duration); life || ownHeaders(h) {
			return next(ctx, req)
		}
		return g.call(ctx, req, call{m, h[KeyHeader][0]}, next)
	}
}

func (g *gather) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (g *gather) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// call is the source of a batch item.
type call struct {
	transfer *ledgerv1.TransferRequest
	key      string // as in the header
}

// ownHeaders reports whether a request has headers that a batch item cannot carry: other than the key and those
// of the protocol.
func ownHeaders(h http.Header) bool {
	for name := range h {
		switch name {
		case RequestIDHeader, KeyHeader, "User-Agent", "Content-Type", "Accept-Encoding", "Content-Encoding",
			"Connect-Protocol-Version", "Te", "Grpc-Accept-Encoding", "Grpc-Encoding":
		default:
			return true
		}
	}
	return len(h[KeyHeader]) != 1
}

func (g *gather) call(ctx context.Context, req connect.AnyRequest, c call,
	next connect.UnaryFunc) (connect.AnyResponse, error) {
	if g.enter(nil) {
		return g.lone(ctx, req, next)
	}
	// The caller encodes its request once, here, and the batch sends the bytes unchanged. So an invalid request
	// does not spoil another caller's batch, and a caller that leaves may reuse its request.
	it, err := newItem(ctx, c.key, c.transfer)
	if err != nil {
		return next(ctx, req) // it returns the proper error
	}
	if g.enter(it) {
		return g.lone(ctx, req, next)
	}
	select {
	case <-it.done:
	case <-ctx.Done():
		if it.leave() == granted {
			g.pass()
		}
		return nil, ended(ctx, ctx.Err())
	}
	switch {
	case it.state.Load() == granted:
		return g.lone(ctx, req, next)
	case it.alone:
		return next(ctx, req)
	}
	return it.answer(ctx)
}

// enter takes a free lane; if there is none, it puts the item, if any, in line.
func (g *gather) enter(it *item) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lanes > 0 {
		g.lanes--
		g.flying++
		return true
	}
	if it != nil {
		g.line = append(g.line, it)
	}
	return false
}

// lone makes a call without gathering, on the caller's own lane.
func (g *gather) lone(ctx context.Context, req connect.AnyRequest,
	next connect.UnaryFunc) (connect.AnyResponse, error) {
	defer g.pass()
	ctx, cancel := context.WithTimeout(ctx, maxBatchFlight) // calls in line must not wait forever
	defer cancel()
	return next(ctx, req)
}

// pass passes a lane to the next in line.
func (g *gather) pass() {
	if batch := g.take(1); batch != nil {
		go g.run(batch)
	}
}

// take removes the next batch from the line, for a lane on which back calls returned. It returns nil if no call
// waits, which frees the lane, or if the lane went to a single caller.
func (g *gather) take(back int) []*item {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying -= back
	for len(g.line) > 0 {
		batch := g.cut()
		for i, it := range batch {
			if !it.state.CompareAndSwap(waiting, sent) {
				batch[i] = nil // its caller left
			}
		}
		switch batch = remaining(batch); len(batch) {
		case 0:
		case 1:
			if batch[0].grant() {
				g.flying++
				return nil
			}
		default:
			g.flying += len(batch)
			return batch
		}
	}
	g.lanes++
	return nil
}

// cut removes the front of the line: an equal share per lane of all calls in line and in flight, up to the
// limit of a batch. If a lane took all calls, closed-loop callers would all return with one batch and enter the
// next one together, leaving the other lanes idle.
func (g *gather) cut() []*item {
	share := min(maxBatchItems, max(leastShare, (len(g.line)+g.flying+gatherLanes-1)/gatherLanes))
	n, size := 0, 0
	for n < len(g.line) && n < share {
		size += len(g.line[n].wire)
		if n > 0 && size > maxBatchBytes {
			break
		}
		n++
	}
	batch := g.line[:n:n]
	if g.line = g.line[n:]; len(g.line) == 0 {
		g.line = nil // the batch keeps the array
	}
	return batch
}

// run sends batches until the line is empty.
func (g *gather) run(batch []*item) {
	for batch != nil {
		n := len(batch)
		g.round(batch)
		// Yield to the callers that were just answered: they may call again and join the next batch, which
		// otherwise would hold a single call.
		runtime.Gosched()
		batch = g.take(n)
	}
}

// round sends one batch and answers its items.
func (g *gather) round(batch []*item) {
	ctx, cancel := context.WithTimeout(context.Background(), flight(batch))
	defer cancel()
	res, err := g.send(ctx, connect.NewRequest(batchRequest(batch)))
	if err != nil {
		refused(batch, err)
		return
	}
	answered(batch, res.Msg.GetResults(), res.Header().Get(RequestIDHeader))
}

// flight is the timeout of a batch: the longest remaining time of its callers, up to maxBatchFlight.
func flight(batch []*item) time.Duration {
	var last time.Time
	for _, it := range batch {
		if it.deadline.IsZero() {
			return maxBatchFlight
		}
		if it.deadline.After(last) {
			last = it.deadline
		}
	}
	return min(max(time.Until(last), time.Millisecond), maxBatchFlight)
}

func remaining(batch []*item) []*item {
	kept := batch[:0]
	for _, it := range batch {
		if it != nil {
			kept = append(kept, it)
		}
	}
	return kept
}
