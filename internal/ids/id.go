package ids

import (
	"strconv"
	"time"
)

// ID is a 64-bit id. From the most significant bit: 0, 41 bits of milliseconds since Epoch, 10 bits of worker
// number, 12 bits of sequence. Ids sort by time and are positive until Last.
type ID int64

const (
	timeBits, workerBits, sequenceBits = 41, 10, 12

	// Workers is the number of worker numbers.
	Workers = 1 << workerBits
	// perMillisecond is the number of ids of one worker in a millisecond.
	perMillisecond = 1 << sequenceBits
)

var (
	// Epoch is the time of the first id. It never changes.
	Epoch = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	// Last is the last millisecond that has ids: 2094-09-07T15:47:35.551Z.
	Last = Epoch.Add((1<<timeBits - 1) * time.Millisecond)
)

// Time is the creation time of the id, in milliseconds.
func (id ID) Time() time.Time {
	return Epoch.Add(time.Duration(id>>(workerBits+sequenceBits)) * time.Millisecond)
}

// Worker is the worker number of the generating process.
func (id ID) Worker() int { return int(id>>sequenceBits) & (Workers - 1) }

// Sequence is the id's position within its worker and millisecond.
func (id ID) Sequence() int { return int(id) & (perMillisecond - 1) }

// String is the id in decimal digits.
func (id ID) String() string { return strconv.FormatInt(int64(id), 10) }

// slot is a position in one worker's ids: milliseconds since Epoch, then the sequence. The slot after the last
// one of a millisecond is the first one of the next.
type slot int64

const maxSlot = slot(1) << (timeBits + sequenceBits)

// slotAt is the first slot of a time's millisecond, or 0 before Epoch.
func slotAt(t time.Time) slot {
	ms := t.UnixMilli() - Epoch.UnixMilli()
	return min(slot(max(ms, 0))<<sequenceBits, maxSlot)
}

// hasIDs reports whether a time fits in the 41 bits.
func hasIDs(t time.Time) bool { return slotAt(t) > 0 && slotAt(t) < maxSlot }

// after is the first slot of the first whole millisecond at or after a time.
func after(t time.Time) slot { return slotAt(t.Add(time.Millisecond - 1)) }

// whole rounds a slot up to the first slot of a millisecond.
func (s slot) whole() slot { return (s + perMillisecond - 1) &^ (perMillisecond - 1) }

func (s slot) time() time.Time { return Epoch.Add(time.Duration(s>>sequenceBits) * time.Millisecond) }

func (s slot) id(worker int) ID {
	return ID(s>>sequenceBits)<<(workerBits+sequenceBits) | ID(worker)<<sequenceBits | ID(s)&(perMillisecond-1)
}
