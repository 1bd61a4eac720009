package stock_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// timed is a shop whose clock can be set.
func timed(t testing.TB) (*shop, pgtest.ShiftedClock) {
	t.Helper()
	db := pgtest.New(t)
	clock := pgtest.ShiftClock(t, db)
	return shopOn(t, db), clock
}

// Reservations expire when their item is used, before its commands: their units are available, and no late confirmation
// succeeds.
func TestUseOfAnItemMakesItsDueReservationsExpire(t *testing.T) {
	t.Parallel()
	for segments := 1; segments <= 3; segments += 2 {
		t.Run(fmt.Sprint(segments), func(t *testing.T) {
			t.Parallel()
			s, clock := timed(t)
			later := reserve(t.Name(), "later", 1)
			later.Life = time.Hour
			s.all(put(t.Name(), segments), restock(t.Name(), "r", 9), reserve(t.Name(), "a", 2),
				reserve(t.Name(), "b", 5), later)
			s.wants(confirm(t.Name(), "a"), "a: 2 sold")
			clock.Set(t, 16*time.Minute)
			if got := s.all(confirm(t.Name(), "b"), reserve(t.Name(), "b", 5), cancel(t.Name(), "b"),
				deduct(t.Name(), "c", 6),
				confirm(t.Name(), "later")); !slices.Equal(got, []string{"RESERVATION_ENDED state=expired",
				"b: 5 expired, existed", "b: 5 expired, existed", "c: 6 sold", "later: 1 sold"}) {
				t.Error(got)
			}
			s.wantCounts(t.Name(), "0/0/9/9")
			if got := s.text("select concat_ws(' ', closed_at = expires_at, closed_request_id) " +
				"from stock_reservations where reservation_no = 'b'"); got != "t" {
				t.Error(got)
			}
		})
	}
}

// The scheduler finds the due reservations of items that no call uses, and its search ends.
func TestDueReservationsOfUnusedItemsExpire(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	for _, item := range []string{"tea", "coffee", "milk"} {
		s.all(put(item, 2), restock(item, "r", 10), reserve(item, "a", 7), reserve(item, "b", 1))
	}
	s.wants(confirm("milk", "a"), "a: 7 sold")
	s.wants(cancel("milk", "b"), "b: 1 cancelled")
	late := reserve("bread", "late", 1)
	late.Life = 2 * time.Hour
	s.all(put("bread", 1), restock("bread", "r", 10), reserve("bread", "a", 7), late)
	s.wants(confirm("bread", "a"), "a: 7 sold")
	find := func() []stock.ItemKey {
		t.Helper()
		var all []stock.DueItem
		for after := (stock.DueItem{}); ; after = all[len(all)-1] {
			due, err := stock.DueItems(t.Context(), s.app, 0, after, 1)
			if err != nil {
				t.Fatal(err)
			}
			if len(due) == 0 {
				return stock.ItemsOf(all)
			}
			all = append(all, due...)
		}
	}
	if due := find(); len(due) != 0 {
		t.Errorf("due already: %v", due)
	}
	clock.Set(t, time.Hour)
	due := find()
	if len(due) != 3 || due[0].Item != "bread" || due[1].Item != "coffee" || due[2].Item != "tea" {
		t.Errorf("due: %v", due)
	}
	for _, k := range due {
		s.wants(&stock.ExpireCommand{Item: k}, "<nil>")
	}
	s.wantCounts("coffee", "10/0/0/10")
	s.wantCounts("bread", "2/1/7/10") // nothing of it was due, and it is not found again
	s.wantCounts("tea", "10/0/0/10")
	if due := find(); len(due) != 0 {
		t.Errorf("still due: %v", due)
	}
	before := s.text("select count(*)::text from commit_batches")
	for _, k := range due {
		s.wants(&stock.ExpireCommand{Item: k}, "<nil>")
	}
	if after := s.text("select count(*)::text from commit_batches"); after != before {
		t.Errorf("%s batches, then %s", before, after)
	}
}

// After some reservations have expired, one row has the next expiry for all segments. It stays there until no
// reservation of the item is open.
func TestTheLastReservationOfAnotherSegmentExpires(t *testing.T) {
	t.Parallel()
	tea := t.Name()
	for _, end := range []command{confirm(tea, "b"), cancel(tea, "b")} {
		s, clock := timed(t)
		first, second, third := reserve(tea, "a", 1), reserve(tea, "b", 4), reserve(tea, "c", 5)
		first.Life, second.Life, third.Life = 10*time.Minute, 30*time.Minute, time.Hour
		s.all(put(tea, 2), restock(tea, "r", 10), first, second, third)
		clock.Set(t, 11*time.Minute)
		s.wants(&stock.ExpireCommand{Item: stock.ItemKey{Tenant: 1, Item: tea}}, "<nil>")
		s.all(end)
		clock.Set(t, 61*time.Minute)
		due, err := stock.DueItems(t.Context(), s.app, 0, stock.DueItem{}, 10)
		if err != nil || len(due) != 1 || due[0].Item != tea {
			t.Errorf("due: %v, %v", due, err)
		}
		s.wants(&stock.ExpireCommand{Item: stock.ItemKey{Tenant: 1, Item: tea}}, "<nil>")
		if got := s.text("select state from stock_reservations where reservation_no = 'c'"); got != "expired" {
			t.Errorf("the last reservation is %s", got)
		}
	}
}

