package notify

import (
	"bytes"
	"cmp"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

var q db.Queries

// Tx holds the messages of one batch and is the outbox's commit.Participant. It latches every row that it locks, so
// batches of this process with a row in common run one after the other. Batches of other processes lock the rows in the
// same order, before any rows that many batches share.
type Tx struct {
	sets

	// Templates returns the templates of the same batch. May be nil.
	Templates func() *template.Tx

	outbox *Outbox
	opened time.Time // by this process's clock, before the database clock was read
	// recorded is the batch's recorded time, in whose month messages are stored.
	recorded time.Time

	names        commit.Rows[nameKey, name]
	fingerprints commit.Rows[fingerprintKey, fingerprint]
	queue        commit.Rows[Key, queued]
	counters     commit.Rows[counterKey, counter]

	sends   []*counted // whose counters are not known yet
	limits  map[int32][]Limit
	dead    []*deadSet // filters whose rows are not known yet
	reports []*ReportCommand

	wanted []Key                              // messages to load
	loaded map[Key]*Message                   // nil: the message does not exist
	late   map[fingerprintKey]*fingerprintRow // inserted without a lookup, see needLate

	created []*created
	byKey   map[Key]*created
	revoked []*created // cancelled by the same batch
	events  []event
	marks   struct{ created, revoked, events, lates int }
	lates   []fingerprintKey

	jobs             []*send.Job // leased to this process
	due              map[int32]bool
	repeats, limited []tally
}

type sets = commit.Sets

type nameKey struct {
	tenant int32
	bizNo  string
}

// name is the message that a biz_no names.
type name struct {
	id      int64
	hash    []byte // of the request
	created *Message
}

type fingerprintKey struct {
	tenant  int32
	channel send.Channel
	hash    [hashSize]byte
}

// fingerprint is the newest message with a fingerprint.
type fingerprint struct {
	id        int64
	expiresAt time.Time
	tid       pgtype.TID
	created   *Message // if this batch inserted it
}

// queued is a row of notify_queue, with the changes of this batch.
type queued struct {
	state     string // may be a final one; empty: as loaded
	reported  string // Delivered or Undelivered, if reported by this batch
	dueAt     time.Time
	holder    string
	onUnknown string
	unsure    bool
	giveUpAt  time.Time
	tid       pgtype.TID
	requeued  bool
	gone      bool // cancelled, or settled by a report: delete the row
}

type counterKey struct {
	tenant         int32
	channel, scope string
	seconds        int32
	subject        string
}

// counter is a row of notify_counters: the count of one limit.
type counter struct {
	window
	tid pgtype.TID
}

type (
	nameRow        = commit.Row[nameKey, name]
	fingerprintRow = commit.Row[fingerprintKey, fingerprint]
	queueRow       = commit.Row[Key, queued]
	counterRow     = commit.Row[counterKey, counter]
)

func compareNames(a, b nameKey) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.bizNo, b.bizNo))
}

func compareFingerprints(a, b fingerprintKey) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.channel, b.channel),
		bytes.Compare(a.hash[:], b.hash[:]))
}

func compareKeys(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.ID, b.ID))
}

func compareCounters(a, b counterKey) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.channel, b.channel), cmp.Compare(a.scope, b.scope),
		cmp.Compare(a.seconds, b.seconds), cmp.Compare(a.subject, b.subject))
}

var (
	nameTable        = commit.NewKeyOrder[nameKey, name](compareNames)
	fingerprintTable = commit.NewKeyOrder[fingerprintKey, fingerprint](compareFingerprints)
	queueTable       = commit.NewKeyOrder[Key, queued](compareKeys)
	counterTable     = commit.NewKeyOrder[counterKey, counter](compareCounters)

	_ commit.Participant = (*Tx)(nil)
	_ commit.Observer    = (*Tx)(nil)
)

// NewTx returns an empty transaction. With a nil outbox it refuses messages.
func NewTx(o *Outbox) *Tx {
	if o == nil {
		o = &Outbox{}
	}
	tx := &Tx{outbox: o, opened: time.Now(), names: nameTable.Rows(), fingerprints: fingerprintTable.Rows(),
		queue: queueTable.Rows(), counters: counterTable.Rows(),
		byKey: map[Key]*created{}, limits: map[int32][]Limit{}, loaded: map[Key]*Message{},
		late: map[fingerprintKey]*fingerprintRow{}}
	tx.sets = commit.SetsOf(&tx.names, &tx.fingerprints, &tx.queue, &tx.counters)
	return tx
}

// NameConstraints returns the unique constraints whose violation means that the batch has to run again.
func NameConstraints() []string {
	return []string{"notify_names_pkey", "notify_fingerprints_pkey", "notify_counters_pkey"}
}

// CanOverlap returns true: commands see only latched rows, and limits, which may be out of date by limitCacheTTL.
func (tx *Tx) CanOverlap() bool { return true }

// Start implements commit.Participant. It also requests the messages that the locked rows refer to.
func (tx *Tx) Start(at commit.Times, newID func() int64) {
	tx.sets.Start(at, newID)
	tx.recorded = at.Recorded
	for _, r := range tx.names.Sorted() {
		if r.Found {
			tx.wanted = append(tx.wanted, Key{r.Key.tenant, r.Value.id})
		}
	}
	for _, r := range tx.fingerprints.Sorted() {
		if r.Found && r.Value.expiresAt.After(tx.Now) {
			tx.wanted = append(tx.wanted, Key{r.Key.tenant, r.Value.id})
		}
	}
	for _, r := range tx.queue.Sorted() {
		tx.wanted = append(tx.wanted, r.Key)
	}
}

// started reports whether it is too late to request rows.
func (tx *Tx) started() bool { return tx.ID != nil }

func (tx *Tx) Mark() {
	tx.sets.Mark()
	tx.marks.created, tx.marks.events, tx.marks.lates = len(tx.created), len(tx.events), len(tx.lates)
	tx.marks.revoked = len(tx.revoked)
}

func (tx *Tx) Undo() {
	tx.sets.Undo()
	for _, k := range tx.lates[tx.marks.lates:] {
		delete(tx.late, k)
	}
	for _, m := range tx.created[tx.marks.created:] {
		delete(tx.byKey, m.Key)
	}
	for _, m := range tx.revoked[tx.marks.revoked:] {
		m.revoked = false
	}
	tx.created, tx.events = tx.created[:tx.marks.created], tx.events[:tx.marks.events]
	tx.lates, tx.revoked = tx.lates[:tx.marks.lates], tx.revoked[:tx.marks.revoked]
}

// message returns a loaded message with the batch's changes, or nil.
func (tx *Tx) message(k Key) *Message {
	m := tx.loaded[k]
	if m == nil {
		return nil
	}
	now := *m
	if r := tx.queue.Wanted(k); r != nil {
		now.State, now.reported = cmp.Or(r.Value.state, now.State), cmp.Or(r.Value.reported, now.reported)
		if r.Found {
			now.GiveUpAt = r.Value.giveUpAt
		}
	}
	return &now
}
