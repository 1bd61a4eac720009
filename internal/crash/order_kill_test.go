package crash_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/ledgerd/ledgerd/client"
	batchv1 "github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/batch/v1/batchv1connect"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// withEverything is the Execute of docs/api/order.md: two items, a coupon, money and points, and a text message.
func withEverything(t *testing.T, no, code string) *batchv1.ExecuteRequest {
	t.Helper()
	r := new(batchv1.ExecuteRequest)
	for _, m := range []proto.Message{
		&orderv1.CreateOrderRequest{OrderNo: no, Subject: user(0), Asset: "CNY", Amount: "0.25", Coupon: code,
			Lines:   []*orderv1.OrderLine{{Item: "tea", Quantity: 1}, {Item: "cup", Quantity: 2}},
			Reserve: true, Payee: "world", Balance: &orderv1.BalancePart{Account: user(0)},
			Messages: []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613812345678",
				BusinessType: "order.paid",
				Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: "Order " + no +
					" is paid."}}}}},
		points(no+"/points", user(0), "world", "0.10"),
	} {
		packed, err := anypb.New(m)
		if err != nil {
			t.Fatal(err)
		}
		r.Operations = append(r.Operations, &batchv1.Operation{Request: packed})
	}
	return r
}

// execute calls one server, with a request key unless it is empty.
func (w *world) execute(n int, r *batchv1.ExecuteRequest, key string) (*batchv1.ExecuteResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if key != "" {
		ctx = context.WithValue(ctx, keyName{}, key)
	}
	return batchv1connect.NewBatchServiceClient(http.DefaultClient, w.url(n), w.auth()).Execute(ctx, r)
}

// textArgs are the arguments of a server that sends text messages.
func textArgs(t *testing.T, url string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"master": strings.Repeat("A", 43) + "=",
		"notify.yaml": fmt.Sprintf("sms:\n  - {kind: http, name: g, url: '%s', json: {to: '{recipient}', say: "+
			"'{text}'}, allow_http: true}\n", url)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"--secrets-file", filepath.Join(dir, "master"), "--notify", filepath.Join(dir, "notify.yaml")}
}

// TestAnOrderWithEverythingEndsTheSameWhereverItsServerIsKilled kills a server before each message between it and
// Postgres. A retry at the other server finds the complete order or creates it, once.
func TestAnOrderWithEverythingEndsTheSameWhereverItsServerIsKilled(t *testing.T) {
	t.Parallel()
	w := &world{t: t, db: &pgtest.Durable{DB: pgtest.New(t)}, args: textArgs(t, newGateway(t).URL)}
	for range 2 {
		w.lines = append(w.lines, newLine(t, w.db.AppDSN))
	}
	w.begin()
	const steps = 24 // more than the call has messages
	ctx := context.Background()
	c := client.New(w.url(1), client.WithAPIKey(w.apiKey))
	defer c.Close()
	for _, item := range []string{"tea", "cup"} {
		if _, err := c.Stock.PutItem(ctx, &stockv1.PutItemRequest{Item: item}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Stock.Restock(ctx, &stockv1.RestockRequest{Item: item, ChangeNo: "first",
			Quantity: 100}); err != nil {
			t.Fatal(err)
		}
	}
	kills := 0
	for step := range steps {
		no, code := fmt.Sprintf("killed-%02d", step), fmt.Sprintf("CODE-%02d", step)
		if _, err := c.Sales.IssueCoupons(ctx, &salev1.IssueCouponsRequest{Campaign: no,
			Codes: []string{code}}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Sales.ClaimCoupon(ctx, &salev1.ClaimCouponRequest{Code: code, Owner: user(0)}); err != nil {
			t.Fatal(err)
		}
		if w.killAt(step, no, withEverything(t, no, code)) {
			kills++
			w.servers[0].start(t)
		}
		w.until("a retry succeeds", func() bool {
			_, err := w.execute(1, withEverything(t, no, code), no)
			return err == nil
		})
		res, err := w.execute(0, withEverything(t, no, code), "")
		if err != nil || !res.GetResults()[0].GetExisted() || !res.GetResults()[1].GetExisted() {
			t.Errorf("step %d: %v, %v", step, res, err)
		}
	}
	if t.Logf("%d kills", kills); kills < 4 || kills == steps {
		t.Errorf("%d of %d calls were killed", kills, steps)
	}
	for what, sql := range map[string]string{
		"paid orders": "select count(*) from machine_instances where machine = 'order' and key like 'killed-%' " +
			"and state = 'paid'",
		"units sold": "select count(*) / 2 from stock_reservations where reservation_no like 'killed-%' " +
			"and state = 'sold'",
		"coupons":   "select count(*) from machine_instances where machine = 'coupon' and state = 'used'",
		"transfers": "select count(*) / 2 from ledger_transfers where biz_no like 'killed-%'",
		"messages":  "select count(*) from notify_messages where biz_no like 'killed-%'",
		"money": "select ((20 - balance) / 0.25)::bigint from audit.accounts where account = 'user:0' " +
			"and asset = 'CNY'",
		"points": "select ((20 - balance) / 0.10)::bigint from audit.accounts where account = 'user:0' " +
			"and asset = 'POINT'",
	} {
		if n := query[int64](w, w.db, sql); n != steps {
			t.Errorf("%d %s, want %d", n, what, steps)
		}
	}
	w.verify()
}

// killAt calls the first server, and kills the server before a message between it and Postgres. Step 0 is the first
// message that contains the text. killAt returns false if the call ended before this step.
func (w *world) killAt(step int, text string, r *batchv1.ExecuteRequest) (killed bool) {
	target, left := -1, step
	tap := func(conn int, data []byte) (int, bool) {
		if target < 0 && bytes.Contains(data, []byte(text)) {
			target = conn
		}
		if conn != target || killed {
			return len(data), false
		}
		if left--; left >= 0 {
			return len(data), false
		}
		killed = true
		w.servers[0].kill()
		return 0, true
	}
	l := w.lines[0]
	l.Tap(pgtest.Requests, tap)
	l.Tap(pgtest.Answers, tap)
	_, err := w.execute(0, r, text)
	l.Tap(pgtest.Requests, nil)
	l.Tap(pgtest.Answers, nil)
	if !killed && err != nil {
		w.t.Errorf("step %d: %v", step, err)
	}
	return killed
}
