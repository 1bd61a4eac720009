package rpc

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"
)

// What a request takes in memory is guessed from its size until it is decoded.
const (
	memoryPerByte = 8 // a TransferBatch of small items takes some 7 times its protobuf bytes
	zippedPerByte = 8 * memoryPerByte
	firstPart     = 64 << 10 // of a request that does not tell its length
)

// intake is the body of a request that may be large: from the time it is admitted it is read ahead to its end.
type intake struct {
	raw       io.ReadCloser
	length    int // as the request tells it; below 0: it does not
	zipped    bool
	admission *Admission
	ticket    ticket
	buffer    bytes.Buffer
	err       error // how reading ahead ended
}

type intakeKey struct{}

// Bounded bounds the bodies of requests, and keeps large ones unread until a gate admits them.
func (a *Admission) Bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		length, zipped := int(r.ContentLength), isZipped(r)
		if r.Method == http.MethodGet {
			length = max(length, len(r.URL.RawQuery)) // where the message is
		}
		if 0 <= length && length <= smallRequest && !zipped {
			next.ServeHTTP(w, r)
			return
		}
		in := &intake{raw: &body{r.Body, r.Header.Get(requestIDKey), maxRequestBytes}, length: length, zipped: zipped,
			admission: a}
		defer a.leave(&in.ticket)
		// A copy, since net/http looks at the body of its own: without it a connection whose body was not read to the
		// end would be used again, and the rest of the body taken for a request.
		r = r.WithContext(context.WithValue(r.Context(), intakeKey{}, in))
		r.Body = in
		next.ServeHTTP(w, r)
	})
}

// isZipped tells whether a request may be greater than it looks.
func isZipped(r *http.Request) bool {
	for _, name := range []string{"Content-Encoding", "Grpc-Encoding", "Connect-Content-Encoding"} {
		if v := r.Header[name]; len(v) > 0 && v[0] != "identity" {
			return true
		}
	}
	return r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "compression=")
}

// admit waits until the request may be read, reads it, and waits until it may be decoded. One that turns out to be
// small goes on without admission. Returns faults BUSY, NOT_RUN; errors of reading are left to who reads the body next.
func (in *intake) admit(ctx context.Context, tenant int32) error {
	if in == nil || in.length < 0 && !in.zipped && in.readAhead(smallRequest) {
		return nil
	}
	limit := in.length
	if limit < 0 {
		limit = firstPart
	}
	in.ticket.tenant = tenant
	if err := in.admission.enter(ctx, &in.ticket, in.guess(limit)); err != nil {
		return err
	}
	for !in.readAhead(limit) {
		if limit *= 2; !in.admission.grow(&in.ticket, in.guess(limit)) {
			return busy()
		}
	}
	return in.admission.decode(ctx, &in.ticket)
}

func (in *intake) guess(size int) int {
	if in.zipped {
		return size * zippedPerByte
	}
	return size * memoryPerByte
}

// readAhead reads until there are more bytes than the limit, and returns false; or to the end, and returns true.
func (in *intake) readAhead(limit int) (ended bool) {
	_, in.err = io.CopyN(&in.buffer, in.raw, int64(limit+1-in.buffer.Len()))
	return in.err != nil
}

// decoded is called with the decoded request.
func (in *intake) decoded(m proto.Message) {
	if in != nil {
		in.admission.decoded(&in.ticket, footprint(m))
	}
}

// Read reads what was read ahead, then goes on with the body.
func (in *intake) Read(p []byte) (int, error) {
	switch {
	case in.buffer.Len() > 0:
		return in.buffer.Read(p)
	case in.err != nil:
		return 0, in.err
	}
	return in.raw.Read(p)
}

// Close closes the body.
func (in *intake) Close() error { return in.raw.Close() }
