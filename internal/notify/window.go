package notify

import (
	"strconv"
	"strings"
	"time"
)

// slots is the number of slots that divide a window. The newest slot and the 60 before it cover at least one window
// that ends in the newest slot.
const slots = 60

// window counts messages in a sliding window. Its time never goes back: while the clock is behind, messages count in
// the newest slot.
type window struct {
	slot      int64 // number of the newest slot since 1970
	counts    [slots + 1]int32
	expiresAt time.Time // when all counted messages have left the window
}

// slotOf returns the number of the slot that contains t.
func slotOf(t time.Time, seconds int32) int64 { return t.UnixMicro() * slots / (int64(seconds) * 1e6) }

// slotStart returns the first microsecond of a slot.
func slotStart(slot int64, seconds int32) time.Time {
	n := slot * int64(seconds) * 1e6
	at := n / slots
	if at*slots < n {
		at++
	}
	return time.UnixMicro(at).UTC()
}

// moveTo advances the newest slot to the time now. An earlier time changes nothing.
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

// room reports whether the limit allows one more message now. If not, at is when it will; zero: never.
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

// count counts one message in the newest slot.
func (w *window) count(seconds int32) {
	w.counts[0]++
	w.expiresAt = slotStart(w.slot+slots+1, seconds)
}

// text returns the counts as a Postgres array literal.
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
