package stock_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestItemsArePutAndRestocked(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.wants(restock("tea", "r1", 5), "ITEM_NOT_FOUND")
	c := put("tea", 0)
	c.Label, c.Metadata = "Tea", map[string]string{"leaf": "green"}
	s.wants(c, "tea (Tea): 0/0/0/0 in 1")
	s.wants(c, "tea (Tea): 0/0/0/0 in 1, existed")
	s.wants(restock("tea", "r1", 5), "r1: restock 5 of 5")
	s.wants(restock("tea", "r1", 5), "r1: restock 5 of 5, existed")
	s.wants(restock("tea", "r1", 6), "CHANGE_EXISTS_DIFFERENT differs=quantity")
	s.wants(adjust("tea", "r1", 5, ""), "CHANGE_EXISTS_DIFFERENT differs=call")
	s.wants(restock("tea", "r2", 1), "r2: restock 1 of 6")
	c.Label = "Green tea"
	s.wants(c, "tea (Green tea): 6/0/0/6 in 1")
	s.wants(restock("tea", "r3", 1_000_000_000_000_000), "STOCK_TOO_LARGE")
	s.wantCounts("tea", "6/0/0/6")
	if got := s.text("select label || metadata || (created_at < changed_at) " +
		"from stock_item_details"); got != `Green tea{"leaf": "green"}true` {
		t.Error(got)
	}
}

func TestReservationEndsOnce(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 10))
	s.wants(reserve("coffee", "a", 1), "ITEM_NOT_FOUND")
	s.wants(reserve("tea", "a", 4), "a: 4 reserved")
	s.wants(reserve("tea", "a", 4), "a: 4 reserved, existed")
	s.wants(reserve("tea", "a", 5), "RESERVATION_EXISTS_DIFFERENT differs=quantity")
	s.wants(deduct("tea", "a", 4), "RESERVATION_EXISTS_DIFFERENT differs=call")
	s.wants(reserve("tea", "b", 7), "OUT_OF_STOCK available=6")
	s.wantCounts("tea", "6/4/0/10")
	s.wants(confirm("tea", "a"), "a: 4 sold")
	s.wants(confirm("tea", "a"), "a: 4 sold, existed")
	s.wants(cancel("tea", "a"), "RESERVATION_ENDED state=sold")
	s.wants(reserve("tea", "a", 4), "a: 4 sold, existed")
	s.wantCounts("tea", "6/0/4/10")
	s.wants(reserve("tea", "b", 6), "b: 6 reserved")
	s.wants(cancel("tea", "b"), "b: 6 cancelled")
	s.wants(cancel("tea", "b"), "b: 6 cancelled, existed")
	s.wants(confirm("tea", "b"), "RESERVATION_ENDED state=cancelled")
	s.wants(reserve("tea", "b", 6), "b: 6 cancelled, existed")
	s.wantCounts("tea", "6/0/4/10")
	s.wants(confirm("tea", "c"), "RESERVATION_NOT_FOUND")
	s.wants(deduct("tea", "d", 6), "d: 6 sold")
	s.wants(deduct("tea", "d", 6), "d: 6 sold, existed")
	s.wants(reserve("tea", "e", 1), "OUT_OF_STOCK available=0")
	s.wantCounts("tea", "0/0/10/10")
}

// The cancellation of a saga may overtake its reservation.
func TestReserveAfterItsCancelIsRefused(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 10))
	s.wants(cancel("coffee", "a"), "ITEM_NOT_FOUND")
	s.wants(cancel("tea", "a"), "a: 0 cancelled")
	s.wants(reserve("tea", "a", 1), "RESERVATION_ENDED state=cancelled")
	s.wants(deduct("tea", "a", 1), "RESERVATION_ENDED state=cancelled")
	s.wants(confirm("tea", "a"), "RESERVATION_ENDED state=cancelled")
	s.wants(cancel("tea", "a"), "a: 0 cancelled, existed")
	if got := s.all(cancel("tea", "b"), reserve("tea", "b", 1)); got[1] != "RESERVATION_ENDED state=cancelled" {
		t.Errorf("in one batch: %v", got)
	}
	s.wantCounts("tea", "10/0/0/10")
}

func TestOneBatchCreatesAndSells(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	got := s.all(reserve("tea", "early", 1), put("tea", 3), restock("tea", "r", 4), reserve("tea", "a", 3),
		reserve("tea", "a", 3), confirm("tea", "a"), unsell("tea", "u", "a", 2), reserve("tea", "b", 4),
		deduct("tea", "c", 3), cancel("tea", "b"))
	want := []string{"ITEM_NOT_FOUND", "tea (): 0/0/0/0 in 3", "r: restock 4 of 4", "a: 3 reserved",
		"a: 3 reserved, existed", "a: 3 sold", "u: unsell 2 of 4", "OUT_OF_STOCK available=3", "c: 3 sold",
		"b: 0 cancelled"}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d\n got %s\nwant %s", i, got[i], want[i])
		}
	}
	s.wantCounts("tea", "0/0/4/4")
}

