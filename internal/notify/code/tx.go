package code

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/code/internal/db"
)

// Tx holds the codes of one batch and is their commit.Participant.
type Tx struct {
	rows
	outbox *notify.Outbox
	keys   map[int32]keys
	asked  []asked

	tallies []tally // counted if the batch commits
	mark    int
	refused []tally
}

type rows = commit.Rows[key, row]

type key struct {
	tenant int32
	kind   string
	hash   [16]byte // of channel and recipient
}

func compareKeys(a, b key) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.kind, b.kind), bytes.Compare(a.hash[:], b.hash[:]))
}

// States of a code.
const (
	open = "open"
	used = "used"
	none = "none" // only wrong tries are recorded, no code
)

// row is a row of notify_codes. sentAt is never changed in place, so that Undo works.
type row struct {
	channel, hint string
	state         string
	nonce         Nonce
	hash          [sha256.Size]byte
	tries         int32
	maxTries      int32
	triedAt       time.Time   // of the last wrong try; zero: none
	messageID     int64       // 0: none
	sentAt        []time.Time // of everyType: times of wrong tries
	expiresAt     time.Time
	forgetAt      time.Time
	principal     string
	requestID     string
	tid           pgtype.TID

	unsent bool // the message will certainly not arrive
}

// sent returns when the last code was sent; zero: never.
func (r *row) sent() (last time.Time) {
	if n := len(r.sentAt); n > 0 {
		last = r.sentAt[n-1]
	}
	return last
}

// lately returns the times within the last 24 hours.
func (r *row) lately(now time.Time) []time.Time {
	for i, at := range r.sentAt {
		if at.Add(day).After(now) {
			return r.sentAt[i:len(r.sentAt):len(r.sentAt)]
		}
	}
	return nil
}

// forget returns the time from which the row is not needed.
func (r *row) forget() time.Time {
	at := r.expiresAt
	if last := r.sent(); !last.IsZero() && last.Add(day).After(at) {
		at = last.Add(day)
	}
	if until := r.triedAt.Add(triesLife); !r.triedAt.IsZero() && until.After(at) {
		at = until
	}
	return at
}

var (
	q     db.Queries
	table = commit.NewKeyOrder[key, row](compareKeys)

	_ commit.Participant = (*Tx)(nil)
	_ commit.Observer    = (*Tx)(nil)
)

// NewTx returns an empty transaction. With a nil outbox it refuses codes.
func NewTx(o *notify.Outbox) *Tx {
	if o == nil {
		o = &notify.Outbox{}
	}
	return &Tx{rows: table.Rows(), outbox: o, keys: map[int32]keys{}}
}

// NameConstraints returns the unique constraints whose violation means that the batch has to run again.
func NameConstraints() []string { return []string{"notify_codes_pkey"} }

func (tx *Tx) keysOf(tenant int32) keys {
	k, ok := tx.keys[tenant]
	if !ok {
		k = keysOf(tx.outbox.Master, tenant)
		tx.keys[tenant] = k
	}
	return k
}

// CanOverlap returns true: commands see only latched rows.
func (tx *Tx) CanOverlap() bool { return true }

// Lock locks and loads the rows, sorted by key.
func (tx *Tx) Lock(p *commit.Pipe) {
	wanted := tx.Sorted()
	if len(wanted) == 0 {
		return
	}
	var arg db.CodeLockParams
	for _, r := range wanted {
		arg.Tenants = append(arg.Tenants, r.Key.tenant)
		arg.Types = append(arg.Types, r.Key.kind)
		arg.RecipientHashes = append(arg.RecipientHashes, r.Key.hash[:])
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.CodeLock(p.Context(), d, arg)
		for i := range found {
			f := &found[i]
			v := row{channel: f.Channel, hint: f.RecipientHint, state: f.State, nonce: Nonce(f.Nonce),
				hash: [sha256.Size]byte(f.CodeHash), tries: f.Tries,
				maxTries: f.MaxTries, sentAt: f.SentAt, expiresAt: f.ExpiresAt, forgetAt: f.ForgetAt,
				principal: f.Principal, requestID: f.RequestID, tid: f.Ctid}
			if f.TriedAt != nil {
				v.triedAt = *f.TriedAt
			}
			if f.MessageID != nil {
				v.messageID = *f.MessageID
			}
			tx.Load(wanted[f.N-1], v)
		}
		return err
	})
}

