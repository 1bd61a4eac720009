package notify

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// The states of a message. It is open in the first five: in the queue.
const (
	Queued      = "queued"
	Sending     = "sending" // an attempt of one that may not be sent twice has begun
	Failed      = "failed"  // another attempt follows
	Unknown     = "unknown" // nobody knows: a report or a person decides
	Dead        = "dead"    // a person decides
	Sent        = "sent"
	Delivered   = "delivered"
	Undelivered = "undelivered"
	Cancelled   = "cancelled"
)

// requeued is an event that is no state.
const requeued = "requeued"

// What to do when nobody knows whether an attempt sent a message.
const (
	Park   = "park"   // it is unknown
	Resend = "resend" // to the same provider, with the same key
	Never  = "never"  // as Park, and nobody may requeue it
)

// Priorities.
const (
	High   int16 = 0
	Normal int16 = 1
	Low    int16 = 2
)

// Key names a message.
type Key struct {
	Tenant int32
	ID     int64
}

// Message is a message as it is known, without its recipient and content.
type Message struct {
	Key
	Month         time.Time // first day of the month of AcceptedAt
	Channel       send.Channel
	BusinessType  string
	BizNo         string // empty: none
	Template      string // name@version; empty: the caller wrote it
	Locale        string
	RecipientHash []byte
	RecipientHint string // masked
	ContentHash   []byte
	Priority      int16
	OnUnknown     string
	MaxAttempts   int32
	NotBefore     time.Time // zero: at once
	GiveUpAt      time.Time
	ContentsUntil time.Time // a day: recipient and content are gone from its beginning on
	AcceptedAt    time.Time
	Principal     string
	RequestID     string

	State    string
	Attempts int32     // while it is open
	DueAt    time.Time // of the next attempt, while it is queued or failed
	Provider string    // who failed last, or took it
	Code     string    // what went wrong last
	reported string    // Delivered or Undelivered, also while it is open; empty: nobody has
}

// open tells whether it is in the queue.
func (m *Message) open() bool {
	switch m.State {
	case Queued, Sending, Failed, Unknown, Dead:
		return true
	}
	return false
}

func messageOf(k Key, r *db.MessageLoadRow) *Message {
	m := &Message{Key: k, Month: r.Month.Time, Channel: send.Channel(r.Channel), BusinessType: r.BusinessType,
		BizNo:    pg.OrZero(r.BizNo),
		Template: pg.OrZero(r.Template), Locale: pg.OrZero(r.Locale), RecipientHash: r.RecipientHash,
		RecipientHint: r.RecipientHint,
		ContentHash:   r.ContentHash, Priority: r.Priority, OnUnknown: r.OnUnknown, MaxAttempts: r.MaxAttempts,
		NotBefore: pg.OrZero(r.NotBefore).UTC(),
		GiveUpAt:  r.GiveUpAt.UTC(), ContentsUntil: r.ContentsUntil.Time, AcceptedAt: r.AcceptedAt.UTC(),
		Principal: r.Principal, RequestID: r.RequestID}
	if r.Ended == Delivered || r.Ended == Undelivered {
		m.reported = r.Ended
	}
	if r.State == "" {
		m.State, m.Provider, m.Code = r.Ended, r.EndedProvider, r.EndedCode
		return m
	}
	m.State, m.Attempts, m.MaxAttempts, m.Provider, m.Code = r.State, r.Attempts, r.OpenMaxAttempts, r.OpenProvider,
		r.OpenCode
	m.GiveUpAt = r.OpenGiveUpAt.UTC()
	if m.State == Queued || m.State == Failed {
		m.DueAt = pg.OrZero(r.DueAt).UTC()
	}
	return m
}

// dayAfter is the first midnight, UTC, at or after a time.
func dayAfter(t time.Time) time.Time {
	day := t.UTC().Truncate(24 * time.Hour)
	if day.Before(t) {
		day = day.Add(24 * time.Hour)
	}
	return day
}

func monthOf(t time.Time) time.Time {
	year, month, _ := t.UTC().Date()
	return time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
}

func date(t time.Time) pgtype.Date { return pgtype.Date{Time: t, Valid: true} }