func TestAdjustmentsNeverTakePromisedUnits(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 10))
	s.all(reserve("tea", "a", 3), deduct("tea", "b", 2))
	s.wants(adjust("tea", "1", -6, "broken"), "STOCK_BELOW_PROMISED available=5")
	s.wants(adjust("tea", "1", -5, "broken"), "1: adjust -5 of 5 broken")
	s.wants(adjust("tea", "1", -5, "broken"), "1: adjust -5 of 5 broken, existed")
	s.wants(adjust("tea", "1", -5, "stolen"), "CHANGE_EXISTS_DIFFERENT differs=reason")
	s.wants(adjust("tea", "2", 2, "found"), "2: adjust 2 of 7 found")
	s.wantCounts("tea", "2/3/2/7")
}

func TestNoMoreComesBackThanWasSold(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 10))
	s.all(deduct("tea", "a", 5), reserve("tea", "b", 2))
	s.wants(unsell("tea", "1", "a", 3), "1: unsell 3 of 10")
	s.wants(unsell("tea", "1", "a", 3), "1: unsell 3 of 10, existed")
	s.wants(unsell("tea", "1", "b", 3), "CHANGE_EXISTS_DIFFERENT differs=reservation_no")
	s.wants(unsell("tea", "2", "a", 3), "UNSELL_EXCEEDS_SOLD remaining=2")
	s.wants(unsell("tea", "2", "a", 2), "2: unsell 2 of 10")
	s.wants(deduct("tea", "a", 5), "a: 5 sold, 5 unsold, existed")
	s.wants(unsell("tea", "3", "b", 1), "RESERVATION_NOT_SOLD state=reserved")
	s.wants(unsell("tea", "3", "c", 1), "RESERVATION_NOT_FOUND")
	s.wantCounts("tea", "8/2/0/10")
}

// Units of several segments come back to those that gave them, in parts too.
func TestUnitsComeBackToTheirSegments(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 3), restock("tea", "r", 6))
	segments := func(want string) {
		t.Helper()
		if got := s.text("select string_agg(available || '/' || reserved || '/' || sold, ' ' order by segment) " +
			"from stock_items"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	s.wants(deduct("tea", "a", 5), "a: 5 sold")
	segments("0/0/2 0/0/2 1/0/1")
	s.wants(unsell("tea", "1", "a", 1), "1: unsell 1 of 6")
	segments("1/0/1 0/0/2 1/0/1")
	s.wants(unsell("tea", "2", "a", 2), "2: unsell 2 of 6")
	segments("2/0/0 1/0/1 1/0/1")
	s.wants(unsell("tea", "3", "a", 2), "3: unsell 2 of 6")
	segments("2/0/0 2/0/0 2/0/0")
	s.wants(reserve("tea", "b", 3), "b: 3 reserved")
	segments("0/2/0 1/1/0 2/0/0")
	s.wants(cancel("tea", "b"), "b: 3 cancelled")
	segments("2/0/0 2/0/0 2/0/0")
	s.wants(put("tea", 4), "tea (): 6/0/0/6 in 4")
	s.wants(restock("tea", "r2", 5), "r2: restock 5 of 11")
	segments("2/0/0 2/0/0 3/0/0 4/0/0")
}

// A number may be used again after a refusal, and an error names nothing that was undone.
func TestRefusedReservationTakesNoNumber(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 2))
	s.wants(reserve("tea", "a", 3), "OUT_OF_STOCK available=2")
	s.wants(reserve("tea", "a", 2), "a: 2 reserved")
	s.wantCounts("tea", "0/2/0/2")
}

func TestSuperuserCannotOversell(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.all(put("tea", 0), restock("tea", "r", 2), reserve("tea", "a", 1))
	for sql, constraint := range map[string]string{
		"update stock_items set available = available - 2, sold = sold + 2":         "stock_items_available_check",
		"update stock_items set sold = sold + 1":                                    "stock_items_stocked_check",
		"update stock_items set reserved = reserved - 2, sold = sold + 2":           "stock_items_reserved_check",
		"update stock_items set sold = -1, available = available + 1":               "stock_items_sold_check",
		"update stock_items set stocked = 1":                                        "stock_items_stocked_check",
		"insert into stock_items values (1, 'tea', 1, 1, 'batched', 0, 0, 0, 0, 0)": "stock_items_segment_check",
		"update stock_reservations set unsold = 1":                                  "stock_reservations_unsold_check",
		"update stock_reservations set state = 'sold'":                              "stock_reservations_closed_check",
	} {
		_, err := s.super.Exec(t.Context(), sql)
		var e *pgconn.PgError
		if !errors.As(err, &e) || e.ConstraintName != constraint {
			t.Errorf("%s: %v", sql, err)
		}
	}
	for _, sql := range []string{"update stock_changes set quantity = 3", "delete from stock_changes",
		"truncate stock_changes", "update stock_reservations set quantity = 2", "delete from stock_reservations",
		"update stock_reservations set expires_at = now()", "truncate stock_reservations"} {
		if _, err := s.super.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is allowed", sql)
		}
	}
	s.wantCounts("tea", "1/1/0/2")
}
