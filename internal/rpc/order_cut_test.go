package rpc_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server"
)

// everything is the example of docs/api/order.md: two items, a coupon, money and points, and a text message. The
// account pays an amount; if that is empty, it pays all, and the order is paid at once.
func everything(no, code, pays string) *batchv1.ExecuteRequest {
	text := sms(no)
	text.BizNo = ""
	return execute(operation("order", &orderv1.CreateOrderRequest{OrderNo: no, Subject: "user:1", Asset: "COIN",
		Amount: "2", Reserve: true, Coupon: code, Payee: "world", Messages: []*notifyv1.SendRequest{text},
		Balance: &orderv1.BalancePart{Account: "u:a", Amount: pays},
		Lines:   []*orderv1.OrderLine{{Item: "tea", Quantity: 1}, {Item: "a", Quantity: 1}}}),
		operation("points", &ledgerv1.TransferRequest{BizNo: no + "/points",
			Postings: posting("world", "u:a", "COIN", "0.5")}))
}

// The connection of an Execute breaks before each of its messages to and from Postgres. A repeat finds or creates the
// whole order, once.
func TestOrderWithEverythingIsCutAnywhere(t *testing.T) {
	t.Parallel()
	t.Run("unpaid", func(t *testing.T) {
		t.Parallel()
		cutAnywhere(t, "1", lockedCoupon, map[string]string{
			"reservations": "select count(*) / 2 from stock_reservations where reservation_no like 'cut-%' " +
				"and state = 'reserved'",
			"holds":     "select count(*) from ledger_holds where biz_no like 'cut-%' and state = 'held'",
			"transfers": "select count(*) from ledger_transfers where biz_no like 'cut-%'"})
	})
	t.Run("paid", func(t *testing.T) {
		t.Parallel()
		cutAnywhere(t, "", usedCoupon, map[string]string{
			"reservations": "select count(*) / 2 from stock_reservations where reservation_no like 'cut-%' " +
				"and state = 'sold'",
			"paid orders": "select count(*) from machine_instances where key like 'cut-%' and state = 'paid'",
			"transfers":   "select count(*) / 2 from ledger_transfers where biz_no like 'cut-%'"})
	})
}

// cutAnywhere cuts the connection of orders at each message, and counts the rows in the end.
func cutAnywhere(t *testing.T, pays string, coupon salev1.CouponState, counts map[string]string) {
	c := orderSite(t)
	p := pgtest.NewProxy(t, c.DB.AppDSN)
	c.Server.Stop()
	c.Start(server.Options{DatabaseURL: p.DSN})
	const steps = 24 // more than an Execute has messages
	var codes []string
	for step := range steps {
		codes = append(codes, fmt.Sprint("CUT-", step))
		ok(c, "Sale.IssueCoupons", issue(fmt.Sprint("cut-", step), codes[step]), new(salev1.IssueCouponsResponse))
		ok(c, "Sale.ClaimCoupon", claimCoupon(codes[step], "user:1"), new(salev1.ClaimCouponResponse))
	}
	cuts := 0
	for step := range steps {
		no := fmt.Sprintf("cut-%02d", step)
		target, left, cut := -1, step, false
		// The first message that has the number is step 0.
		tap := func(conn int, data []byte) (int, bool) {
			if target < 0 && bytes.Contains(data, []byte(no)) {
				target = conn
			}
			if conn != target || cut {
				return len(data), false
			}
			if left--; left >= 0 {
				return len(data), false
			}
			cut = true
			return 0, true
		}
		p.Tap(pgtest.Requests, tap)
		p.Tap(pgtest.Answers, tap)
		eventually(t, time.Minute, "it is done", func() bool {
			a := c.call(connectJSON, "Batch.Execute", everything(no, codes[step], pays), "Idempotency-Key", no)
			return a.Code == ""
		})
		p.Tap(pgtest.Requests, nil)
		p.Tap(pgtest.Answers, nil)
		if cut {
			cuts++
		}
		if _, existed := c.executed(everything(no, codes[step], pays)); !slices.Equal(existed, []bool{true, true}) {
			t.Errorf("step %d: %v", step, existed)
		}
		c.wantCoupon(codes[step], coupon)
	}
	if cuts < 4 || cuts == steps {
		t.Errorf("%d of %d calls were cut", cuts, steps)
	}
	counts["orders"] = "select count(*) from order_orders where order_no like 'cut-%'"
	counts["messages"] = "select count(*) from notify_messages where biz_no like 'cut-%'"
	for what, query := range counts {
		if n := c.Count(query); n != steps {
			t.Errorf("%d %s, want %d", n, what, steps)
		}
	}
}
