// Package report takes in what providers say became of messages: over HTTP, from each in its own form. It owns no
// tables.
//
// What it promises: a report counts only if its sender proved who it is, by a signature or by a secret in the path. It
// is acknowledged only when what it says is committed, or when it says nothing of ours: whatever is lost on the way the
// provider posts again, and the inbox makes the repeat one.
package report

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Report is what became of one message.
type Report struct {
	// Key is ours, if the provider echoes it; else ProviderMessageID tells the message.
	Key               string
	ProviderMessageID string
	Delivered         bool
	// Code and Text say why not, without the recipient.
	Code, Text string
}

// Source reads what one provider posts.
type Source interface {
	// Reports reads a request, whose body it gets beside. secret is the part of the path behind the provider's name.
	// States on the way, such as "sent", are left out. Its error is ErrForbidden when nobody proved to be the provider.
	Reports(r *http.Request, secret string, body []byte) ([]Report, error)
	// Acknowledge answers that all was taken in.
	Acknowledge(w http.ResponseWriter)
}

// ErrForbidden: the request has no good signature or secret.
var ErrForbidden = errors.New("report: not from the provider")

// Secret compares a secret in constant time. An empty one is never right.
func Secret(got, want string) error {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	if want == "" || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return ErrForbidden
	}
	return nil
}

// Either is one provider under two accounts: a request is read as the first reads it that it is proved to. nil: there
// is only one.
func Either(a, b Source) Source {
	if a == nil {
		return b
	}
	return either{a, b}
}

type either [2]Source

func (e either) Reports(r *http.Request, secret string, body []byte) ([]Report, error) {
	reports, err := e[0].Reports(r, secret, body)
	if errors.Is(err, ErrForbidden) {
		return e[1].Reports(r, secret, body)
	}
	return reports, err
}

func (e either) Acknowledge(w http.ResponseWriter) { e[0].Acknowledge(w) }

// Placed is a Report with the message that it is about.
type Placed struct {
	Report
	Provider  string
	Tenant    int32
	MessageID int64 // 0: by the provider's number
}

// Handler serves POST /notify/reports/{provider}/{secret}, the latter for providers that sign nothing.
type Handler struct {
	// Sources by the provider's name in the configuration.
	Sources map[string]Source
	// Keys tells which keys are ours.
	Keys send.Keys
	// Find gives the tenant whose message has a number at a provider. Not found: 0.
	Find func(ctx context.Context, provider, providerMessageID string) (tenant int32, err error)
	// Take commits reports, and tells whether all of them are done with.
	Take func(ctx context.Context, requestID string, reports []Placed) error
	Log  *slog.Logger
}

// maxBody is how long a request may be, and maxReports how many it may have.
const (
	maxBody    = 1 << 20
	maxReports = 2000
)

// Pattern is where the handler is served.
const Pattern = "POST /notify/reports/"

// Register puts the handler where it belongs.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.Handle(Pattern+"{provider}", h)
	mux.Handle(Pattern+"{provider}/{secret}", h)
}

// ServeHTTP takes reports in. 503 asks the provider to come again.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("provider")
	source := h.Sources[name]
	if source == nil {
		http.NotFound(w, r)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the body is too long or incomplete", http.StatusRequestEntityTooLarge)
		return
	}
	reports, err := source.Reports(r, r.PathValue("secret"), body)
	switch {
	case errors.Is(err, ErrForbidden):
		h.Log.WarnContext(r.Context(), "a delivery report has a wrong signature or secret", "provider", name)
		http.Error(w, "wrong signature or secret", http.StatusForbidden)
		return
	case err != nil || len(reports) > maxReports:
		// the error may quote it
		h.Log.WarnContext(r.Context(), "a delivery report is not in the provider's format", "provider", name)
		http.Error(w, "the report is not in the provider's format", http.StatusBadRequest)
		return
	}
	requestID := rand.Text()
	if err := h.take(r.Context(), name, requestID, reports); err != nil {
		h.Log.ErrorContext(r.Context(), "delivery reports were not recorded", "provider", name, "request_id", requestID,
			"error", err)
		http.Error(w, "the report could not be recorded: send it again", http.StatusServiceUnavailable)
		return
	}
	source.Acknowledge(w)
}

func (h *Handler) take(ctx context.Context, provider, requestID string, reports []Report) error {
	placed, early := make([]Placed, 0, len(reports)), error(nil)
	for _, r := range reports {
		p := Placed{Report: r, Provider: provider}
		var ours bool
		switch p.Tenant, p.MessageID, ours = h.Keys.Parse(r.Key); {
		case ours:
		case r.Key != "" || r.ProviderMessageID == "", !utf8.ValidString(r.ProviderMessageID),
			strings.ContainsRune(r.ProviderMessageID, 0):
			continue // of somebody else who uses the same account, or nonsense
		default:
			var err error
			if p.Tenant, err = h.Find(ctx, provider, r.ProviderMessageID); err != nil {
				return err
			}
			if p.Tenant == 0 { // also of somebody else, or of an attempt whose end is not written down yet
				early = errUnknown
				continue
			}
		}
		placed = append(placed, p)
	}
	if len(placed) > 0 {
		if err := h.Take(ctx, requestID, placed); err != nil {
			return err
		}
	}
	return early
}

var errUnknown = errors.New("no message has this provider_message_id yet")