// An item may have any number of reservations that expire at the same time. They expire in several batches, and only
// commands on this item wait for the last one.
func TestManyReservationsExpireInSeveralBatches(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 9000), put("milk", 0), restock("milk", "r", 1))
	s.exec(`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
			state, life_ms, created_at, expires_at, principal, request_id)
		select 1, 'tea', 'h' || i, (change_id >> 14 << 14) + 100 + i, 1, 0, 0, 'reserved', 1, changed_at,
		clock_timestamp() - '1 us'::interval * i, 'p', 'r'
		from stock_changes, generate_series(1, 9000) i where item = 'tea'`)
	s.exec(`update stock_items set available = 0, reserved = 9000, next_expiry_at = (select min(expires_at)
		from stock_reservations)
		where item = 'tea'`)
	dry := submission(deduct("tea", "dry", 1))
	dry.DryRun = true
	if _, err := s.engines[0].Do(t.Context(), dry); !fault.Is(err, fault.RowsLocked) {
		t.Errorf("a dry run ended %v", err)
	}
	got := s.all(deduct("tea", "all", 9000), deduct("milk", "beside", 1), confirm("tea", "h1"), cancel("tea", "h9000"))
	if want := []string{"all: 9000 sold", "beside: 1 sold", "RESERVATION_ENDED state=expired",
		"h9000: 1 expired, existed"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	s.wantCounts("tea", "0/0/9000/9000")
	if got := s.text(`select string_agg(reservation_no, ' ' order by reservation_id) from stock_reservations
		where reservation_no in ('all', 'beside')`); got != "beside all" {
		t.Errorf("committed in the order %s", got)
	}
}

// The rest of the due reservations expires too if all of them are in one segment, and not in the first.
func TestManyReservationsOfALaterSegmentExpire(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	tea := t.Name()
	s.all(put(tea, 2), restock(tea, "r", 6000))
	s.exec(`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
			state, life_ms, created_at, expires_at, principal, request_id)
		select 1, item, 'h' || i, (change_id >> 14 << 14) + 100 + i, 1, 0, 1, 'reserved', 1, changed_at,
		clock_timestamp() - '1 us'::interval * i, 'p', 'r'
		from stock_changes, generate_series(1, 3000) i`)
	s.exec(`update stock_items set available = 0, reserved = 3000, next_expiry_at = (select min(expires_at)
		from stock_reservations)
		where segment = 1`)
	s.wants(&stock.ExpireCommand{Item: stock.ItemKey{Tenant: 1, Item: tea}}, "<nil>")
	s.wantCounts(tea, "6000/0/0/6000")
}

// gate blocks batches before they insert a reservation whose number begins with "gate", until it is opened.
type gate struct {
	*shop
	hold *pgxpool.Conn
}

func newGate(s *shop) *gate {
	s.Helper()
	s.exec(`create function gate() returns trigger language plpgsql as $$
		begin set local lock_timeout = '30 s'; perform pg_advisory_xact_lock_shared(7); return new; end $$`)
	s.exec(`create trigger gate before insert on stock_reservations for each row when (new.reservation_no like 'gate%')
		execute function gate()`)
	hold, err := s.super.Acquire(context.Background())
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { // the end of the session opens the gate, even after a failure
		if err := hold.Hijack().Close(context.Background()); err != nil {
			s.Error(err)
		}
	})
	g := &gate{s, hold}
	g.turn("lock")
	return g
}

func (g *gate) turn(how string) {
	g.Helper()
	if _, err := g.hold.Exec(context.Background(), "select pg_advisory_"+how+"(7)"); err != nil {
		g.Fatal(err)
	}
}

// start runs commands in one batch of the first engine.
func (g *gate) start(commands ...command) <-chan []string {
	done := make(chan []string, 1)
	go func() { done <- g.all(commands...) }()
	return done
}

// until polls a condition.
func (g *gate) waits() {
	g.Helper()
	g.until("a wait", func() bool {
		return g.text("select exists (select from pg_stat_activity where datname = current_database() "+
			"and wait_event = 'advisory')::text") == "true"
	})
}

// overlapped waits until a batch has taken over items.
func (g *gate) overlapped() {
	g.Helper()
	g.until("an overlap", func() bool { return g.count("ledgerd_commit_overlaps_total") == 1 })
}

func (g *gate) want(what string, done <-chan []string, want ...string) {
	g.Helper()
	if got := <-done; !slices.Equal(got, want) {
		g.Errorf("%s: %q, want %q", what, got, want)
	}
}

func (g *gate) conflicts(want float64) {
	g.Helper()
	if n := g.count("ledgerd_commit_attempts_total/conflicted"); n != want {
		g.Errorf("%v attempts conflicted, want %v", n, want)
	}
}

