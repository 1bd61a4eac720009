package rpc

import (
	"context"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
)

// Limits of Reads.
const (
	// spareReads are the connections that are left for authentication and for watches.
	spareReads = 2
	readWait   = 5 * time.Second // for a connection
	// largeResponse is the size in bytes from which responses are bounded. A page has at most 17 MB.
	largeResponse       = 64 << 10
	responseBytes       = 256 << 20 // of all tenants
	responseTenantBytes = responseBytes / 4
	// Each watch polls the database for as long as it lasts.
	watches       = 400
	watchesTenant = watches / 4
	// writeTimeout bounds one write of a response over HTTP/1. HTTP/2 has a timeout of its own.
	writeTimeout = 30 * time.Second
)

// Reads bounds what the reads of one tenant take from those of others: connections of the pool, of which one tenant
// gets at most three quarters, memory of large responses that callers are slow to receive, and watches. Reads without
// room wait as in Admission, and are refused with BUSY.
type Reads struct {
	connections, bytes, watches *Admission
}

// NewReads makes the limits for a pool of so many connections, at least 4. It registers metrics if reg is not nil.
func NewReads(connections int, reg prometheus.Registerer) *Reads {
	total := connections - spareReads
	r := &Reads{connections: newAdmission(total, total*3/4, "reads at the same time"),
		bytes:   newAdmission(responseBytes, responseTenantBytes, "large responses in flight"),
		watches: newAdmission(watches, watchesTenant, "watches at the same time")}
	r.connections.maxWait = readWait
	r.connections.gauge(reg, "reads", "Reads in progress.", func() int { return r.connections.bytes })
	r.connections.gauge(reg, "waiting_reads", "Reads that wait for a connection.", r.connections.waiting)
	r.watches.gauge(reg, "watches", "Streams of WatchEntries.", func() int { return r.watches.bytes })
	r.bytes.gauge(reg, "response_bytes", "Bytes of large responses in flight.", func() int { return r.bytes.bytes })
	return r
}

// run runs a read, and admits the memory of its response. Returns faults BUSY, NOT_RUN, and those of the read.
func (r *Reads) run(ctx context.Context, tenant int32,
	read func() (connect.AnyResponse, error)) (res connect.AnyResponse, err error) {
	if r == nil {
		return read()
	}
	t := ticket{tenant: tenant}
	if err := r.connections.enter(ctx, &t, 1); err != nil {
		return nil, err
	}
	func() {
		defer r.connections.release(&t) // also after a panic
		res, err = read()
	}()
	if err != nil {
		return nil, err
	}
	out, _ := ctx.Value(replyKey{}).(*reply)
	if size := proto.Size(res.Any().(proto.Message)); out != nil && size > largeResponse {
		out.admission, out.ticket.tenant = r.bytes, tenant
		return res, r.bytes.enter(ctx, &out.ticket, size)
	}
	return res, nil
}

// watch runs a stream. Returns faults BUSY, NOT_RUN, and those of the stream.
func (r *Reads) watch(ctx context.Context, tenant int32, stream func() error) error {
	if r == nil {
		return stream()
	}
	t := ticket{tenant: tenant}
	if err := r.watches.enter(ctx, &t, 1); err != nil {
		return err
	}
	defer r.watches.release(&t)
	return stream()
}

// reply is the response to a request.
type reply struct {
	writer    *http.ResponseController // nil: not over HTTP/1
	timeout   time.Duration            // of a write
	admission *Admission               // nil: needs none
	ticket    ticket
}

type replyKey struct{}

// deadline bounds the next write, so that a caller who does not read occupies no memory for ever.
func (r *reply) deadline() {
	if r != nil && r.writer != nil {
		_ = r.writer.SetWriteDeadline(time.Now().Add(r.timeout))
	}
}

func (r *reply) release() {
	if r.admission != nil {
		r.admission.release(&r.ticket)
	}
}
