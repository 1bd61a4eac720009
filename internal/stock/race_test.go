package stock_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/stock"
)

// A thousand callers on two servers want the last ten units: ten of them get one, and the others are refused.
func TestTenOfAThousandCallersGetTheLastTenUnits(t *testing.T) {
	t.Parallel()
	for _, segments := range []int{1, 4, 64} {
		t.Run(fmt.Sprint(segments), func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.all(put(t.Name(), segments), restock(t.Name(), "r", 10))
			ends := s.together(1000, func(i int) command {
				if i%3 == 0 {
					return reserve(t.Name(), fmt.Sprint("n", i), 1)
				}
				return deduct(t.Name(), fmt.Sprint("n", i), 1)
			})
			won := 1000 - ends["OUT_OF_STOCK available=0"]
			if won != 10 || len(ends) != 11 {
				t.Errorf("%d won: %v", won, ends)
			}
			if got := s.text("select concat_ws(' ', sum(available), sum(reserved + sold), sum(stocked)) " +
				"from stock_items"); got != "0 10 10" {
				t.Errorf("counts %s", got)
			}
			if got := s.text("select concat_ws(' ', count(*), sum(quantity)) from stock_reservations"); got != "10 10" {
				t.Errorf("reservations %s", got)
			}
		})
	}
}

// Buyers of several units empty all segments: a refusal never names fewer units than are available.
func TestSegmentsAreNeverFalselySoldOut(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	const segments, units = 16, 60
	s.all(put(t.Name(), segments), restock(t.Name(), "r", units))
	ends := s.together(400, func(i int) command { return deduct(t.Name(), fmt.Sprint("n", i), int64(1+i%4)) })
	left := int64(units)
	for end, n := range ends {
		var quantity, available int64
		if _, err := fmt.Sscanf(end, "OUT_OF_STOCK available=%d", &available); err == nil && available > 3 {
			t.Errorf("%d callers were refused while %d were available", n, available)
		}
		var no int
		if _, err := fmt.Sscanf(end, "n%d: %d sold", &no, &quantity); err == nil {
			left -= quantity * int64(n)
		}
	}
	if got := s.text("select sum(available)::text from stock_items"); got != fmt.Sprint(left) || left != 0 {
		t.Errorf("%s are available, %d were not sold", got, left)
	}
}

// Another server spreads an item over more segments while a batch waits for its first segment: the batch counts the
// units of all segments.
func TestSegmentsAddedWhileABatchWaitsCount(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put(t.Name(), 1), restock(t.Name(), "r", 10))
	tx, err := s.super.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	for _, spread := range []string{
		"update stock_items set segments = 2, available = 5, stocked = 5, version = version + 1",
		`insert into stock_items (tenant_id, item, segment, segments, strategy, available, reserved, sold, stocked,
			version)
		select tenant_id, item, 1, 2, strategy, 5, 0, 0, 5, 1 from stock_items`,
	} {
		if _, err := tx.Exec(t.Context(), spread); err != nil {
			t.Fatal(err)
		}
	}
	ends := make(chan []string, 1)
	go func() { ends <- s.all(put(t.Name(), 2), reserve(t.Name(), "six", 6)) }()
	s.until("a wait", func() bool {
		return s.text(`select exists (select from pg_stat_activity where datname = current_database()
			and wait_event_type = 'Lock')::text`) == "true"
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-ends; got[1] != "six: 6 reserved" {
		t.Error(got)
	}
}

// The same number at the same instant, on two servers, is one reservation.
func TestOneNumberIsOneReservation(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 1000))
	for round := range 20 {
		no := fmt.Sprint("n", round)
		ends := s.together(50, func(i int) command { return reserve("tea", no, int64(1+i%2)) })
		one, two := ends[no+": 1 reserved"], ends[no+": 2 reserved"]
		if one+two != 1 || ends[no+": 1 reserved, existed"]+ends[no+": 2 reserved, existed"] != 24 ||
			ends["RESERVATION_EXISTS_DIFFERENT differs=quantity"] != 25 {
			t.Fatalf("round %d: %v", round, ends)
		}
	}
}

// A reservation ends once, however many calls and its own time try to end it.
func TestReservationEndsOnceAmongRacingCalls(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 30))
	for round := range 30 {
		no := fmt.Sprint("n", round)
		s.all(reserve("tea", no, 1))
		ends := s.together(16, func(i int) command {
			if i/2%2 == 0 {
				return confirm("tea", no)
			}
			return cancel("tea", no)
		})
		sold := ends[no+": 1 sold"] == 1 && ends[no+": 1 sold, existed"] == 7 &&
			ends["RESERVATION_ENDED state=sold"] == 8
		cancelled := ends[no+": 1 cancelled"] == 1 && ends[no+": 1 cancelled, existed"] == 7 &&
			ends["RESERVATION_ENDED state=cancelled"] == 8
		if sold == cancelled {
			t.Fatalf("round %d: %v", round, ends)
		}
	}
}

// Confirmations race the end of the reservations' time: each unit is sold or available, and each caller knows which.
func TestConfirmRacesExpiry(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	const n = 200
	s.all(put(t.Name(), 2), restock(t.Name(), "r", n))
	for i := range n {
		c := reserve(t.Name(), fmt.Sprint("n", i), 1)
		c.Life = time.Second
		if got := s.all(c)[0]; got != fmt.Sprintf("n%d: 1 reserved", i) {
			t.Fatal(got)
		}
	}
	ends := map[string]int{}
	for i := 0; i < n; i += 4 { // some are confirmed before the second is over, some after it
		for end, count := range s.together(8, func(k int) command {
			if k >= 6 {
				return &stock.ExpireCommand{Item: stock.ItemKey{Tenant: 1, Item: t.Name()}}
			}
			return confirm(t.Name(), fmt.Sprint("n", i+k/2%4))
		}) {
			ends[end] += count
		}
	}
	sold := 0
	for i := range n {
		sold += ends[fmt.Sprintf("n%d: 1 sold", i)]
	}
	for end := time.Now().Add(time.Minute); s.text("select sum(reserved) from stock_items") != "0" &&
		time.Now().Before(end); {
		s.all(&stock.ExpireCommand{Item: stock.ItemKey{Tenant: 1, Item: t.Name()}}) // each 4th was never confirmed
	}
	if got := s.text("select concat_ws(' ', sum(sold), sum(reserved), sum(stocked)) " +
		"from stock_items"); got != fmt.Sprint(sold, 0, n) {
		t.Errorf("%d callers sold, the item has %s", sold, got)
	}
	t.Logf("%d were sold, %d expired", sold, n-sold)
}

// Two servers sell, cancel and return several items in opposite orders: there is no deadlock, and nothing is lost.
func TestItemsAreUsedCrosswiseWithoutDeadlock(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	items := []string{"a", "b", "c", "d"}
	for _, item := range items {
		s.all(put(item, 2), restock(item, "r", 100))
	}
	ends := s.together(600, func(i int) command {
		item, no := items[(i*7)%4], fmt.Sprint("n", i*13%60)
		switch i % 5 {
		case 0, 1:
			return reserve(item, no, 1)
		case 2:
			return confirm(item, no)
		case 3:
			return cancel(item, no)
		}
		return unsell(item, fmt.Sprint("u", i), no, 1)
	})
	for end := range ends {
		if len(end) > 0 && (end[0] < 'A' || end == "INTERNAL" || end == "ROWS_LOCKED") {
			t.Errorf("ended %v", ends)
		}
	}
	if got := s.text("select count(*)::text from stock_items where available + reserved + sold <> 50"); got != "0" {
		t.Error(got)
	}
}
