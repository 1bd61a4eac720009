package notify

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/internal/db"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/template"
)

var q db.Queries

// Tx has the messages of one batch's transaction. It is the outbox's commit.Participant. Whatever it locks are names to
// a batch that overlaps, as submit tokens are: batches of this process with one in common run one behind the other, and
// those of others lock in the same order before all that many share.
type Tx struct {
	commit.Base

	// Templates opens the templates of the same batch. Nil: there are none.
	Templates func() *template.Tx

	outbox *Outbox
	opened time.Time // by this process's clock, before the database's was read
	now    time.Time
	// recorded is when messages are said to be accepted: their month is found by the time of their batch.
	recorded time.Time
	newID    func() int64

	names    commit.Rows[nameKey, name]
	prints   commit.Rows[printKey, print]
	queue    commit.Rows[Key, queued]
	counters commit.Rows[counterKey, counter]

	sends   []*limited // whose counters are not yet known
	limits  map[int32][]Limit
	dead    []*deadSet // of whom it is not yet known who they are
	reports []*ReportCommand

	wanted []Key            // messages to be loaded
	loaded map[Key]*Message // nil: there is none
	late   map[printKey]*printRow

	made   []*made
	events []event
	marks  struct{ made, events, lates int }
	lates  []printKey

	taken            []*send.Job // for which room was reserved
	due              map[int32]bool
	repeats, limited []tally
}

type nameKey struct {
	tenant int32
	bizNo  string
}

// name is the message that has a biz_no.
type name struct {
	id   int64
	hash []byte // of what was asked for
	made *Message
}

type printKey struct {
	tenant  int32
	channel send.Channel
	hash    [hashSize]byte
}

// print is the message that was the last with a fingerprint.
type print struct {
	id        int64
	expiresAt time.Time
	tid       pgtype.TID
	made      *Message // by this batch
}

// queued is what is open of a message, and what commands of the batch made of it.
type queued struct {
	state     string // also one that is not open; empty: as it was loaded
	reported  string // Delivered or Undelivered, by a command of the batch
	dueAt     time.Time
	holder    string
	onUnknown string
	unsure    bool
	giveUpAt  time.Time
	tid       pgtype.TID
	requeued  bool
	gone      bool // cancelled, or settled by a report
}

type counterKey struct {
	tenant         int32
	channel, scope string
	seconds        int32
	subject        string
}

// counter counts what a limit limits.
type counter struct {
	window
	tid pgtype.TID
}

type (
	nameRow    = commit.Row[nameKey, name]
	printRow   = commit.Row[printKey, print]
	queueRow   = commit.Row[Key, queued]
	counterRow = commit.Row[counterKey, counter]
)

func compareNames(a, b nameKey) int {
	return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.bizNo, b.bizNo))
}

func comparePrints(a, b printKey) int {
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
	nameSeed, printSeed, queueSeed, counterSeed = maphash.MakeSeed(), maphash.MakeSeed(), maphash.MakeSeed(),
		maphash.MakeSeed()

	_ commit.Participant = (*Tx)(nil)
	_ commit.Observer    = (*Tx)(nil)
)

// NewTx makes an empty one. A nil outbox refuses messages.
func NewTx(o *Outbox) *Tx {
	if o == nil {
		o = &Outbox{}
	}
	return &Tx{outbox: o, opened: time.Now(), names: commit.NewRows[nameKey, name](nameSeed),
		prints: commit.NewRows[printKey, print](printSeed),
		queue:  commit.NewRows[Key, queued](queueSeed), counters: commit.NewRows[counterKey, counter](counterSeed),
		limits: map[int32][]Limit{}, loaded: map[Key]*Message{}, late: map[printKey]*printRow{}}
}

// NameConstraints are the unique constraints over what callers choose, and over what is counted for them.
func NameConstraints() []string {
	return []string{"notify_names_pkey", "notify_fingerprints_pkey", "notify_counters_pkey"}
}

// Latch owns the callers' numbers, the fingerprints, the messages that are to be changed, and the counters.
func (tx *Tx) Latch(l *commit.Latches) {
	tx.names.Latch(l)
	tx.prints.Latch(l)
	tx.queue.Latch(l)
	tx.counters.Latch(l)
}

// CanOverlap: commands see nothing but what they own.
func (tx *Tx) CanOverlap() bool { return true }

// Start takes the batch's time and its source of ids.
func (tx *Tx) Start(at commit.Times, newID func() int64) {
	now := at.Now
	tx.now, tx.recorded, tx.newID = now, at.Recorded, newID
	tx.names.Start(at, newID)
	tx.prints.Start(at, newID)
	tx.queue.Start(at, newID)
	tx.counters.Start(at, newID)
	for _, r := range tx.names.Sorted(compareNames) {
		if r.Found {
			tx.wanted = append(tx.wanted, Key{r.Key.tenant, r.Value.id})
		}
	}
	for _, r := range tx.prints.Sorted(comparePrints) {
		if r.Found && r.Value.expiresAt.After(now) {
			tx.wanted = append(tx.wanted, Key{r.Key.tenant, r.Value.id})
		}
	}
	for _, r := range tx.queue.Sorted(compareKeys) {
		tx.wanted = append(tx.wanted, r.Key)
	}
}

// started tells whether rows can no longer be asked for.
func (tx *Tx) started() bool { return tx.newID != nil }

// Mark is where the next Undo goes back to.
func (tx *Tx) Mark() {
	tx.names.Mark()
	tx.prints.Mark()
	tx.queue.Mark()
	tx.counters.Mark()
	tx.marks.made, tx.marks.events, tx.marks.lates = len(tx.made), len(tx.events), len(tx.lates)
}

// Undo takes back what was made and changed since Mark.
func (tx *Tx) Undo() {
	tx.names.Undo()
	tx.prints.Undo()
	tx.queue.Undo()
	tx.counters.Undo()
	for _, k := range tx.lates[tx.marks.lates:] {
		delete(tx.late, k)
	}
	tx.made, tx.events, tx.lates = tx.made[:tx.marks.made], tx.events[:tx.marks.events], tx.lates[:tx.marks.lates]
}

// message is a message as the batch has it now, or nil.
func (tx *Tx) message(k Key) *Message {
	m := tx.loaded[k]
	if m == nil {
		return nil
	}
	now := *m
	if r := tx.queue.Known(k); r != nil {
		now.State, now.reported = cmp.Or(r.Value.state, now.State), cmp.Or(r.Value.reported, now.reported)
		if r.Found {
			now.GiveUpAt = r.Value.giveUpAt
		}
	}
	return &now
}
