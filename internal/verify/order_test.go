package verify_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/verify"
	"github.com/ledgerd/ledgerd/internal/verify/verifytest"
)

// lost are changes of paid orders that keep stock and ledger consistent: they change the counts of the item and the
// balances of the accounts as well.
var lost = []struct {
	name, sql string
	named     []string
}{
	{"a shipped order loses its goods", `update stock_reservations set state = 'cancelled'
		where reservation_no = 'paid-1/1';
		update stock_items set sold = sold - 2, available = available + 2`,
		[]string{"order_no=paid-1", "number=paid-1/1", "state=cancelled (should be sold)"}},
	{"an order that was paid at once loses its goods", `update stock_reservations set state = 'cancelled'
		where reservation_no = 'paid-2/1';
		update stock_items set sold = sold - 2, available = available + 2`,
		[]string{"order_no=paid-2", "state=cancelled (should be sold)"}},
	{"the transfer of an order gets another number", `update ledger_transfers set biz_no = 'other'
		where biz_no = 'paid-1/pay'`,
		[]string{"order_no=paid-1", "number=paid-1/pay", `problem="there is no such transfer"`}},
	{"the transfer that paid an order at once gets another number", `update ledger_transfers set biz_no = 'other'
		where biz_no = 'paid-2/pay'`,
		[]string{"order_no=paid-2", "number=paid-2/pay", `problem="there is no such transfer"`}},
	{"the hold of an unpaid order is deleted", `delete from ledger_holds where biz_no = 'open-1/hold';
		update ledger_accounts set held = 0, next_expiry_at = null where held > 0`,
		[]string{"order_no=open-1", "number=open-1/hold", `problem="there is no such hold"`}},
	{"the hold of a shipped order was released", `update ledger_holds set state = 'released', captured = 0
		where biz_no = 'paid-1/hold';
		update ledger_transfers set hold_id = null where biz_no = 'paid-1/pay'`,
		[]string{"order_no=paid-1", "number=paid-1/hold", "state=released (should be captured)"}},
}

func TestAPaidOrderLosesNothingUnseen(t *testing.T) {
	t.Parallel()
	filled := pgtest.New(t)
	t.Run("before", func(t *testing.T) {
		verifytest.New(t, filled).PaidOrders()
		before, err := verify.Run(t.Context(), pgtest.Pool(t, filled.AllDSN), verify.Options{})
		if err != nil || !before.OK() {
			t.Errorf("%v, %v", before.Violations, err)
		}
	})
	for _, c := range lost {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := filled.Copy(t)
			db.SkipChecks()
			conn := connect(t, db.SuperDSN)
			if _, err := conn.Exec(t.Context(), "set session_replication_role = replica; "+c.sql); err != nil {
				t.Fatal(err)
			}
			got, err := verify.Run(t.Context(), pgtest.Pool(t, db.AllDSN), verify.Options{})
			if err != nil {
				t.Fatal(err)
			}
			expect(t, got, []string{"order_parts_confirmed"}, c.named)
		})
	}
}
