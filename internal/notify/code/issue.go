package code

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/notify/recipient"
	"github.com/ledgerd/ledgerd/internal/notify/send"
)

// Issue is the part of a command that creates a code; the other part sends the message. Call its methods in the order
// below, in every attempt of a batch.
type Issue struct {
	commit.Caller
	Type      string
	Channel   send.Channel // SMS or Email
	Recipient string       // as the caller writes it
	Code      string       // see New; a repeated attempt uses the same code
	Nonce     Nonce        // see NewNonce
	Life      time.Duration
	Interval  time.Duration
	Daily     int // limit per 24 hours
	// Suppress sends nothing and stores a code that never verifies. All answers are as if a code had been sent.
	Suppress bool

	target
}

// Need requests the recipient's rows.
func (i *Issue) Need(tx *Tx) {
	i.target = tx.want(i.Tenant, i.Type, i.Channel, i.Recipient, i.Interval)
}

// Allowed returns an error if no code may be sent now: faults CODE_TRIES_SPENT, CODE_TOO_SOON, CODE_TOO_MANY,
// SECRET_NOT_CONFIGURED or FIELD_INVALID.
func (i *Issue) Allowed(tx *Tx) error {
	if i.err != nil {
		return i.err
	}
	if err := i.checkTries(tx, i.Channel); err != nil { // the code could not be verified
		return err
	}
	v := &i.row.Value
	if !i.row.Exists {
		return nil
	}
	if free := v.sent().Add(i.Interval); tx.Now.Before(free) && !v.unsent {
		tx.refused = append(tx.refused, tallyOf("too_soon", i.Channel, i.to))
		return wait(TooSoon.New("a code was sent only a moment ago"), free.Sub(tx.Now))
	}
	if sent := v.lately(tx.Now); len(sent) >= i.Daily {
		tx.refused = append(tx.refused, tallyOf("too_many", i.Channel, i.to))
		return wait(TooMany.New("no more than %d codes may be sent in 24 hours", i.Daily),
			sent[len(sent)-i.Daily].Add(day).Sub(tx.Now))
	}
	return nil
}

func wait(f *fault.Fault, d time.Duration) *fault.Fault {
	return f.After(d).With("retry_after_seconds", int64((d+time.Second-1)/time.Second))
}

// Issued says when the code expires, and when the next one may be sent.
type Issued struct{ ExpiresAt, NextAt time.Time }

// Done stores the code that the message contains, and voids the previous one. messageID 0: suppressed.
func (i *Issue) Done(tx *Tx, messageID int64) Issued {
	v := i.row.Value
	sent := append(v.lately(tx.Now), tx.Now)
	next := row{channel: string(i.Channel), hint: recipient.Mask(i.Channel, i.to), state: open, nonce: i.Nonce,
		maxTries: MaxTries, messageID: messageID,
		sentAt: sent[max(0, len(sent)-MaxDaily):], expiresAt: tx.Now.Add(i.Life), principal: i.Principal,
		requestID: i.RequestID, tid: v.tid}
	next.hash = i.hash(tx, i.Code)
	what := "sent"
	if messageID == 0 {
		what = "suppressed"
		next.hash = i.hash(tx, "") // never equal to the hash of a code
	}
	*tx.Change(i.row) = next
	tx.record(what, i.Channel, i.to)
	return Issued{next.expiresAt, tx.Now.Add(i.Interval)}
}

func (i *Issue) hash(tx *Tx, code string) [32]byte {
	return hashOf(tx.keysOf(i.Tenant), i.Type, recipient.Same(i.Channel, i.to), i.Nonce, code)
}

func hashOf(k keys, kind, to string, nonce Nonce, code string) [32]byte {
	return keyedHash(k.code, kind, to, string(nonce[:]), code)
}

// record counts an outcome, if the batch commits.
func (tx *Tx) record(what string, channel send.Channel, to string) {
	tx.tallies = append(tx.tallies, tallyOf(what, channel, to))
}

// tallyOf returns a tally with the dial code of phone numbers.
func tallyOf(what string, channel send.Channel, to string) tally {
	t := tally{what: what, channel: string(channel)}
	if channel == send.SMS {
		t.place = recipient.DialCode(to)
	}
	return t
}
