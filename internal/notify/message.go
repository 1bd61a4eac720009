package notify

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// States of a message. The first five are open: the message has a row in notify_queue.
const (
	Queued      = "queued"
	Sending     = "sending" // an attempt that must not be repeated has begun
	Failed      = "failed"  // another attempt follows
	Unknown     = "unknown" // it may have been sent; settled by a report or an operator
	Dead        = "dead"    // requeued or cancelled by an operator
	Sent        = "sent"
	Delivered   = "delivered"
	Undelivered = "undelivered"
	Cancelled   = "cancelled"
)

// requeued is the kind of an event, and not a state.
const requeued = "requeued"

// Policies for an attempt with unknown outcome.
const (
	Park   = "park"   // the message becomes unknown
	Resend = "resend" // to the same provider, with the same key
	Never  = "never"  // as Park, and the message cannot be requeued
)

const (
	High   int16 = 0
	Normal int16 = 1
	Low    int16 = 2
)

// Key identifies a message.
type Key struct {
	Tenant int32
	ID     int64
}

// Message is a message without its recipient and content.
type Message struct {
	Key
	Month         time.Time // first day of the month of AcceptedAt
	Channel       send.Channel
	BusinessType  string
	BizNo         string // empty: none
	Template      string // name@version; empty: not from a template
	Locale        string
	RecipientHash []byte
	RecipientHint string // masked
	ContentHash   []byte
	Priority      int16
	OnUnknown     string
	MaxAttempts   int32
	NotBefore     time.Time // zero: at once
	GiveUpAt      time.Time
	ContentsUntil time.Time // midnight UTC from which recipient and content cannot be read
	AcceptedAt    time.Time
	Principal     string
	RequestID     string

	State       string
	Attempts    int32     // while open
	DueAt       time.Time // of the next attempt, if queued or failed
	Provider    string    // of the last failure, or that accepted it
	FailureCode string    // of the last failure
	reported    string    // Delivered or Undelivered, even if still open; empty: not reported
}

// open reports whether the message has a row in notify_queue.
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
		NotBefore: pg.OrZero(r.NotBefore),
		GiveUpAt:  r.GiveUpAt, ContentsUntil: r.ContentsUntil.Time, AcceptedAt: r.AcceptedAt,
		Principal: r.Principal, RequestID: r.RequestID}
	if r.Ended == Delivered || r.Ended == Undelivered {
		m.reported = r.Ended
	}
	if r.State == "" {
		m.State, m.Provider, m.FailureCode = r.Ended, r.EndedProvider, r.EndedFailureCode
		return m
	}
	m.State, m.Attempts, m.MaxAttempts = r.State, r.Attempts, r.OpenMaxAttempts
	m.Provider, m.FailureCode = r.OpenProvider, r.OpenFailureCode
	m.GiveUpAt = r.OpenGiveUpAt
	if m.State == Queued || m.State == Failed {
		m.DueAt = pg.OrZero(r.DueAt)
	}
	return m
}

// dayAfter returns the first midnight UTC at or after t.
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
