package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/ledgerd/ledgerd/internal/httpbody"
)

// Path is the path of callbacks, without the gateway's name.
const Path = "/pay/callbacks/"

const (
	maxBody = 1 << 20
	// takeWithin leaves a second for the network: WeChat waits 5 s for an answer.
	takeWithin = 4 * time.Second
)

// Handler serves POST /pay/callbacks/{gateway}. A callback needs no API key: its signature authenticates it.
//
// Promises: an unverified callback is neither stored nor applied, only counted and logged. A callback is acknowledged
// only after Take has committed it.
type Handler struct {
	Set *Set
	// Take commits a notice with its raw callback, whatever its kind. ok: done; else the gateway has to redeliver it,
	// as after an Unreadable one.
	Take func(ctx context.Context, requestID string, g *Configured, n *Notice, raw Raw) (ok bool, err error)
	Log  *slog.Logger
	Now  func() time.Time // nil: time.Now
}

// Register adds the route.
func (h *Handler) Register(mux *http.ServeMux) { mux.Handle("POST "+Path+"{gateway}", h) }

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g := h.Set.ByName[r.PathValue("gateway")]
	if g == nil {
		h.Log.WarnContext(r.Context(), "a callback names a payment gateway that is not configured here", "gateway",
			r.PathValue("gateway"))
		http.NotFound(w, r)
		return
	}
	switch err := httpbody.Read(w, r, maxBody, func(body []byte) { h.serve(w, r, g, body) }); {
	case errors.Is(err, httpbody.ErrBusy):
		h.Set.metrics.callback(g.Name, again)
		http.Error(w, err.Error()+": send the callback again", http.StatusServiceUnavailable)
	case err != nil:
		h.Set.metrics.callback(g.Name, tooLarge)
		http.Error(w, "the body is too long or incomplete", http.StatusRequestEntityTooLarge)
	}
}

// serve handles a callback that was read whole, and answers it.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, g *Configured, body []byte) {
	requestID := r.Header.Get("X-Request-Id") // the server gives each request one
	if requestID == "" {
		requestID = rand.Text()
	}
	o, number, err := h.handle(r.Context(), requestID, g, Raw{Header: Archived(r.Header), Body: body, At: h.now()})
	h.Set.metrics.callback(g.Name, o)
	h.log(r.Context(), o, err, "gateway", g.Name, "out_trade_no", number, "request_id", requestID)
	w.Header().Set("Cache-Control", "no-store")
	switch o {
	case forged:
		g.refusal().write(w)
	case taken, other:
		g.Acknowledge(true).write(w)
	default:
		g.Acknowledge(false).write(w)
	}
}

// handle processes a callback. It also returns the payment's number, if the callback is verified.
func (h *Handler) handle(ctx context.Context, requestID string, g *Configured, raw Raw) (outcome, string, error) {
	n, unread := g.Notice(raw.Header, raw.Body, raw.At)
	if unread != nil && n.Kind != Unreadable {
		return forged, "", unread
	}
	ctx, cancel := context.WithTimeout(ctx, takeWithin)
	defer cancel()
	ok, err := h.Take(ctx, requestID, g, &n, raw)
	switch {
	case err != nil:
		return failed, n.OutTradeNo, errors.Join(unread, err)
	case unread != nil:
		return format, "", unread
	case !ok:
		return again, n.OutTradeNo, nil
	case n.Kind == Other:
		return other, "", nil
	}
	return taken, n.OutTradeNo, nil
}

// log logs callbacks that are not taken. Errors of Notice contain nothing of the body.
func (h *Handler) log(ctx context.Context, o outcome, err error, about ...any) {
	switch o {
	case forged:
		h.Log.WarnContext(ctx, "a payment callback is not signed by the gateway", append(about, "error", err)...)
	case format:
		h.Log.ErrorContext(ctx, "a payment callback is not in the gateway's format", append(about, "error", err)...)
	case failed:
		h.Log.ErrorContext(ctx, "a payment callback was not recorded", append(about, "error", err)...)
	}
}

func (h *Handler) now() time.Time {
	if h.Now != nil {
		return h.Now()
	}
	return time.Now()
}

// Archived returns the header without credentials. Gateways send none: a proxy or a misdirected client did.
func Archived(h http.Header) http.Header {
	kept := h.Clone()
	for _, name := range []string{"Authorization", "Cookie", "Proxy-Authorization"} {
		kept.Del(name)
	}
	return kept
}

// refusal is the response to a forged callback.
func (c *Configured) refusal() Ack {
	if c.Forged.Status != 0 {
		return c.Forged
	}
	return Ack{Status: http.StatusForbidden, ContentType: "text/plain; charset=utf-8",
		Body: []byte("not signed by the gateway\n")}
}

func (a Ack) write(w http.ResponseWriter) {
	if a.ContentType != "" {
		w.Header().Set("Content-Type", a.ContentType)
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body)
}
