package webhook

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// Key names an endpoint.
type Key struct {
	Tenant int32
	Name   string
}

// Endpoint is where events go.
type Endpoint struct {
	Key
	ID  int64 // of the row: a new one for an endpoint made anew
	URL string
	// Types are the events that it wants of those that are for all; none: every one.
	Types       []string
	Description string
	// Disabled tells why nothing is sent to it: by_caller, gone or failing. Empty: it is active.
	Disabled   string
	DisabledAt time.Time
	// Version of its secret. The one before signs too until PreviousUntil.
	Version       int32
	PreviousUntil time.Time
	// FailingSince is when the failures began that have not stopped since; FailedAt is the last of them, to the hour.
	// Zero: it works.
	FailingSince, FailedAt time.Time
	CreatedAt              time.Time
	// ChangedAt is when a call made it or changed it last: that of Principal, with RequestID.
	ChangedAt            time.Time
	Principal, RequestID string
}

// Why an endpoint is disabled.
const (
	ByCaller = "by_caller"
	Gone     = "gone"    // it answered 410
	Failing  = "failing" // for FailingLimit
)

// Lives and limits of endpoints.
const (
	// DefaultOverlap is how long the secret before goes on signing after a new one was made.
	DefaultOverlap = 24 * time.Hour
	// FailingLimit is after how long of nothing but failures an endpoint is disabled.
	FailingLimit = 5 * 24 * time.Hour
	// Failures further apart than this are not on end.
	apart = 24 * time.Hour
	// How often failures are written down at most.
	noted = time.Hour
)

// Secrets are those that sign now, the newest first.
func (e *Endpoint) Secrets(m *secret.Master, now time.Time) []Secret {
	secrets := []Secret{SecretOf(m, e.Tenant, e.ID, e.Version)}
	if e.PreviousUntil.After(now) {
		secrets = append(secrets, SecretOf(m, e.Tenant, e.ID, e.Version-1))
	}
	return secrets
}

// Wants tells whether the endpoint is to get events of a type that are for all.
func (e *Endpoint) Wants(event string) bool {
	if e.Disabled != "" {
		return false
	}
	for _, t := range e.Types {
		if t == event {
			return true
		}
	}
	return len(e.Types) == 0
}
