// Package report receives delivery reports from providers over HTTP, in the format of each. It owns no tables.
//
// Promises: a report counts only if it is authenticated, by a signature or a secret in the path. It is acknowledged
// only after its content is committed, or if it is not about our messages. So the provider repeats a lost report, and
// the inbox deduplicates it.
package report

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/ledgerd/ledgerd/internal/httpbody"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Report is a delivery report about one message.
type Report struct {
	// Key is the message's key, if the provider returns it; otherwise ProviderMessageID identifies the message.
	Key               string
	ProviderMessageID string
	Delivered         bool
	// Code and Text are the reason of a failed delivery, without the recipient.
	Code, Text string
}

// Source reads the reports of one provider.
type Source interface {
	// Reports parses a request. secret is the path after the provider's name. Intermediate statuses such as "sent" are
	// omitted. It returns ErrForbidden if the request is not authenticated.
	Reports(r *http.Request, secret string, body []byte) ([]Report, error)
	// Acknowledge confirms that all reports were recorded.
	Acknowledge(w http.ResponseWriter)
}

// ErrForbidden: the request has no valid signature or secret.
var ErrForbidden = errors.New("report: not from the provider")

// Secret compares secrets in constant time. An empty one never matches.
func Secret(got, want string) error {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	if want == "" || subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return ErrForbidden
	}
	return nil
}

// Either combines two accounts of one provider: the first that authenticates a request reads it. a may be nil.
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

// Placed is a Report with its tenant and message.
type Placed struct {
	Report
	Provider  string
	Tenant    int32
	MessageID int64 // 0: found by ProviderMessageID
}

// Handler serves POST /notify/reports/{provider}/{secret}; providers that sign reports need no secret.
type Handler struct {
	// Sources by the provider's name in the configuration.
	Sources map[string]Source
	// Keys recognises keys of this database.
	Keys send.Keys
	// Find returns the tenant of a message by provider_message_id, or 0.
	Find func(ctx context.Context, provider, providerMessageID string) (tenant int32, err error)
	// Take commits reports. It returns nil if all were recorded.
	Take func(ctx context.Context, requestID string, reports []Placed) error
	Log  *slog.Logger
}

// maxBody limits a request, maxReports the number of its reports.
const (
	maxBody    = 1 << 20
	maxReports = 2000
)

// Pattern is the route of the handler.
const Pattern = "POST /notify/reports/"

// Register adds the routes.
func (h *Handler) Register(mux *http.ServeMux) {
	mux.Handle(Pattern+"{provider}", h)
	mux.Handle(Pattern+"{provider}/{secret}", h)
}

// ServeHTTP records reports. Status 503 makes the provider repeat them.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("provider")
	source := h.Sources[name]
	if source == nil {
		http.NotFound(w, r)
		return
	}
	switch err := httpbody.Read(w, r, maxBody, func(body []byte) { h.serve(w, r, name, source, body) }); {
	case errors.Is(err, httpbody.ErrBusy):
		http.Error(w, err.Error()+": send the report again", http.StatusServiceUnavailable)
	case err != nil:
		http.Error(w, "the body is too long or incomplete", http.StatusRequestEntityTooLarge)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, name string, source Source, body []byte) {
	reports, err := source.Reports(r, r.PathValue("secret"), body)
	switch {
	case errors.Is(err, ErrForbidden):
		h.Log.WarnContext(r.Context(), "a delivery report has a wrong signature or secret", "provider", name)
		http.Error(w, "wrong signature or secret", http.StatusForbidden)
		return
	case err != nil || len(reports) > maxReports:
		// the error may quote the body
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
			continue // another user of the account, or malformed
		default:
			var err error
			if p.Tenant, err = h.Find(ctx, provider, r.ProviderMessageID); err != nil {
				return err
			}
			if p.Tenant == 0 { // another user's, or the result of the attempt is not recorded yet
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