// Resolve reads whether messages of the last codes are dead, cancelled or undelivered. Such a code is void, and does
// not delay the next one.
func (tx *Tx) Resolve(p *commit.Pipe) {
	var arg db.CodeUnsentParams
	var of []*commit.Row[key, row]
	for _, a := range tx.asked {
		r := &a.row.Value
		if a.row.Found && r.messageID != 0 &&
			(tx.Now.Before(r.sent().Add(a.interval)) || r.state == open && tx.Now.Before(r.expiresAt)) {
			year, month, _ := r.sent().UTC().Date()
			of = append(of, a.row)
			arg.Tenants, arg.MessageIds = append(arg.Tenants, a.tenant), append(arg.MessageIds, r.messageID)
			arg.Months = append(arg.Months,
				pgtype.Date{Time: time.Date(year, month, 1, 0, 0, 0, 0, time.UTC), Valid: true})
		}
	}
	tx.asked = nil
	if len(of) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.CodeUnsent(p.Context(), d, arg)
		for _, n := range found {
			of[n-1].Value.unsent = true
		}
		return err
	})
}

func (tx *Tx) Mark() {
	tx.rows.Mark()
	tx.mark = len(tx.tallies)
}

func (tx *Tx) Undo() {
	tx.rows.Undo()
	tx.tallies = tx.tallies[:tx.mark]
}

// Flush writes codes.
func (tx *Tx) Flush(p *commit.Pipe) {
	if fresh := tx.Fresh(); len(fresh) > 0 {
		arg := insertParams(fresh)
		p.Queue(func(d commit.DB) error { return q.CodeInsert(p.Context(), d, arg) })
	}
	if changed := tx.Changed(); len(changed) > 0 {
		w := insertParams(changed)
		arg := db.CodeUpdateParams{RecipientHashes: w.RecipientHashes, RecipientHints: w.RecipientHints,
			States: w.States, Nonces: w.Nonces,
			CodeHashes: w.CodeHashes, Tries: w.Tries, MaxTries: w.MaxTries, TriedAt: w.TriedAt,
			MessageIds: w.MessageIds, SentAt: w.SentAt, ExpiresAt: w.ExpiresAt,
			ForgetAt: w.ForgetAt, Principals: w.Principals, RequestIds: w.RequestIds}
		for _, r := range changed {
			arg.Tids = append(arg.Tids, r.Value.tid)
		}
		p.Queue(func(d commit.DB) error { return q.CodeUpdate(p.Context(), d, arg) })
	}
}

func insertParams(list []*commit.Row[key, row]) (arg db.CodeInsertParams) {
	for _, r := range list {
		v := &r.Value
		sent := make([]string, len(v.sentAt))
		for i, at := range v.sentAt {
			sent[i] = at.UTC().Format(time.RFC3339Nano)
		}
		arg.Tenants = append(arg.Tenants, r.Key.tenant)
		arg.Types = append(arg.Types, r.Key.kind)
		arg.RecipientHashes = append(arg.RecipientHashes, r.Key.hash[:])
		arg.Channels = append(arg.Channels, v.channel)
		arg.RecipientHints = append(arg.RecipientHints, v.hint)
		arg.States = append(arg.States, v.state)
		arg.Nonces = append(arg.Nonces, v.nonce[:])
		arg.CodeHashes = append(arg.CodeHashes, v.hash[:])
		arg.Tries = append(arg.Tries, v.tries)
		arg.MaxTries = append(arg.MaxTries, v.maxTries)
		arg.TriedAt = append(arg.TriedAt, v.triedAt)
		arg.MessageIds = append(arg.MessageIds, v.messageID)
		arg.SentAt = append(arg.SentAt, strings.Join(sent, ","))
		arg.ExpiresAt = append(arg.ExpiresAt, v.expiresAt)
		arg.ForgetAt = append(arg.ForgetAt, v.forget())
		arg.Principals = append(arg.Principals, v.principal)
		arg.RequestIds = append(arg.RequestIds, v.requestID)
	}
	return arg
}

// tally is an outcome to count.
type tally struct{ what, channel, place string }

// Ended counts refusals, and, if the batch has committed, its outcomes.
func (tx *Tx) Ended(durable bool) {
	happened := tx.refused
	if durable {
		happened = append(happened, tx.tallies...)
	}
	for _, t := range happened {
		tx.outbox.Metrics.Code(t.what, t.channel, t.place)
	}
	tx.tallies, tx.refused = nil, nil
}
