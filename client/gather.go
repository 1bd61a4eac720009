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
	// gatherLanes is how many RPCs of gathered calls are on their way at once. Two keep the server busy
	// while answers travel; more make the batches smaller and each call dearer.
	gatherLanes    = 2
	maxBatchItems  = 1000
	leastShare     = 16 // calls that are not worth splitting
	maxBatchBytes  = 4 << 20
	maxBatchFlight = 10 * time.Second
)

// gather is the interceptor that sends concurrent Transfer calls as one TransferBatch.
//
// An RPC on its way occupies a lane. A call that finds a lane free goes alone, on its own goroutine; the
// others wait in line. Whoever leaves a lane passes it on: to a batch of all who wait, or, when there
// is one only, to that caller. So a lane is free only while nobody waits, and there are no goroutines
// besides the callers' but one for each lane that carries batches.
type gather struct {
	send func(context.Context,
		*connect.Request[ledgerv1.TransferBatchRequest]) (*connect.Response[ledgerv1.TransferBatchResponse], error)

	mu     sync.Mutex
	lanes  int     // free ones
	line   []*item // in order of arrival
	flying int     // calls on their way
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

// call is what an item of a batch is made of.
type call struct {
	transfer *ledgerv1.TransferRequest
	key      string // as in the header
}

// ownHeaders tells whether a request has headers that an item of a batch cannot have: others than
// those of the protocols, of which every RPC has its own, and the key.
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
	// The request is encoded here, once, by its caller: the batch takes the bytes as they are, a request
	// that cannot be encoded spoils nobody else's batch, and a caller who leaves may use it again.
	it, err := newItem(ctx, c.key, c.transfer)
	if err != nil {
		return next(ctx, req) // which has the words for it
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

// enter takes a free lane, or else puts the item, if there is one, in line.
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

// lone makes a call as if there were no gathering, on a lane that is the caller's.
func (g *gather) lone(ctx context.Context, req connect.AnyRequest,
	next connect.UnaryFunc) (connect.AnyResponse, error) {
	defer g.pass()
	ctx, cancel := context.WithTimeout(ctx, maxBatchFlight) // those in line must not wait for ever
	defer cancel()
	return next(ctx, req)
}

// pass hands a lane on to whoever is in line.
func (g *gather) pass() {
	if batch := g.take(1); batch != nil {
		go g.run(batch)
	}
}

// take takes the next batch out of the line, for a lane on which so many calls came back. It returns
// nil when nobody waits, which frees the lane, or when the lane went to a single caller.
func (g *gather) take(back int) []*item {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flying -= back
	for len(g.line) > 0 {
		batch := g.cut()
		for i, it := range batch {
			if !it.state.CompareAndSwap(waiting, sent) {
				batch[i] = nil // left
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

// cut takes the front of the line: an equal part, for each lane, of the calls in line and on their way,
// and no more than a batch may hold. If a lane took all, callers who ask again when they have their
// answers would all come back with one batch, go into the next one together, and leave the other
// lanes with nothing.
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

// run sends batches for as long as there are any.
func (g *gather) run(batch []*item) {
	for batch != nil {
		n := len(batch)
		g.round(batch)
		// Those who were just answered may have more to send: they get their turn on the processor first,
		// so that the next batch is not one call and the one after it all the others.
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

// flight is how long a batch may take: as long as any caller in it waits, and no longer than
// maxBatchFlight.
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
