package rpc

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/approval"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// RequestIDHeader carries the id of a request, which is in every log line, row and response.
const RequestIDHeader = "X-Request-ID"

const requestIDKey = "X-Request-Id" // as net/http spells it

// request is an HTTP request in flight, and its response.
type request struct {
	chain    []*x509.Certificate // verified client certificate of the connection, and its chain; nil: none
	intake   *intake             // nil: the request is small
	calls    *access.Calls       // of the API key, which admitted this call; nil: the key has no limits
	response *share              // of the memory of large responses; nil: it is small
	body     body
	out      boundedWriter
}

type requestKey struct{}

// requestOf returns the HTTP request of a call; nil: there is none, in tests.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// Handler prepares every request. It assigns an id, limits the body, leaves a large body unread until the gate admits
// it, and logs a panic. When the response is written, it frees the memory that request and response reserved.
func (a *Admission) Handler(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer logPanic(log, r)
		nameRequest(w, r)
		in := &request{}
		defer in.close()
		if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
			in.chain = r.TLS.PeerCertificates
		}
		// On a copy: net/http checks whether the body of its own request was read to the end. Otherwise it would reuse
		// the connection and parse the rest of the body as a request.
		r = r.WithContext(context.WithValue(r.Context(), requestKey{}, in))
		length, zipped := int(r.ContentLength), isZipped(r)
		if r.Method == http.MethodGet {
			length = max(length, len(r.URL.RawQuery)) // holds the message
		}
		if 0 <= length && length <= smallRequest && !zipped {
			in.body = newBody(r, smallRequest)
			r.Body = &in.body
		} else {
			in.body = newBody(r, bodyLimit(r.URL.Path))
			in.intake = &intake{raw: &in.body, length: length, zipped: zipped, admission: a}
			r.Body = in.intake
		}
		in.out = boundedWriter{ResponseWriter: w, control: *http.NewResponseController(w), timeout: a.writeTimeout}
		next.ServeHTTP(&in.out, r)
		in.out.bound() // for the last write, by net/http
	})
}

// close frees what the request and its response reserved: memory, and a slot of the API key.
func (r *request) close() {
	if r.intake != nil {
		r.intake.admission.release(&r.intake.memory)
	}
	if r.response != nil {
		r.response.release()
	}
	if r.calls != nil {
		r.calls.Leave()
	}
}

// nameRequest gives a request an id, unless it has a valid one, and sets the same id on the response.
func nameRequest(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(requestIDKey)
	if !goodRequestID(id) {
		id = newRequestID()
	}
	value := []string{id}
	r.Header[requestIDKey], w.Header()[requestIDKey] = value, value
}

// logPanic, deferred, logs a panic outside of Connect handlers, such as in a codec or while the caller is
// authenticated: net/http would do so at debug level, and without the request's id. The connection is closed, as
// net/http does.
func logPanic(log *slog.Logger, r *http.Request) {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		log.ErrorContext(r.Context(), "request panicked", "path", r.URL.Path,
			"request_id", r.Header.Get(RequestIDHeader), "error", fmt.Sprintf("panic: %v\n%s", p, debug.Stack()))
		panic(http.ErrAbortHandler)
	}
}

func goodRequestID(s string) bool {
	return 1 <= len(s) && len(s) <= 128 && printableASCII(s) && !strings.Contains(s, " ") &&
		!strings.HasPrefix(s, approval.RequestIDPrefix)
}

var requestIDText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

func newRequestID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return requestIDText.EncodeToString(b[:])
}

// body is the body of a request. The limit excludes the frame in front of a message.
type body struct {
	io.ReadCloser
	id    string
	limit int
	left  int
}

// newBody limits the body of a request.
func newBody(r *http.Request, limit int) body {
	return body{ReadCloser: r.Body, id: r.Header.Get(requestIDKey), limit: limit, left: limit + frameBytes}
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, tooLarge(b.id, b.limit)
	}
	if err != nil && err != io.EOF {
		err = connectError(unreadable(err), b.id)
	}
	return n, err
}

// unreadable returns the fault of a body that ended early, came too late, or has malformed chunks.
func unreadable(err error) *fault.Fault {
	var network net.Error
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault.FieldInvalid.New("the body of the request ends too early: " +
			"send all of its Content-Length or chunks")
	case errors.As(err, &network):
		return fault.NotRun.New("the body of the request did not arrive in time, or the connection was lost")
	}
	return fault.FieldInvalid.New("the body of the request cannot be read: %v", err)
}

// tooLarge returns a complete Connect error: no interceptor converts errors of reading a body.
func tooLarge(requestID string, limit int) error {
	return connectError(tooLargeFault(limit), requestID)
}

func tooLargeFault(limit int) *fault.Fault {
	return fault.FieldInvalid.New("the request is larger than %d KiB, the limit of this call", limit>>10)
}

// gunzip stops at the limit of the call. Connect's own decompressor reads to the end to report the full size. Errors of
// gunzip are complete Connect errors too, but without a request id.
type gunzip struct {
	gzip.Reader
	zipped   counter
	limit    int
	read     int
	resetErr error
}

// From zippedFree bytes on, a request may be at most maxRatio times as large as its compressed form: requests rarely
// compress as well, and a small bomb must not become a large request.
const (
	zippedFree = 1 << 20
	maxRatio   = 128
)

