package stock

import (
	"hash/maphash"
	"slices"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// Tx holds the stock of one batch's transaction. Commands declare rows and get handles, which the load fills in. It is
// not safe for concurrent use.
type Tx struct {
	sets
	direct   bool
	layouts  *Layouts
	strategy string // of a direct command over one segment; else Batched

	items     map[ItemKey]*item
	segments  []*segment // of all items; in lock order from Lock or Read on
	contested bool       // some item has, as last known, a direct strategy

	details      commit.Rows[ItemKey, Details]
	puts         bool // items are created or updated by PutItem
	reservations commit.Rows[numbered, Reservation]
	changes      commit.Rows[numbered, Change]
	expired      []expired // reservations that no command named

	resolved bool
	made     []int64 // ids since Mark
	saves    []save
	gen      uint64
}

type sets = commit.Sets

type expired struct {
	key numbered
	Reservation
}

// save is a row before its first change since Mark.
type save struct {
	s   *segment
	old segment
}

var (
	q                db.Queries
	detailTable      = commit.NewKeyOrder[ItemKey, Details](ItemKey.compare)
	reservationTable = commit.NewKeyOrder[numbered, Reservation](numbered.compare)
	changeTable      = commit.NewKeyOrder[numbered, Change](numbered.compare)
	segmentSeed      = maphash.MakeSeed()
)

var _ commit.Optimistic = (*Tx)(nil)

// NewTx returns the stock of an empty batch, or of a direct command. It uses and corrects the server's memory of
// layouts.
func NewTx(direct bool, layouts *Layouts) *Tx {
	tx := &Tx{direct: direct, layouts: layouts, strategy: Batched, items: make(map[ItemKey]*item),
		details: detailTable.Rows(), reservations: reservationTable.Rows(), changes: changeTable.Rows()}
	tx.sets = commit.SetsOf(&tx.details, &tx.reservations, &tx.changes)
	return tx
}

// NameConstraints returns the unique constraints on names chosen by callers.
func NameConstraints() []string {
	return []string{"stock_items_pkey", "stock_item_details_pkey", "stock_reservations_pkey",
		"stock_change_names_pkey"}
}

// item declares an item to lock and load, with at least a number of segments.
func (tx *Tx) item(tenant int32, name string, segments int) *item {
	k := ItemKey{tenant, name}
	i := tx.items[k]
	if i == nil {
		i = &item{ItemKey: k, layouts: tx.layouts}
		tx.items[k] = i
		l := tx.layouts.of(k)
		segments = max(segments, l.segments)
		tx.contested = tx.contested || l.strategy != Batched
	}
	for n := len(i.rows); n < segments; n++ {
		s := &segment{ItemKey: k, number: int16(n)}
		i.rows = append(i.rows, s)
		tx.segments = append(tx.segments, s)
	}
	return i
}

// reservation declares a reservation's number.
func (tx *Tx) reservation(i *item, no string) *commit.Row[numbered, Reservation] {
	return tx.reservations.Want(numbered{i.ItemKey, no})
}

// change returns a segment for modification.
func (tx *Tx) change(s *segment) *segment {
	if s.saved != tx.gen || tx.gen == 0 {
		tx.saves = append(tx.saves, save{s, *s})
		s.saved = tx.gen
	}
	s.dirty = true
	s.version++
	return s
}

// makeID returns the id of a new row.
func (tx *Tx) makeID() int64 {
	tx.made = append(tx.made, tx.ID())
	return tx.made[len(tx.made)-1]
}

// Mark sets the savepoint for Undo.
func (tx *Tx) Mark() {
	tx.gen++
	tx.made, tx.saves = tx.made[:0], tx.saves[:0]
	tx.sets.Mark()
}

// Undo reverts all changes since Mark.
func (tx *Tx) Undo() {
	for _, save := range slices.Backward(tx.saves) {
		*save.s = save.old
	}
	tx.saves = tx.saves[:0]
	tx.gen++
	tx.sets.Undo()
}
