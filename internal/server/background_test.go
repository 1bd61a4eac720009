package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	_, err1 := s.Pool.Exec(ctx, `set session_replication_role = replica;
		update stock_reservations set life_ms = 1, expires_at = created_at + interval '1 ms';
		reset session_replication_role`)
	_, err2 := s.Pool.Exec(ctx, "update stock_items set next_expiry_at = (select min(expires_at) "+
		"from stock_reservations)")
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

func failedExpiries(s *servertest.Site) int {
	return len(s.Log.With("msg", "expire reservations failed"))
}

// The next runs do not skip a tenant because of locked rows, however many there are.
func TestManyLockedItemsExpireOnceTheyAreFree(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	c := writer(s)
	for n := range 60 {
		reserve(c, fmt.Sprint("item-", n))
	}
	lock := restartWithLocks(s)
	servertest.Eventually(t, 20*time.Second, "a run fails", func() bool { return failedExpiries(s) > 0 })
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, 15*time.Second, "the reservations expire", func() bool {
		return s.Count("select count(*) from stock_reservations where state = 'reserved'") == 0
	})
}

// A tenant with more locked rows than one run can wait for does not delay other tenants.
func TestThousandsOfLockedItemsDelayNoOtherTenant(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	reserve(writer(s), "item")
	for _, sql := range []string{ // copies of the item
		"insert into stock_items select tenant_id, item || i, segment, segments, strategy, available, reserved, " +
			"sold, stocked, version, next_expiry_at",
		"insert into stock_item_details " +
			"select tenant_id, item || i, label, metadata, created_at, changed_at, principal, request_id",
		"insert into stock_change_names select tenant_id, item || i, change_no, change_id + 5000 + i",
		`insert into stock_changes (tenant_id, change_id, item, change_no, kind, quantity, stocked_after,
			reservation_no, reason, changed_at, principal, request_id)
			select tenant_id, change_id + 5000 + i, item || i, change_no, kind, quantity, stocked_after, reservation_no,
			reason, changed_at, principal, request_id`,
		`insert into stock_reservations (tenant_id, item, reservation_no, reservation_id, quantity, unsold, segment,
				state, life_ms, created_at, expires_at, principal, request_id)
			select tenant_id, item || i, reservation_no, reservation_id + 100 + i, quantity, unsold, segment, state,
				life_ms, created_at, expires_at, principal, request_id`,
	} {
		table := strings.Fields(sql)[2]
		if _, err := s.Pool.Exec(t.Context(), sql+" from "+table+
			", generate_series(1, 1999) i where item = 'item'"); err != nil {
			t.Fatal(err)
		}
	}
	reserve(&servertest.Caller{Site: s, APIKey: s.Key("other", "boss", access.Admin)}, "free")
	restartWithLocks(s)
	servertest.Eventually(t, 30*time.Second, "the free item's reservation expires", func() bool {
		return s.Count("select count(*) from stock_reservations where item = 'free' and state = 'expired'") == 1
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
	servertest.Eventually(t, 20*time.Second, "the free item's reservation expires", func() bool {
		return s.Count("select count(*) from stock_reservations where item = 'free' and state = 'expired'") == 1
	})
	if n := failedExpiries(s); n > 0 {
		t.Errorf("%d runs failed before", n)
	}
}
