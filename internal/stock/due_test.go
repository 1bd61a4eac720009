package stock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// The first calls after reservations have become due, of all strategies and on two servers at once, can sell the freed
// units.
func TestUnitsOfDueReservationsAreNotSoldOut(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	for round := range 30 {
		item := fmt.Sprint("tea ", round)
		s.all(put(item, 1+round%3), restock(item, "r", 12))
		for n := range 4 {
			s.wants(reserve(item, fmt.Sprint("old", n), 3), fmt.Sprintf("old%d: 3 reserved", n))
		}
		clock.Set(t, time.Duration(round+1)*time.Hour)
		for end := range s.race(12, func(n int) flow.Submission {
			return by(allStrategies[n%len(allStrategies)], deduct(item, fmt.Sprint("n", n), 1))
		}) {
			if !strings.HasSuffix(end, ": 1 sold") {
				t.Error(end)
			}
		}
		s.wantCounts(item, "0/0/12/12")
	}
}

// Another session holds a due reservation. A call that needs its units waits, whatever its strategy, and is not refused
// as out of stock. Other calls do not wait.
func TestCallsWaitForDueReservationsThatAreHeld(t *testing.T) {
	t.Parallel()
	for _, strategy := range allStrategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			s, clock := timed(t)
			s.all(put("tea", 3), restock("tea", "r", 10), reserve("tea", "due", 6), reserve("tea", "free", 3))
			clock.Set(t, time.Hour)
			held := s.hold("select from stock_reservations where reservation_no = 'due' for update")
			if got := s.do(by(strategy, deduct("tea", "n1", 4))); got != "n1: 4 sold" { // 1 available, 3 of "free"
				t.Error(got)
			}
			ended := make(chan string, 2)
			for _, no := range []string{"n2", "n3"} {
				go func() { ended <- s.do(by(strategy, deduct("tea", no, 3))) }()
			}
			select {
			case got := <-ended:
				t.Errorf("answered before the reservation was released: %s", got)
			case <-time.After(300 * time.Millisecond):
			}
			s.wants(restock("tea", "r2", 1), "r2: restock 1 of 11")
			if got := s.do(by(strategy, deduct("tea", "small", 1))); got != "small: 1 sold" {
				t.Error(got)
			}
			if err := held.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a, b := <-ended, <-ended; a == b || a != "n2: 3 sold" && a != "n3: 3 sold" ||
				b != "n2: 3 sold" && b != "n3: 3 sold" {
				t.Errorf("%s, %s", a, b)
			}
			s.wants(deduct("tea", "n4", 1), "OUT_OF_STOCK available=0")
		})
	}
}

// An item has more due reservations than one batch expires, and another session holds one of them: the others expire.
func TestOneHeldReservationOfThousands(t *testing.T) {
	t.Parallel()
	const n = 2500
	s, clock := timed(t)
	commands := []command{put("tea", 2), restock("tea", "r", n)}
	for i := range n {
		commands = append(commands, reserve("tea", fmt.Sprint("due", i), 1))
	}
	s.all(commands...)
	clock.Set(t, time.Hour)
	held := s.hold("select from stock_reservations where reservation_no = 'due0' for update")
	s.wants(deduct("tea", "all", n-1), fmt.Sprintf("all: %d sold", n-1))
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wants(deduct("tea", "last", 1), "last: 1 sold")
}

// Another session holds more due reservations than one batch expires, all of them due before the only free one.
func TestThousandsOfHeldReservations(t *testing.T) {
	t.Parallel()
	const n = 2100
	s, clock := timed(t)
	commands := []command{put("tea", 0), restock("tea", "r", n+1)}
	for i := range n {
		commands = append(commands, reserve("tea", fmt.Sprint("held", i), 1))
	}
	s.all(commands...)
	clock.Set(t, time.Second)
	s.wants(reserve("tea", "free", 1), "free: 1 reserved")
	clock.Set(t, time.Hour)
	held := s.hold("select from stock_reservations where reservation_no <> 'free' for update")
	ended := make(chan string, 1)
	go func() { ended <- s.do(submission(deduct("tea", "all", n+1))) }()
	select {
	case got := <-ended:
		t.Errorf("answered before the reservations were released: %s", got)
	case <-time.After(300 * time.Millisecond):
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got != fmt.Sprintf("all: %d sold", n+1) {
		t.Error(got)
	}
}

// If the other session keeps the reservation, the call ends with ROWS_LOCKED, which is not recorded.
func TestHeldDueReservationsAreReportedAsLocked(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	s.all(put("tea", 0), restock("tea", "r", 10), reserve("tea", "due", 10))
	clock.Set(t, time.Hour)
	held := s.hold("select from stock_reservations where reservation_no = 'due' for update")
	for _, c := range []command{deduct("tea", "n1", 1), adjust("tea", "c1", -1, "lost")} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if _, err := s.engines[0].Do(ctx, submission(c)); !fault.Is(err, fault.RowsLocked) {
			t.Errorf("%T: %v", c, err)
		}
		cancel()
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.wants(deduct("tea", "n1", 9), "n1: 9 sold")
	s.wants(adjust("tea", "c1", -1, "lost"), "c1: adjust -1 of 9 lost")
}

// Reads count due reservations as expired, before that is recorded.
func TestReadsCountDueReservationsAsExpired(t *testing.T) {
	t.Parallel()
	s, clock := timed(t)
	later := reserve("tea", "later", 2)
	later.Life = 2 * time.Hour
	s.all(put("tea", 2), restock("tea", "r", 10), reserve("tea", "due", 3), later)
	clock.Set(t, time.Hour)
	r, k := stock.NewReader(s.super), stock.ItemKey{Tenant: 1, Item: "tea"}
	one, err := r.Reservation(t.Context(), k, "due")
	if err != nil || one.State != stock.Expired || !one.ClosedAt.Equal(one.ExpiresAt) {
		t.Errorf("%+v, %v", one, err)
	}
	item, err := r.Item(t.Context(), k)
	items, _, err2 := r.Items(t.Context(), 1, "", stock.Page{})
	if err != nil || err2 != nil || line(item.Counts) != "8/2/0/10" || len(items) != 1 ||
		line(items[0].Counts) != "8/2/0/10" {
		t.Errorf("%+v, %+v, %v, %v", item, items, err, err2)
	}
	for state, want := range map[string]string{"": "due expired, later reserved", stock.Reserved: "later reserved",
		stock.Expired: "due expired", stock.Sold: ""} {
		list, _, err := r.Reservations(t.Context(), k, state, stock.Page{})
		var got []string
		for _, x := range list {
			got = append(got, x.ReservationNo+" "+x.State)
		}
		if strings.Join(got, ", ") != want || err != nil {
			t.Errorf("%s: %v, %v", state, got, err)
		}
	}
	s.wantCounts("tea", "5/5/0/10")
}

// hold runs a statement in a transaction that stays open.
func (s *shop) hold(sql string) pgx.Tx {
	s.Helper()
	tx, err := s.super.Begin(s.Context())
	if err == nil {
		_, err = tx.Exec(s.Context(), sql)
	}
	if err != nil {
		s.Fatal(err)
	}
	return tx
}
