package deliver_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/notify/deliver"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// One flooding tenant gets half, two get a third each, and a newcomer always finds room.
func TestLaneIsSharedByTenants(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(90, 900, 1<<30)
	if n := l.Reserve(1, 10_000); n != 450 {
		t.Fatalf("a single tenant reserved %d, want 450", n)
	}
	l = deliver.NewLane(90, 900, 1<<30)
	for _, want := range []int{450, 225, 113} {
		tenant, got := int32(want), 0
		for l.Reserve(tenant, 1) == 1 {
			got++
		}
		if got != want {
			t.Errorf("tenant %d reserved %d", tenant, got)
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
		if n < 21 || n > 24 { // a quarter of 90: three flooding tenants, and one share free
			t.Errorf("tenant %d runs %d of 90 attempts", tenant, n)
		}
	}
	if l.Reserve(7, 1) != 1 {
		t.Fatal("no room for a newcomer")
	}
	if l.Add(7, 1, time.Minute); len(running) != 3 {
		t.Fatal(running)
	}
	if tenant, _ := l.Next(); tenant != 7 {
		t.Errorf("tenant %d begins before the newcomer", tenant)
	}
}

// Higher priorities go first. A large message uses the room of many.
func TestLaneRespectsPriorityAndBytes(t *testing.T) {
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
			t.Errorf("priority %d before %d", got, want)
		}
	}
	l.Resize(1, 96<<12)
	if n := l.Reserve(2, 1); n != 0 {
		t.Errorf("room for %d messages beside a large one", n)
	}
	l.Resize(1, -96<<12)
	if n := l.Reserve(2, 1); n != 1 {
		t.Error("no room after the large message has gone")
	}
}

// Model test: nothing is lost and no limit is exceeded.
func TestLaneModel(t *testing.T) {
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
							t.Fatalf("an attempt of tenant %d may begin, but none did", x)
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
					t.Fatalf("%d held by %d tenants in %d bytes, %d running; model: %v waiting, %v running",
						held, lines,
						bytes, now, waiting, running)
				}
			},
		})
	})
}

func TestMessagesThatCannotBeginInTimeLeaveTheLane(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(1, 10, 1<<20)
	// an attempt needs 6 s of lease
	for _, lease := range []time.Duration{time.Second, 2 * time.Second, time.Minute, time.Second} {
		l.Reserve(1, 1)
		l.Add(1, 1, lease)
	}
	if n := l.Late(); n != 2 {
		t.Errorf("%d messages expired, want 2", n)
	}
}

// A tenant whose messages are not sent in time gets less room, and more again when they are. Others keep their room.
func TestTenantsRoomFollowsItsThroughput(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(10, 1000, 1<<30)
	hold := func(lease time.Duration) {
		for l.Reserve(1, 1) == 1 {
			l.Add(1, 1, lease)
		}
	}
	hold(time.Second) // less than an attempt needs
	for range 10 {
		for tenant, _ := l.Next(); tenant != 0; tenant, _ = l.Next() { // attempts that never end
		}
		l.Late()
		hold(time.Second)
		if l.Reserve(2, 300) != 300 {
			t.Fatal("no room for another tenant")
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
	if held, _, _, _ := l.Left(); held > 20 { // room for two rounds of attempts
		t.Errorf("%d messages are held", held)
	}
	for range 100 {
		l.Late()
	}
	hold(time.Minute)
	if held, _, _, _ := l.Left(); held < 490 {
		t.Errorf("%d messages are held after recovery", held)
	}
}

// An endpoint gets at most a third of the attempts, the next one a third of the rest. Other endpoints of the tenant go
// on.
func TestEndpointsShareTheirTenantsAttempts(t *testing.T) {
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
			t.Fatalf("an attempt at %q begins", to)
		}
	}
}

// A slow endpoint's overflow goes back to the database, with increasing waits.
func TestOverflowOfASlowEndpointGoesBack(t *testing.T) {
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
			t.Fatal("a message of a fast endpoint goes back")
		}
		wait := add("slow")
		switch {
		case wait == 0 && last > 0:
			t.Fatal("a later message is queued after one went back")
		case wait == 0:
			kept++
		case wait < 20*time.Second || wait > 5*time.Minute || wait < last-time.Second:
			t.Errorf("message %d returns in %v, the one before in %v", n, wait, last)
		}
		last = max(last, wait)
	}
	if kept > 100 || last < time.Minute {
		t.Errorf("%d are queued, the last one returns in %v", kept, last)
	}
}

func TestUnaskedMessagesReturnStaggered(t *testing.T) {
	t.Parallel()
	l := deliver.NewLane(90, 9000, 1<<30)
	l.Reserve(1, 1)
	l.Reserve(2, 1)
	var last time.Duration
	for range 10_000 {
		last = l.Unasked(1, time.Second)
	}
	if other := l.Unasked(2, time.Second); last < 9*time.Second || last > 10*time.Second || other != time.Second {
		t.Errorf("the last of 10,000 returns in %v, another tenant's in %v", last, other)
	}
}

func TestRetryWaitsGrowWithJitter(t *testing.T) {
	t.Parallel()
	m := deliver.Policy{Base: time.Second, Max: 10 * time.Second}
	p := deliver.New(deliver.Config{DB: pgtest.Pool(t, pgtest.New(t).AllDSN),
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
			t.Errorf("after attempt %d: waits from %v to %v", attempt, least, greatest)
		}
	}
	for range 100 {
		if w := p.Wait(send.SMS, 1, &send.Failure{RetryAfter: time.Minute}); w < time.Minute || w > 66*time.Second {
			t.Errorf("wait %v after a RetryAfter of 1 min", w)
		}
	}
}
