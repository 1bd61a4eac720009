package deliver_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// One tenant that floods gets half, two a third each, and the next one always some.
func TestALaneIsSharedByTenants(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(90, 900, 1<<30)
	if n := l.Reserve(1, 10_000); n != 450 {
		t.Fatalf("alone it may have %d at once", n)
	}
	l = deliver.NewLane(90, 900, 1<<30)
	for _, want := range []int{450, 225, 113} {
		tenant, got := int32(want), 0
		for l.Reserve(tenant, 1) == 1 {
			got++
		}
		if got != want {
			t.Errorf("tenant %d has room for %d", tenant, got)
		}
		for range got {
			l.Add(tenant, 1, time.Minute)
		}
	}
	running := map[int32]int{}
	for tenant, _ := l.Next(); tenant != 0; tenant, _ = l.Next() {
		running[tenant]++
	}
	for tenant, n := range running {
		if n < 21 || n > 24 { // a quarter of 90: three that want all, and one free
			t.Errorf("tenant %d has %d attempts of 90", tenant, n)
		}
	}
	if l.Reserve(7, 1) != 1 {
		t.Fatal("a newcomer has no room")
	}
	if l.Add(7, 1, time.Minute); len(running) != 3 {
		t.Fatal(running)
	}
	if tenant, _ := l.Next(); tenant != 7 {
		t.Errorf("after all others, %d begins before the newcomer", tenant)
	}
}

// The more urgent go first, and great messages take the room of many.
func TestALaneKeepsPriorityAndBytes(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(10, 100, 100<<12)
	for _, priority := range []int16{2, 1, 0, 1} {
		if l.Reserve(1, 1) != 1 {
			t.Fatal("no room")
		}
		l.Add(1, priority, time.Minute)
	}
	for _, want := range []int16{0, 1, 1, 2} {
		if _, got := l.Next(); got != want {
			t.Errorf("priority %d goes before %d", got, want)
		}
	}
	l.Resize(1, 96<<12)
	if n := l.Reserve(2, 1); n != 0 {
		t.Errorf("there is room for %d beside a great one", n)
	}
	l.Resize(1, -96<<12)
	if n := l.Reserve(2, 1); n != 1 {
		t.Error("there is no room after it has gone")
	}
}

// Whatever happens, nothing is forgotten, and no bound is passed.
func TestALaneForgetsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const attempts, room = 7, 20
		l := deliver.NewLane(attempts, room, room<<12)
		waiting, running := map[int32]int{}, map[int32]int{}
		total := func(m map[int32]int) (n int) {
			for _, x := range m {
				n += x
			}
			return n
		}
		tenants := rapid.Int32Range(1, 4)
		t.Repeat(map[string]func(*rapid.T){
			"arrive": func(t *rapid.T) {
				tenant := tenants.Draw(t, "tenant")
				n := l.Reserve(tenant, rapid.IntRange(1, 5).Draw(t, "n"))
				for range n {
					l.Add(tenant, rapid.Int16Range(0, 2).Draw(t, "priority"), time.Minute)
				}
				waiting[tenant] += n
			},
			"begin": func(t *rapid.T) {
				tenant, _ := l.Next()
				if tenant == 0 {
					for x, n := range waiting {
						if n > 0 && running[x] < attempts-total(running) {
							t.Fatalf("tenant %d might begin", x)
						}
					}
					return
				}
				waiting[tenant]--
				running[tenant]++
			},
			"end": func(t *rapid.T) {
				tenant := tenants.Draw(t, "tenant")
				if running[tenant] == 0 {
					t.Skip("none runs")
				}
				running[tenant]--
				l.End(tenant)
			},
			"": func(t *rapid.T) {
				held, lines, now, bytes := l.Left()
				if held != total(waiting)+total(running) || now != total(running) || held > room || now > attempts ||
					bytes != int64(held)<<12 || (held == 0) != (lines == 0) {
					t.Fatalf("%d held of %d tenants in %d bytes, %d running; in truth %v wait and %v run", held, lines,
						bytes, now, waiting, running)
				}
			},
		})
	})
}

func TestWhatCannotBeginInTimeLeavesTheLane(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(1, 10, 1<<20)
	// an attempt needs 6 s
	for _, lease := range []time.Duration{time.Second, 2 * time.Second, time.Minute, time.Second} {
		l.Reserve(1, 1)
		l.Add(1, 1, lease)
	}
	if n := l.Late(); n != 2 {
		t.Errorf("%d are late", n)
	}
}

