package webhook

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/notify/secret"
)

// Key identifies an endpoint.
type Key struct {
	Tenant int32
	Name   string
}

// Endpoint is a receiver of events.
type Endpoint struct {
	Key
	ID  int64 // changes when an endpoint of the same name is recreated
	URL string
	// Types are the event types that the endpoint subscribes to; empty: all. They apply to published events, not to
	// messages that name the endpoint.
	Types       []string
	Description string
	// Disabled is the reason why the endpoint is disabled: by_caller, gone or failing. Empty: active.
	Disabled   string
	DisabledAt time.Time
	// Version of the secret. The previous version also signs until PreviousExpiresAt.
	Version           int32
	PreviousExpiresAt time.Time
	// FailingSince is the first of the current failures; FailedAt is the last one recorded, see observeInterval. Zero:
	// no failures.
	FailingSince, FailedAt time.Time
	CreatedAt              time.Time
	// ChangedAt, Principal and RequestID are of the last call that created or changed the endpoint.
	ChangedAt            time.Time
	Principal, RequestID string
}

// Reasons why an endpoint is disabled.
const (
	ByCaller = "by_caller"
	Gone     = "gone"    // answered 410
	Failing  = "failing" // failed for FailingLimit
)

const (
	// DefaultOverlap is how long the previous secret keeps signing after a rotation.
	DefaultOverlap = 24 * time.Hour
	// FailingLimit is how long failures must continue to disable an endpoint.
	FailingLimit = 5 * 24 * time.Hour
	// maxGap is the longest time between failures that count as continuous.
	maxGap = 24 * time.Hour
	// observeInterval is the minimum time between recorded failures.
	observeInterval = time.Hour
)

// Secrets returns the secrets that sign now, the newest first.
func (e *Endpoint) Secrets(m *secret.Master, now time.Time) []Secret {
	secrets := []Secret{SecretOf(m, e.Tenant, e.ID, e.Version)}
	if e.PreviousExpiresAt.After(now) {
		secrets = append(secrets, SecretOf(m, e.Tenant, e.ID, e.Version-1))
	}
	return secrets
}

// Wants reports whether the endpoint subscribes to an event type.
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