type counter struct {
	io.Reader
	n int
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

func (g *gunzip) Reset(r io.Reader) error {
	g.zipped, g.read = counter{Reader: r}, 0
	g.resetErr = g.Reader.Reset(&g.zipped)
	return nil
}

func (g *gunzip) Read(p []byte) (n int, err error) {
	if err = g.resetErr; err == nil {
		n, err = g.Reader.Read(p)
	}
	switch g.read += n; {
	case g.read > g.limit:
		return 0, tooLarge("", g.limit)
	case g.read > zippedFree && g.read > maxRatio*g.zipped.n:
		return 0, connectError(fault.FieldInvalid.New("the request is more than %d times as large as its compressed "+
			"form: send it uncompressed",
			maxRatio), "")
	case err != nil && err != io.EOF:
		return 0, connectError(fault.FieldInvalid.New("the body of the request is not valid gzip"), "")
	}
	return n, err
}

func (g *gunzip) Close() error { return nil }

// The memory of a request is estimated from its size until it is decoded.
const (
	// Decoded, a TransferBatch takes about 7 times its protobuf bytes, and each item a perCommand besides: items of 22
	// bytes take 32 times their bytes. A call that needs more than estimated may be refused after it was decoded, which
	// costs as much CPU as a small commit, and callers that retry at once would make the server decode all the time.
	memoryPerByte = 32
	zippedPerByte = 8 * memoryPerByte
	firstRead     = 64 << 10 // of a request without Content-Length
)

// intake is the body of a request that may be large. Once admitted it is read ahead to its end.
type intake struct {
	raw       *body
	length    int // Content-Length; below 0: none
	zipped    bool
	admission *Admission
	memory    admissionCall
	buffer    bytes.Buffer
	err       error // of reading ahead; io.EOF at the end
}

// isZipped reports whether a request may be compressed, and so larger than its length.
func isZipped(r *http.Request) bool {
	for _, name := range []string{"Content-Encoding", "Grpc-Encoding", "Connect-Content-Encoding"} {
		if v := r.Header[name]; len(v) > 0 && v[0] != "identity" {
			return true
		}
	}
	return r.Method == http.MethodGet && r.URL.Query().Get("compression") != ""
}

// admit waits until the request may be read, reads it, and waits until it may be decoded. A request that turns out to
// be small needs no admission. Returns faults FIELD_INVALID, BUSY, NOT_RUN. The next Read returns errors of reading.
func (in *intake) admit(ctx context.Context, tenant int32) error {
	if in == nil || in.length < 0 && !in.zipped && in.readAhead(smallRequest) {
		return nil
	}
	if in.length > in.raw.left {
		return tooLargeFault(in.raw.limit)
	}
	limit := in.length
	if limit < 0 {
		limit = firstRead
	}
	in.memory.tenant = tenant
	if err := in.admission.enter(ctx, &in.memory, in.estimate(limit)); err != nil {
		return err
	}
	for !in.readAhead(limit) {
		limit *= 2
		if n := in.estimate(limit); !in.admission.grow(&in.memory, n) {
			return in.admission.busy(&in.memory, n-in.memory.size)
		}
	}
	if in.err != io.EOF {
		return nil // there is nothing to decode
	}
	return in.admission.decode(ctx, &in.memory)
}

// held returns the bytes that the request holds until its response is written.
func (in *intake) held() int {
	if in == nil {
		return 0
	}
	return in.memory.size
}

func (in *intake) estimate(size int) int {
	if in.zipped {
		return size * zippedPerByte
	}
	return size * memoryPerByte
}

// readAhead reads up to the end and returns true, or returns false as soon as there are more bytes than the limit.
func (in *intake) readAhead(limit int) (ended bool) {
	_, in.err = io.CopyN(&in.buffer, in.raw, int64(limit+1-in.buffer.Len()))
	return in.err != nil
}

// decoded reports the decoded request to the admission. Returns fault BUSY if it needs more memory than there is.
func (in *intake) decoded(m proto.Message) error {
	if in == nil {
		return nil
	}
	return in.admission.decoded(&in.memory, footprint(m))
}

// Read returns the bytes read ahead, then continues with the body.
func (in *intake) Read(p []byte) (int, error) {
	switch {
	case in.buffer.Len() > 0:
		return in.buffer.Read(p)
	case in.err != nil:
		return 0, in.err
	}
	return in.raw.Read(p)
}

// Close implements io.Closer.
func (in *intake) Close() error { return in.raw.Close() }

// boundedWriter sets a deadline for each write of a response, so that a caller that does not read cannot occupy memory
// for ever. Flush clears the deadline after each message of a stream: over HTTP/2, a deadline that passes between two
// messages would end the call.
type boundedWriter struct {
	http.ResponseWriter
	control http.ResponseController
	timeout time.Duration
	written int
}

// buffered is the size of the smallest buffer of net/http for a response, of HTTP/1. A response that fits into it is
// not written to the connection before the handler has returned.
const buffered = 2 << 10

func (w *boundedWriter) bound() { _ = w.control.SetWriteDeadline(time.Now().Add(w.timeout)) }

func (w *boundedWriter) Write(p []byte) (int, error) {
	if w.written += len(p); w.written > buffered {
		w.bound()
	}
	return w.ResponseWriter.Write(p)
}

// Flush ends a message of a stream.
func (w *boundedWriter) Flush() {
	w.bound()
	_ = w.control.Flush()
	_ = w.control.SetWriteDeadline(time.Time{})
}

// Unwrap is for http.ResponseController.
func (w *boundedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
