package rpc

import (
	"compress/gzip"
	"crypto/rand"
	"encoding/base32"
	"io"
	"net/http"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// RequestIDHeader names a request through every log line, row and answer.
const RequestIDHeader = "X-Request-ID"

const requestIDKey = "X-Request-Id" // as net/http spells it

// Named gives every request an id, unless it brings a good one, and every answer the same.
func Named(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDKey)
		if !goodRequestID(id) {
			id = newRequestID()
		}
		value := []string{id}
		r.Header[requestIDKey], w.Header()[requestIDKey] = value, value
		next.ServeHTTP(w, r)
	})
}

func goodRequestID(s string) bool {
	if len(s) < 1 || len(s) > 128 {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

var requestIDText = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

func newRequestID() string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails
	return requestIDText.EncodeToString(b[:])
}

// maxRequestBytes bounds a request, before and after decompression.
const maxRequestBytes = 16 << 20

type body struct {
	io.ReadCloser
	id   string
	left int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, tooLarge(b.id)
	}
	return n, err
}

// tooLarge is a whole Connect error: what reads a body happens before an interceptor could make it one.
func tooLarge(requestID string) error {
	return connectError(fault.FieldInvalid.New("the request is larger than %d MiB", maxRequestBytes>>20), requestID)
}

// gunzip stops at the limit: Connect's own goes on to the end to tell how much it would have been. Its
// errors are whole Connect errors too, but know no request id.
type gunzip struct {
	gzip.Reader
	left int
	bad  error // what Reset met
}

func (g *gunzip) Reset(r io.Reader) error {
	g.left, g.bad = maxRequestBytes, g.Reader.Reset(r)
	return nil
}

func (g *gunzip) Read(p []byte) (n int, err error) {
	if err = g.bad; err == nil {
		n, err = g.Reader.Read(p)
	}
	if g.left -= n; g.left < 0 {
		return 0, tooLarge("")
	}
	if err != nil && err != io.EOF {
		return 0, connectError(fault.FieldInvalid.New("the body of the request is not valid gzip"), "")
	}
	return n, err
}

func (g *gunzip) Close() error { return nil }
