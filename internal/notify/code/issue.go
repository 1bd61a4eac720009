package code

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Issue is a new code for a recipient: one part of a command, whose other part is the message. Its methods are called
// in the order in which they stand here, in every attempt of a batch.
type Issue struct {
	commit.Caller
	Type      string
	Channel   send.Channel // SMS or Email
	Recipient string       // as the caller writes it
	Code      string       // of New: an attempt that runs again issues the same
	Nonce     Nonce        // of NewNonce
	Life      time.Duration
	Interval  time.Duration
	Daily     int // so many in 24 hours
	// Suppress: nothing is sent, and no code will do. All else is as though it had been.
	Suppress bool

	target
}

// Need names the code.
func (i *Issue) Need(b *Book) {
	i.target = b.want(i.Tenant, i.Type, i.Channel, i.Recipient, i.Interval)
}

// Allowed tells whether a code may be sent now. Returns faults CODE_TRIES_SPENT, CODE_TOO_SOON, CODE_TOO_MANY,
// SECRET_NOT_CONFIGURED, FIELD_INVALID.
func (i *Issue) Allowed(b *Book) error {
	if i.err != nil {
		return i.err
	}
	if err := i.spent(b, i.Channel); err != nil { // it could not be verified
		return err
	}
	v := &i.row.Value
	if !i.row.Exists {
		return nil
	}
	if free := v.sent().Add(i.Interval); b.Now.Before(free) && !v.unsent {
		b.refused = append(b.refused, tallyOf("too_soon", i.Channel, i.to))
		return wait(TooSoon.New("a code was sent a moment ago"), free.Sub(b.Now))
	}
	if sent := v.lately(b.Now); len(sent) >= i.Daily {
		b.refused = append(b.refused, tallyOf("too_many", i.Channel, i.to))
		return wait(TooMany.New("no more than %d codes may be sent in 24 hours", i.Daily), sent[len(sent)-i.Daily].Add(day).Sub(b.Now))
	}
	return nil
}

func wait(f *fault.Fault, d time.Duration) *fault.Fault {
	return f.After(d).With("retry_after_seconds", int64((d+time.Second-1)/time.Second))
}

// Issued tells until when a code can be verified, and from when on there may be a new one.
type Issued struct{ ExpiresAt, NextAt time.Time }

// Done keeps the code that the message says; 0: none was sent. The older one is void.
func (i *Issue) Done(b *Book, messageID int64) Issued {
	v := i.row.Value
	sent := append(v.lately(b.Now), b.Now)
	next := row{channel: string(i.Channel), hint: recipient.Mask(i.Channel, i.to), state: open, nonce: i.Nonce, maxTries: MaxTries, messageID: messageID,
		sentAt: sent[max(0, len(sent)-MaxDaily):], expiresAt: b.Now.Add(i.Life), principal: i.Principal, requestID: i.RequestID, tid: v.tid}
	next.hash = i.hash(b, i.Code)
	what := "sent"
	if messageID == 0 {
		what = "suppressed"
		next.hash = i.hash(b, "") // which is no code
	}
	*b.Change(i.row) = next
	b.note(what, i.Channel, i.to)
	return Issued{next.expiresAt, b.Now.Add(i.Interval)}
}

func (i *Issue) hash(b *Book, code string) [32]byte {
	return hashOf(b.keysOf(i.Tenant), i.Type, recipient.Same(i.Channel, i.to), i.Nonce, code)
}

func hashOf(k keys, kind, to string, nonce Nonce, code string) [32]byte {
	return keyed(k.code, kind, to, string(nonce[:]), code)
}

// note counts what happened to a code, when the batch has committed.
func (b *Book) note(what string, channel send.Channel, to string) {
	b.tallies = append(b.tallies, tallyOf(what, channel, to))
}

// tallyOf counts by where numbers are.
func tallyOf(what string, channel send.Channel, to string) tally {
	t := tally{what: what, channel: string(channel)}
	if channel == send.SMS {
		t.place = recipient.DialCode(to)
	}
	return t
}