// A tenant whose messages are not sent in time holds fewer, and more again when they are. Others keep their room.
func TestATenantHoldsWhatIsSentInTime(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(10, 1000, 1<<30)
	hold := func(lease time.Duration) {
		for l.Reserve(1, 1) == 1 {
			l.Add(1, 1, lease)
		}
	}
	hold(time.Second) // too short for an attempt
	for range 10 {
		for tenant, _ := l.Next(); tenant != 0; tenant, _ = l.Next() { // it hangs
		}
		l.Late()
		hold(time.Second)
		if l.Reserve(2, 300) != 300 {
			t.Fatal("another one has no room")
		}
		for range 300 {
			l.Add(2, 1, time.Minute)
		}
		for range 300 {
			for tenant, _ := l.Next(); tenant != 2; tenant, _ = l.Next() {
				l.End(1)
			}
			l.End(2)
		}
	}
	if held, _, _, _ := l.Left(); held > 20 { // which two rounds of attempts take
		t.Errorf("%d are held", held)
	}
	for range 100 {
		l.Late()
	}
	hold(time.Minute)
	if held, _, _, _ := l.Left(); held < 490 {
		t.Errorf("%d are held when it sends in time", held)
	}
}

// An endpoint has at most a third of the attempts, the next one a third of what is left; others of the tenant go on.
func TestATenantsEndpointsShare(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(90, 9000, 1<<30)
	begun := map[string]int{}
	for _, endpoint := range []string{"hangs", "hangs too", "works"} {
		for range 300 {
			if l.Reserve(1, 1) != 1 {
				t.Fatal("no room")
			}
			l.AddTo(1, endpoint)
		}
		for to := l.NextTo(); to != ""; to = l.NextTo() {
			begun[to]++
		}
	}
	if begun["hangs"] != 30 || begun["hangs too"] != 10 || begun["works"] < 3 {
		t.Error(begun)
	}
	for range 100 {
		l.EndAt(1, "works", time.Millisecond)
		if to := l.NextTo(); to != "works" {
			t.Fatalf("%q comes to its turn", to)
		}
	}
}

// What a slow endpoint cannot take in time goes back until it can, one after the other.
func TestWhatAnEndpointCannotTakeGoesBack(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(90, 9000, 1<<30)
	add := func(endpoint string) time.Duration {
		if l.Reserve(1, 1) != 1 {
			t.Fatal("no room")
		}
		return l.AddTo(1, endpoint)
	}
	for range 100 {
		add("slow")
		add("quick")
	}
	for l.NextTo() != "" {
	}
	for range 10 {
		l.EndAt(1, "slow", 10*time.Second)
		l.EndAt(1, "quick", 10*time.Millisecond)
		for l.NextTo() != "" {
		}
	}
	kept, last := 0, time.Duration(0)
	for n := range 400 {
		if add("quick") != 0 {
			t.Fatal("a quick one goes back")
		}
		wait := add("slow")
		switch {
		case wait == 0 && last > 0:
			t.Fatal("one is kept behind one that went back")
		case wait == 0:
			kept++
		case wait < 20*time.Second || wait > 5*time.Minute || wait < last-time.Second:
			t.Errorf("number %d comes back in %v, the one before in %v", n, wait, last)
		}
		last = max(last, wait)
	}
	if kept > 100 || last < time.Minute {
		t.Errorf("%d are kept, the last comes in %v", kept, last)
	}
}

// What nobody could be asked for comes back spread over time.
func TestWhatNobodyWasAskedForIsSpread(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(90, 9000, 1<<30)
	l.Reserve(1, 1)
	l.Reserve(2, 1)
	var last time.Duration
	for range 10_000 {
		last = l.Unasked(1, time.Second)
	}
	if other := l.Unasked(2, time.Second); last < 9*time.Second || last > 10*time.Second || other != time.Second {
		t.Errorf("the last of 10,000 comes in %v, that of another tenant in %v", last, other)
	}
}

// Waits grow up to a bound, are spread out, and respect the provider's wish.
func TestWaitsGrowAndAreSpread(t *testing.T) {
	t.Parallel()
	m := deliver.Policy{Base: time.Second, Max: 10 * time.Second}
	p := deliver.New(deliver.Config{DB: pgtest.Pool(t, pgtest.New(t).AppDSN),
		Senders:  map[send.Channel]send.Sender{send.SMS: newSender("")},
		Policies: map[send.Channel]deliver.Policy{send.SMS: m}})
	for attempt, most := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second,
		5: 10 * time.Second, 90: 10 * time.Second} {
		var least, greatest time.Duration = time.Hour, 0
		for range 2000 {
			w := p.Wait(send.SMS, attempt, &send.Failure{})
			least, greatest = min(least, w), max(greatest, w)
		}
		if least > most/20 || greatest < most*9/10 || greatest > most {
			t.Errorf("after attempt %d waits are from %v to %v", attempt, least, greatest)
		}
	}
	for range 100 {
		if w := p.Wait(send.SMS, 1, &send.Failure{RetryAfter: time.Minute}); w < time.Minute || w > 66*time.Second {
			t.Errorf("asked for a minute it waits %v", w)
		}
	}
}
