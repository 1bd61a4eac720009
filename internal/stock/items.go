package stock

import (
	"hash/maphash"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/stock/internal/db"
)

// Items are shared rows, as accounts are: batches take them over from each other (see commit.Optimistic).

// Latch shares the items, and owns the numbers of reservations and changes.
func (tx *Tx) Latch(l *commit.LatchKeys) {
	for k := range tx.items {
		l.Share(maphash.Comparable(segmentSeed, k))
	}
	tx.reservations.Latch(l)
	tx.changes.Latch(l)
}

// CanOverlap is true unless an item is created or updated by PutItem: everything else depends on items and numbers.
// Items that direct commands change are locked at once: rows taken over would probably fail their confirmation.
func (tx *Tx) CanOverlap() bool { return !tx.puts && !tx.contested }

// TakeOver copies the segments of the preceding batch.
func (tx *Tx) TakeOver(from commit.Participant, writer *commit.RowWriter) {
	other := from.(*Tx)
	for k, i := range tx.items {
		o := other.items[k]
		if o == nil {
			continue
		}
		for n, s := range i.rows[:min(len(i.rows), len(o.rows))] {
			if r := o.rows[n]; r.found {
				s.takeOver(r, writer)
				s.asOf = other.Now
			}
		}
	}
}

func (s *segment) takeOver(r *segment, writer *commit.RowWriter) {
	s.segments, s.strategy, s.Counts = r.segments, r.strategy, r.Counts
	s.version, s.nextExpiryAt = r.version, r.nextExpiryAt
	s.found, s.xmin, s.writer, s.tid = true, r.xmin, r.writer, r.tid
	if r.dirty {
		s.writer, s.tid = writer, pgtype.TID{}
	}
}

// Lock locks and loads the segments, sorted by tenant, item and number. In a direct command the strategy decides.
func (tx *Tx) Lock(p *commit.Pipe) {
	switch tx.strategy {
	case Advisory:
		tx.lockAdvisory(p)
		fallthrough
	case Atomic, Optimistic:
		tx.Read(p)
		return
	}
	arg := segmentNames(tx.sorted())
	if len(arg.Items) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.ItemLock(p.Context(), d, arg)
		for n := range rows {
			tx.load(tx.segments[rows[n].N-1], &rows[n])
		}
		return err
	})
}

// Read loads, without locks, the segments that were not taken over.
func (tx *Tx) Read(p *commit.Pipe) {
	missing := slices.DeleteFunc(slices.Clone(tx.sorted()), func(s *segment) bool { return s.found })
	arg := db.ItemLookupParams(segmentNames(missing))
	if len(arg.Items) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.ItemLookup(p.Context(), d, arg)
		for n := range rows {
			tx.load(missing[rows[n].N-1], (*db.ItemLockRow)(&rows[n]))
		}
		return err
	})
}

func (tx *Tx) sorted() []*segment {
	slices.SortFunc(tx.segments, (*segment).compare)
	return tx.segments
}

func segmentNames(segments []*segment) (arg db.ItemLockParams) {
	for _, s := range segments {
		arg.Tenants = append(arg.Tenants, s.Tenant)
		arg.Items = append(arg.Items, s.Item)
		arg.Segment = append(arg.Segment, s.number)
	}
	return arg
}

func (tx *Tx) load(s *segment, r *db.ItemLockRow) {
	s.found, s.xmin, s.tid = true, r.Xmin.Uint32, r.Ctid
	s.segments, s.strategy, s.version, s.nextExpiryAt = r.Segments, r.Strategy, r.Version, pg.OrZero(r.NextExpiryAt)
	s.Counts = Counts{r.Available, r.Reserved, r.Sold, r.Stocked}
	tx.layouts.learn(s.ItemKey, layout{int(s.segments), s.strategy})
}

// written is the id of the transaction that wrote the segment's current version.
func (s *segment) written() pgtype.Uint32 {
	if s.writer != nil {
		return pgtype.Uint32{Uint32: s.writer.XID(), Valid: true}
	}
	return pgtype.Uint32{Uint32: s.xmin, Valid: true}
}

// Confirm locks all segments that the batch read, in the global lock order, and checks that they are as they were read.
// If the batch has changed all of them, Write does both.
func (tx *Tx) Confirm(p *commit.Pipe) {
	var arg db.ItemConfirmParams
	unchanged := false
	for _, s := range tx.segments {
		if s.found {
			arg.Tenants = append(arg.Tenants, s.Tenant)
			arg.Items = append(arg.Items, s.Item)
			arg.Segment = append(arg.Segment, s.number)
			arg.Writers = append(arg.Writers, s.written())
			unchanged = unchanged || !s.dirty
		}
	}
	if !unchanged {
		return
	}
	p.Queue(func(d commit.DB) error { return q.ItemConfirm(p.Context(), d, arg) })
}

// Write updates the changed segments. A direct command over one segment has done so in Flush.
func (tx *Tx) Write(p *commit.Pipe) {
	if tx.strategy == Batched {
		tx.updateSegments(p)
	}
}

func (tx *Tx) updateSegments(p *commit.Pipe) {
	var arg db.ItemUpdateParams
	for _, s := range tx.segments {
		if !s.dirty || s.fresh {
			continue
		}
		arg.Tenants = append(arg.Tenants, s.Tenant)
		arg.Items = append(arg.Items, s.Item)
		arg.Segment = append(arg.Segment, s.number)
		arg.Tids = append(arg.Tids, s.tid)
		arg.Writers = append(arg.Writers, s.written())
		if tx.puts {
			arg.Segments = append(arg.Segments, s.segments)
			arg.Strategies = append(arg.Strategies, s.strategy)
		}
		arg.Available = append(arg.Available, s.Available)
		arg.Reserved = append(arg.Reserved, s.Reserved)
		arg.Sold = append(arg.Sold, s.Sold)
		arg.Stocked = append(arg.Stocked, s.Stocked)
		arg.Versions = append(arg.Versions, s.version)
		arg.NextExpiryAt = append(arg.NextExpiryAt, s.nextExpiryAt)
	}
	if len(arg.Items) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error { return q.ItemUpdate(p.Context(), d, arg) })
}
