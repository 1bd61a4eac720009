package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/types/known/durationpb"

	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/server"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// reserve makes an item with an open reservation.
func reserve(c *servertest.Caller, item string) {
	c.T.Helper()
	c.OK("Stock.PutItem", &stockv1.PutItemRequest{Item: item}, new(stockv1.PutItemResponse))
	c.OK("Stock.Restock", &stockv1.RestockRequest{Item: item, ChangeNo: "1", Quantity: 1}, new(stockv1.RestockResponse))
	c.OK("Stock.Reserve", &stockv1.ReserveRequest{Item: item, ReservationNo: "1", Quantity: 1,
		Life: durationpb.New(time.Hour)}, new(stockv1.ReserveResponse))
}

// restartWithLocks starts the server anew when all reservations are due, and locks all items but "free".
func restartWithLocks(s *servertest.Site) (lock pgx.Tx) {
	s.T.Helper()
	s.Server.Stop()
	ctx := context.Background()
	_, err1 := s.Pool.Exec(ctx, "update stock_reservations set life_ms = 1, expires_at = created_at + interval '1 ms'")
	_, err2 := s.Pool.Exec(ctx, "update stock_items set next_lapse_at = (select min(expires_at) from stock_reservations)")
	lock, err3 := s.Pool.Begin(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = lock.Rollback(ctx) })
	if _, err := lock.Exec(ctx, "select from stock_items where item <> 'free' for update"); err != nil {
		s.T.Fatal(err)
	}
	s.Start(server.Options{})
	return lock
}

func failedLapses(s *servertest.Site) int { return len(s.Log.With("msg", "lapse reservations failed")) }

// Locked rows are no reason to leave their tenant out of the next runs, however many there are.
func TestManyLockedItemsLapseOnceTheyAreFree(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	for n := range 60 {
		reserve(c, fmt.Sprint("item-", n))
	}
	lock := restartWithLocks(s)
	servertest.Eventually(t, 20*time.Second, "a run fails", func() bool { return failedLapses(s) > 0 })
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, 15*time.Second, "the reservations lapse", func() bool {
		return s.Count("select count(*) from stock_reservations where state = 'reserved'") == 0
	})
}

// Tenants with locked rows do not delay another one, however many there are.
func TestLockedItemsOfManyTenantsDelayNoOther(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	for n := range 8 {
		reserve(&servertest.Caller{Site: s, APIKey: s.Key(fmt.Sprint("locked-", n), "boss", access.Admin)}, "item")
	}
	reserve(&servertest.Caller{Site: s, APIKey: s.Key("other", "boss", access.Admin)}, "free")
	restartWithLocks(s)
	servertest.Eventually(t, 20*time.Second, "the free item's reservation lapses", func() bool {
		return s.Count("select count(*) from stock_reservations where item = 'free' and state = 'expired'") == 1
	})
	if n := failedLapses(s); n > 0 {
		t.Errorf("%d runs failed before", n)
	}
}
