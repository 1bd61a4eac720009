package notify

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// exact is the reference model of window: it keeps the time of every accepted message. Its clock never goes back.
type exact struct {
	now   time.Time
	times []time.Time
}

// most returns the largest number within any window that ends at one of the times.
func (e *exact) most(length time.Duration) (most int) {
	for i, end := range e.times {
		n := 0
		for _, t := range e.times[:i+1] {
			if t.After(end.Add(-length)) {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// The limit holds in every window, even if the clock stops, jumps ahead or goes back. Messages are accepted again at
// most a sixtieth of the window late, and exactly from the time that the refusal gave.
func TestWindowNeverExceedsItsLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.SampledFrom([]int32{1, 7, 60, 3600, 86400, 2678400}).Draw(t, "seconds")
		length := time.Duration(seconds) * time.Second
		most := rapid.Int32Range(1, 6).Draw(t, "most")
		now := time.UnixMicro(rapid.Int64Range(1e14, 4e15).Draw(t, "start"))
		w, e := counter{}, exact{}
		var promised time.Time // from the last refusal
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			step := rapid.SampledFrom([]time.Duration{0, 0, time.Microsecond, length / 61, length / 60, length / 59,
				length / 7, length - time.Microsecond, length,
				length + length/60, 3 * length, -length / 60, -length / 3}).Draw(t, "step")
			now = now.Add(step).Truncate(time.Microsecond)
			e.now = later(e.now, now) // the window's time never goes back
			accepted, at := try(&w, now, most, seconds)
			if !promised.IsZero() && now.Before(promised) == accepted && step >= 0 {
				t.Fatalf("at %v accepted: %v, but room was promised from %v", now, accepted, promised)
			}
			promised = time.Time{}
			if accepted {
				e.times = append(e.times, e.now)
				continue
			}
			if n := e.recent(length + length/slots + time.Microsecond); n < int(most) {
				t.Fatalf("refused, but only %d were accepted in the window plus one slot", n)
			}
			if at.IsZero() || !at.After(now) && !now.Before(e.now) {
				t.Fatalf("refused at %v until %v", now, at)
			}
			if step >= 0 && !now.Before(e.now) {
				promised = at
			}
		}
		if n := e.most(length); n > int(most) {
			t.Fatalf("%d of %d in one window", n, most)
		}
	})
}

// recent returns how many were accepted within the last length.
func (e *exact) recent(length time.Duration) (n int) {
	for _, t := range e.times {
		if t.After(e.now.Add(-length)) {
			n++
		}
	}
	return n
}

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// try is counted.count for a single counter.
func try(w *counter, now time.Time, most, seconds int32) (ok bool, at time.Time) {
	if !w.expiresAt.After(now) {
		*w = counter{}
	}
	w.moveTo(now, seconds)
	if ok, at = w.room(most, seconds); ok {
		w.count(seconds)
	}
	return ok, at
}

func TestLimitZeroRefusesAll(t *testing.T) {
	t.Parallel()
	w := counter{}
	if ok, at := try(&w, time.Unix(1e9, 0), 0, 60); ok || !at.IsZero() {
		t.Errorf("%v, until %v", ok, at)
	}
}

func TestSlotStartIsTheFirstInstantOfItsSlot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Int32Range(1, 2678400).Draw(t, "seconds")
		at := time.UnixMicro(rapid.Int64Range(1e14, 4e15).Draw(t, "at"))
		slot := slotOf(at, seconds)
		if s := slotStart(slot, seconds); s.After(at) || slotOf(s, seconds) != slot {
			t.Fatalf("slot %d of %v begins at %v", slot, at, s)
		}
		if s := slotStart(slot, seconds).Add(-time.Microsecond); slotOf(s, seconds) == slot {
			t.Fatalf("slot %d has an earlier instant", slot)
		}
	})
}
