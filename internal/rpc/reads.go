package rpc

import (
	"cmp"
	"context"
	"math"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/internal/access"
)

// Limits of Reads.
const (
	// spareReads are the connections that are left for reads within mutations and for the server's own work, which must
	// not wait for the reads of callers: follow-up tokens, due rows, lock queues, the tail of commits.
	spareReads = 4
	readWait   = 5 * time.Second // for a connection
	// largeResponse is the size in bytes, as protobuf, above which a response reserves memory. A page has at most
	// 17 MB.
	largeResponse       = 64 << 10
	responseBytes       = 256 << 20 // of all tenants
	responseTenantBytes = responseBytes / 4
	generatedBytes      = responseBytes / 2 // for the responses of IdService.Generate
	// Streams of WatchEntries share one query, but each stream occupies memory and a connection of its caller.
	watches       = 800
	watchesTenant = watches / 4
	// writeTimeout bounds the time in which a caller receives a response, or one message of a stream.
	writeTimeout = 30 * time.Second
)

// Reads limits connections of the pool for reads, memory for large responses and for generated ids, and streams
// (WatchEntries, Hold): in all, and for each tenant, so that one leaves enough to the others. A tenant gets at most
// three quarters of the connections, a principal half of the share of its tenant. Calls without room wait as in
// Admission, and are then refused with BUSY.
type Reads struct {
	connections, bytes, generated, watches shares
}

// shares are two limits: the share of a principal, then that of its tenant and the total.
type shares struct{ principals, tenants *Admission }

func newShares(total, tenant int, of string, wait time.Duration) shares {
	s := shares{newAdmission(math.MaxInt, tenant/2, of), newAdmission(total, tenant, of)}
	s.principals.maxWait, s.tenants.maxWait = wait, wait
	return s
}

// share is what a call holds of shares. The zero value holds nothing.
type share struct {
	of                shares
	principal, tenant admissionCall
}

// enter waits for both limits. Returns faults BUSY, NOT_RUN.
func (s shares) enter(ctx context.Context, h *share, id access.Identity, n int) error {
	h.of = s
	h.tenant.tenant = id.Tenant
	h.principal.tenant, h.principal.principal = id.Tenant, cmp.Or(id.Principal, "-")
	if err := s.principals.enter(ctx, &h.principal, n); err != nil {
		return err
	}
	err := s.tenants.enter(ctx, &h.tenant, n)
	if err != nil {
		s.principals.release(&h.principal)
	}
	return err
}

// release frees the shares of the call. It is idempotent.
func (h *share) release() {
	if h.of.tenants != nil {
		h.of.tenants.release(&h.tenant)
		h.of.principals.release(&h.principal)
	}
}

// NewReads makes the limits for a pool of so many connections, at least 8. It registers metrics if reg is not nil.
func NewReads(connections int, reg prometheus.Registerer) *Reads {
	total := connections - spareReads
	r := &Reads{connections: newShares(total, total*3/4, "reads at the same time", readWait),
		bytes:     newShares(responseBytes, responseTenantBytes, "bytes of large responses in flight", admitWait),
		generated: newShares(generatedBytes, responseTenantBytes, "bytes of generated ids in flight", admitWait),
		watches:   newShares(watches, watchesTenant, "streams at the same time", admitWait)}
	reads, streams, bytes, generated := r.connections.tenants, r.watches.tenants, r.bytes.tenants, r.generated.tenants
	reads.gauge(reg, "reads", "Reads in progress.", func() int { return reads.used })
	reads.gauge(reg, "waiting_reads", "Reads that wait for a connection.", reads.waiting)
	r.connections.principals.gauge(reg, "waiting_principals",
		"Reads that wait for others of their principal to end.", r.connections.principals.waiting)
	streams.gauge(reg, "watches", "Streams of WatchEntries and Hold in progress.", func() int { return streams.used })
	bytes.gauge(reg, "response_bytes", "Bytes of large responses in flight.", func() int { return bytes.used })
	generated.gauge(reg, "generated_bytes", "Bytes of generated ids in flight.", func() int { return generated.used })
	return r
}

// run runs a read, and admits the memory of its response. Returns faults BUSY, NOT_RUN, and those of the read.
func (r *Reads) run(ctx context.Context, c *call,
	read func() (connect.AnyResponse, error)) (res connect.AnyResponse, err error) {
	if err = r.query(ctx, c.identity, func() error { res, err = read(); return err }); err != nil {
		return nil, err
	}
	return res, r.admitResponse(ctx, c, res)
}

// admitResponse waits for memory for a large response, unless it is reserved. Returns faults BUSY, NOT_RUN.
func (r *Reads) admitResponse(ctx context.Context, c *call, res connect.AnyResponse) error {
	if r == nil || c.request == nil || c.request.response != nil {
		return nil
	}
	size := proto.Size(res.Any().(proto.Message))
	if size <= largeResponse || size <= c.intake.held() {
		return nil
	}
	return c.enter(ctx, r.bytes, size)
}

// reserve waits for the memory that generated ids will take. It has a limit apart from other responses, so that a few
// calls for many ids do not delay these. Returns faults BUSY, NOT_RUN.
func (r *Reads) reserve(ctx context.Context, c *call, bytes int) error {
	if r == nil || c.request == nil || bytes <= largeResponse {
		return nil
	}
	return c.enter(ctx, r.generated, bytes)
}

// enter waits for memory for the response. Returns faults BUSY, NOT_RUN.
func (c *call) enter(ctx context.Context, of shares, bytes int) error {
	h := &share{}
	if err := of.enter(ctx, h, c.identity, bytes); err != nil {
		return err
	}
	c.request.response = h
	return nil
}

// query runs a query of a read. Returns faults BUSY, NOT_RUN, and those of the query.
func (r *Reads) query(ctx context.Context, id access.Identity, query func() error) error {
	if r == nil {
		return query()
	}
	var h share
	if err := r.connections.enter(ctx, &h, id, 1); err != nil {
		return err
	}
	defer h.release() // also after a panic
	return query()
}

// watch runs a stream. Returns faults BUSY, NOT_RUN, and those of the stream.
func (r *Reads) watch(ctx context.Context, id access.Identity, stream func() error) error {
	if r == nil {
		return stream()
	}
	var h share
	if err := r.watches.enter(ctx, &h, id, 1); err != nil {
		return err
	}
	defer h.release()
	return stream()
}
