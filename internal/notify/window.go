package notify

import (
	"strconv"
	"strings"
	"time"
)

// slots are the parts that a window is counted in. The newest one and so many before it cover at least the window
// before any time in the newest.
const slots = 60

// window counts what was accepted lately. Its time never goes back: when the clock does, it counts as though that
// stood still.
type window struct {
	slot      int64 // number of the newest slot, counted from 1970
	counts    [slots + 1]int32
	expiresAt time.Time // when all of it has left the window
}

// slotOf is the number of the slot that a time is in.
func slotOf(t time.Time, seconds int32) int64 { return t.UnixMicro() * slots / (int64(seconds) * 1e6) }

// slotStart is the first microsecond of a slot.
func slotStart(slot int64, seconds int32) time.Time {
	n := slot * int64(seconds) * 1e6
	at := n / slots
	if at*slots < n {
		at++
	}
	return time.UnixMicro(at).UTC()
}

// moveTo makes the slot of a time the newest one, unless it is older.
func (w *window) moveTo(now time.Time, seconds int32) {
	slot := slotOf(now, seconds)
	switch by := slot - w.slot; {
	case by <= 0:
		return
	case by > slots:
		w.counts = [slots + 1]int32{}
	default:
		copy(w.counts[by:], w.counts[:slots+1-by])
		clear(w.counts[:by])
	}
	w.slot = slot
}

func (w *window) sum() (n int64) {
	for _, c := range w.counts {
		n += int64(c)
	}
	return n
}

// room tells whether one more may be counted now, and otherwise when there is room for one; zero: never.
func (w *window) room(most, seconds int32) (ok bool, at time.Time) {
	over := w.sum() - int64(most) + 1
	if over <= 0 {
		return true, time.Time{}
	}
	for back := slots; back >= 0; back-- {
		if over -= int64(w.counts[back]); over <= 0 {
			return false, slotStart(w.slot-int64(back)+slots+1, seconds)
		}
	}
	return false, time.Time{}
}

// count counts one more in the newest slot.
func (w *window) count(seconds int32) {
	w.counts[0]++
	w.expiresAt = slotStart(w.slot+slots+1, seconds)
}

// text is the counts as an array of the database.
func (w *window) text() string {
	var b strings.Builder
	b.WriteByte('{')
	for i, c := range w.counts {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(c)))
	}
	b.WriteByte('}')
	return b.String()
}