// Batches work with the uncommitted counts of their predecessor, whatever they do, except PutItem.
func TestBatchesOverlapOnAnItem(t *testing.T) {
	t.Parallel()
	g := newGate(newShop(t))
	g.all(put(t.Name(), 2), restock(t.Name(), "r", 10), reserve(t.Name(), "a", 1), reserve(t.Name(), "b", 1),
		deduct(t.Name(), "c", 1))
	first := g.start(reserve(t.Name(), "gate", 4), adjust(t.Name(), "lost", -1, ""))
	g.waits()
	second := g.start(deduct(t.Name(), "d", 3), deduct(t.Name(), "e", 1), confirm(t.Name(), "a"), cancel(t.Name(), "b"),
		unsell(t.Name(), "back", "c", 1), restock(t.Name(), "r2", 1), deduct(t.Name(), "f", 3))
	g.overlapped()
	g.turn("unlock")
	g.want("first", first, "gate: 4 reserved", "lost: adjust -1 of 9")
	g.want("second", second, "OUT_OF_STOCK available=2", "e: 1 sold", "a: 1 sold", "b: 1 cancelled",
		"back: unsell 1 of 9",
		"r2: restock 1 of 10", "f: 3 sold")
	g.wantCounts(t.Name(), "1/4/5/10")
	g.conflicts(0)
}

// The batch before has made a reservation expire that this batch names, and has not committed yet.
func TestExpiryInTheUncommittedPredecessorIsSeen(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	g := newGate(s)
	g.all(put("tea", 0), restock("tea", "r", 10), reserve("tea", "a", 4), reserve("tea", "b", 4))
	clock.Set(t, time.Hour)
	first := g.start(reserve("tea", "gate", 10))
	g.waits()
	second := g.start(confirm("tea", "a"), reserve("tea", "b", 4), reserve("tea", "c", 1))
	g.overlapped()
	g.turn("unlock")
	g.want("first", first, "gate: 10 reserved")
	g.want("second", second, "RESERVATION_ENDED state=expired", "b: 4 expired, existed", "OUT_OF_STOCK available=0")
	g.conflicts(0)
}

// The clock is set back after an uncommitted predecessor has made a reservation expire: the reservation stays expired.
func TestClockSetBackRevivesNoReservation(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	g := newGate(s)
	g.all(put("tea", 0), restock("tea", "r", 10), reserve("tea", "a", 4))
	clock.Set(t, time.Hour)
	first := g.start(reserve("tea", "gate", 10))
	g.waits()
	clock.Set(t, 0)
	second := g.start(reserve("tea", "a", 4))
	g.overlapped()
	g.turn("unlock")
	g.want("first", first, "gate: 10 reserved")
	g.want("second", second, "a: 4 expired, existed")
	g.conflicts(1)
	g.wants(confirm("tea", "a"), "RESERVATION_ENDED state=expired")
	g.wantCounts("tea", "0/10/0/10")
}

// A batch cannot see a due reservation that the one before is still inserting.
func TestReservationDueDuringABatchExpiresInTheNext(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	g := newGate(s)
	g.all(put("tea", 0), restock("tea", "r", 10))
	first := g.start(reserve("tea", "gate", 10))
	g.waits()
	clock.Set(t, time.Hour)
	second := g.start(deduct("tea", "a", 10))
	g.overlapped()
	g.turn("unlock")
	g.want("first", first, "gate: 10 reserved")
	g.want("second", second, "a: 10 sold")
	g.conflicts(1)
	g.wantCounts("tea", "0/0/10/10")
}

func TestPutItemDoesNotOverlap(t *testing.T) {
	t.Parallel()
	g := newGate(newShop(t))
	g.all(put(t.Name(), 0), restock(t.Name(), "r", 10))
	first := g.start(reserve(t.Name(), "gate", 1))
	g.waits()
	second := g.start(put(t.Name(), 5))
	select {
	case got := <-second:
		t.Fatalf("answered %v before the first was committed", got)
	case <-time.After(50 * time.Millisecond):
	}
	g.turn("unlock")
	g.want("first", first, "gate: 1 reserved")
	g.want("second", second, t.Name()+" (): 9/1/0/10 in 5")
	if n := g.count("ledgerd_commit_overlaps_total"); n != 0 {
		t.Errorf("%v batches overlapped", n)
	}
}

// A batch detects a manual change by psql, and does not overwrite it.
func TestConcurrentManualUpdatesAreNotOverwritten(t *testing.T) {
	t.Parallel()
	g := newGate(newShop(t))
	g.all(put("tea", 0), restock("tea", "r", 10), reserve("tea", "a", 3))
	first := g.start(reserve("tea", "gate", 1), confirm("tea", "a"))
	g.waits()
	g.exec("set session_replication_role = replica; update stock_changes set quantity = 3, stocked_after = 3;" +
		"update stock_items set available = 0, stocked = 3; reset session_replication_role")
	g.turn("unlock")
	g.want("the batch", first, "OUT_OF_STOCK available=0", "a: 3 sold")
	g.wantCounts("tea", "0/0/3/3")
}
