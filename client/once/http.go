package once

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ledgerd/ledgerd/client"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
)

// Handler makes a handler idempotent. Read-only requests (GET, HEAD, OPTIONS, TRACE) pass through.
func (g *Middleware) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, ok := keyOf(r.Header)
		switch {
		case slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}, r.Method):
			next.ServeHTTP(w, r)
		case !ok:
			problem(w, http.StatusBadRequest, "idempotency-key-invalid",
				"Idempotency-Key must be sent once, with 1 to 255 printable ASCII characters", 0)
		case key == "" && g.settings.required:
			problem(w, http.StatusBadRequest, "idempotency-key-missing",
				"send an Idempotency-Key that is new for every new request, and the same when it is sent again", 0)
		case key == "":
			next.ServeHTTP(w, r)
		default:
			g.serve(w, r, key, next)
		}
	})
}

func (g *Middleware) serve(w http.ResponseWriter, r *http.Request, key string, next http.Handler) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, g.settings.maxBody))
	if err != nil {
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			problem(w, http.StatusRequestEntityTooLarge, "body-too-large",
				"with an Idempotency-Key, the body may have at most "+strconv.FormatInt(large.Limit, 10)+" bytes", 0)
			return
		}
		problem(w, http.StatusBadRequest, "body-incomplete", "the body of the request is incomplete", 0)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	attempt, other, err := g.begin(r.Context(), g.name(r.Context(), r.Header, key), fingerprint(r, body))
	switch {
	case attempt != nil:
		attempt.serve(w, r, next)
	case err != nil && g.settings.open && unreachable(err):
		g.settings.log.Error("a request runs unguarded", "scope", g.scope, "error", err)
		next.ServeHTTP(w, r)
	case err != nil:
		g.failed(w, err)
	case other.GetReplay() != nil:
		replay(w, other.GetReplay().GetAnswer())
	case other.GetParked() != nil:
		problem(w, http.StatusConflict, "outcome-unknown",
			"the outcome of the request is unknown until an operator resolves it", 0)
	default:
		problem(w, http.StatusConflict, "still-running", "the request is still running",
			other.GetWait().GetRetryDelay().AsDuration())
	}
}

// fingerprint hashes the request's identity: method, path, query, and the body as sent.
func fingerprint(r *http.Request, body []byte) []byte {
	b := appendText([]byte{fingerprintVersion}, r.Method)
	b = appendText(appendText(b, r.URL.EscapedPath()), r.URL.RawQuery)
	sum := sha256.Sum256(appendText(b, body))
	return append([]byte{fingerprintVersion}, sum[:]...)
}

// failed answers when it is unknown whether the request may run.
func (g *Middleware) failed(w http.ResponseWriter, err error) {
	if errors.Is(err, client.ReasonWorkKeyReused) {
		problem(w, http.StatusUnprocessableEntity, "idempotency-key-reused",
			"the Idempotency-Key was used before with another request", 0)
		return
	}
	g.settings.log.Error("refused a request: ledgerd did not answer", "scope", g.scope, "error", err)
	after := time.Second
	if e, ok := client.AsError(err); ok {
		after = max(after, e.RetryAfter)
	}
	problem(w, http.StatusServiceUnavailable, "unavailable", "try again with the same Idempotency-Key", after)
}

// serve runs the handler, records its answer, and then sends it.
func (r *run) serve(w http.ResponseWriter, req *http.Request, next http.Handler) {
	out := &answer{header: http.Header{}}
	r.call(func() { next.ServeHTTP(out, req.WithContext(r.ctx)) })
	out.WriteHeader(http.StatusOK) // if the handler did not
	status, body := out.status, out.body.Bytes()
	if err := r.end(r.settings.rule(status, out.sent), r.settings.recorded(status, out.sent, body)); err != nil {
		r.settings.log.Error("an answer was lost: another attempt may have begun", "scope", r.scope, "key", r.key,
			"error", err)
		problem(w, http.StatusConflict, "lease-lost",
			"another attempt may have begun: send the request again to learn how it ended", time.Second)
		return
	}
	put(w.Header(), out.sent)
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// put sets the headers of an answer, replacing those set outside the middleware, except for Vary, which is combined.
func put(h, answer http.Header) {
	before := h["Vary"]
	maps.Copy(h, answer)
	if _, both := answer["Vary"]; both {
		h["Vary"] = slices.Concat(answer["Vary"], before)
	}
}

// call runs a handler, and abandons the work if it panics.
func (r *run) call(handler func()) {
	returned := false
	defer func() {
		if !returned {
			_ = r.end(Free, r.settings.recorded(http.StatusInternalServerError, nil, nil))
		}
	}()
	handler()
	returned = true
}

// answer buffers the handler's answer.
type answer struct {
	header http.Header
	sent   http.Header // snapshot at WriteHeader
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status, a.sent = status, a.header.Clone()
	}
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		if a.header.Get("Content-Type") == "" {
			a.header.Set("Content-Type", http.DetectContentType(b))
		}
		a.WriteHeader(http.StatusOK)
	}
	return a.body.Write(b)
}

// replay sends a recorded answer.
func replay(w http.ResponseWriter, a *idempotencyv1.RecordedAnswer) {
	h, recorded := w.Header(), http.Header{}
	for _, x := range a.GetHeaders() {
		recorded.Add(x.GetName(), x.GetValue())
	}
	put(h, recorded)
	h.Set(client.ReplayedHeader, "true")
	status := int(a.GetStatus())
	if status < 200 {
		status = http.StatusOK // settled by an operator without a status
	}
	w.WriteHeader(status)
	_, _ = w.Write(a.GetBody())
}

// problem sends an RFC 9457 problem.
func problem(w http.ResponseWriter, status int, code, detail string, after time.Duration) {
	if after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((after+time.Second-1)/time.Second)))
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "code": code,
		"detail": detail})
}
