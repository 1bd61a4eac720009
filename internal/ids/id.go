package ids

import (
	"strconv"
	"time"
)

// ID is a 64-bit id: from its upper end 0, 41 bits of milliseconds since Epoch, 10 of the worker, 12 of the
// sequence. So ids sort by time, and are positive for as long as there are any: until Last.
type ID int64

const (
	timeBits, workerBits, sequenceBits = 41, 10, 12

	// Workers is how many worker numbers there are.
	Workers = 1 << workerBits
	// perMillisecond is how many ids a worker has in a millisecond.
	perMillisecond = 1 << sequenceBits
)

var (
	// Epoch is the time of the first id. It never changes.
	Epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	// Last is the last millisecond that has ids: 2094-09-07T15:47:35.551Z.
	Last = Epoch.Add((1<<timeBits - 1) * time.Millisecond)
)

// Time is when the id was made, to the millisecond.
func (id ID) Time() time.Time {
	return Epoch.Add(time.Duration(id>>(workerBits+sequenceBits)) * time.Millisecond)
}

// Worker is the number of the worker that made it.
func (id ID) Worker() int { return int(id>>sequenceBits) & (Workers - 1) }

// Sequence is its place within worker and millisecond.
func (id ID) Sequence() int { return int(id) & (perMillisecond - 1) }

// String is the id in decimal digits.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// slot is a place in one worker's ids: milliseconds since Epoch, then the sequence. The one after the last
// of a millisecond is the first of the next.
type slot int64

const maxSlot = slot(1) << (timeBits + sequenceBits)

// slotAt is the first slot of a time's millisecond, or 0 before Epoch.
func slotAt(t time.Time) slot {
	ms := t.UnixMilli() - Epoch.UnixMilli()
	return min(slot(max(ms, 0))<<sequenceBits, maxSlot)
}

// hasIDs tells whether a time is within the 41 bits.
func hasIDs(t time.Time) bool { return slotAt(t) > 0 && slotAt(t) < maxSlot }

// after is the first slot of the first whole millisecond that is not before a time.
func after(t time.Time) slot { return slotAt(t.Add(time.Millisecond - 1)) }

// whole is the first slot of its millisecond, or of the next one if it is not the first.
func (s slot) whole() slot { return (s + perMillisecond - 1) &^ (perMillisecond - 1) }

func (s slot) time() time.Time { return Epoch.Add(time.Duration(s>>sequenceBits) * time.Millisecond) }

func (s slot) id(worker int) ID {
	return ID(s>>sequenceBits)<<(workerBits+sequenceBits) | ID(worker)<<sequenceBits | ID(s)&(perMillisecond-1)
}
