package ids

import (
	"testing"
	"time"
)

func TestClockFollowsTheDatabaseForwardAtOnceAndBackSlowly(t *testing.T) {
	t.Parallel()
	var at time.Duration
	c := newClock(func() time.Duration { return at })
	zero := Epoch.AddDate(1, 0, 0)
	is := func(what string, want time.Time) {
		t.Helper()
		if got := c.now(); !got.Equal(want) {
			t.Errorf("%s: %v, want %v", what, got.Sub(zero), want.Sub(zero))
		}
	}
	ahead := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s: ahead by %v, want %v", what, got, want)
		}
	}
	at = 2 * time.Second
	ahead("first", c.correct(time.Second, at, zero), 0)
	is("anchored at the latest moment", zero)
	at = 12 * time.Second
	is("ten seconds on", zero.Add(10*time.Second))
	ahead("a time within the exchange", c.correct(at-time.Second, at, zero.Add(9500*time.Millisecond)), 0)
	is("it agrees", zero.Add(10*time.Second))
	ahead("an hour on", c.correct(at-time.Second, at, zero.Add(time.Hour)), 10*time.Second-time.Hour)
	is("it jumps", zero.Add(time.Hour))
	at += 10 * time.Second
	ahead("an hour back", c.correct(at-time.Second, at, zero.Add(20*time.Second)), time.Hour-11*time.Second)
	is("a thousandth of the ten seconds since", zero.Add(time.Hour+10*time.Second-10*time.Millisecond))
	at += 10 * time.Second
	ahead("a little ahead", c.correct(at, at, c.now().Add(-4*time.Millisecond)), 4*time.Millisecond)
	is("no more than it was", zero.Add(time.Hour+20*time.Second-14*time.Millisecond))
}

func TestUUIDsOfAFullMillisecondContinueInTheNext(t *testing.T) {
	t.Parallel()
	u := uuids{ms: 7, counter: counterMax - 1}
	u.step(7, 0)
	if u.ms != 7 || u.counter != counterMax {
		t.Errorf("%+v", u)
	}
	u.step(7, 0xffffffff)
	if u.ms != 8 || u.counter != counterMax>>1 {
		t.Errorf("%+v", u)
	}
	u.step(6, 0)
	if u.ms != 8 || u.counter != counterMax>>1+1 {
		t.Errorf("%+v", u)
	}
}

func TestSlotsAreLimitedByTheirBits(t *testing.T) {
	t.Parallel()
	if slotAt(Epoch.Add(-time.Hour)) != 0 || slotAt(Last.AddDate(1, 0, 0)) != maxSlot {
		t.Error("accepted times outside the range")
	}
	for at, want := range map[time.Time]bool{Epoch.Add(-time.Second): false, Epoch.Add(time.Second): true, Last: true,
		Last.Add(time.Millisecond): false} {
		if hasIDs(at) != want {
			t.Errorf("%v has ids: %v", at, !want)
		}
	}
	if id := (maxSlot - 1).id(Workers - 1); id != 1<<63-1 {
		t.Errorf("the last id is %d", id)
	}
	for s, want := range map[slot]slot{0: 0, 1: 4096, 4095: 4096, 4096: 4096, 4097: 8192} {
		if s.whole() != want {
			t.Errorf("%d: %d", s, s.whole())
		}
	}
	half := Epoch.Add(1500 * time.Microsecond)
	if slotAt(half) != 4096 || after(half) != 8192 || after(Epoch.Add(time.Millisecond)) != 4096 {
		t.Error("parts of milliseconds")
	}
}
