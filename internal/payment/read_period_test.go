package payment_test

import (
	"context"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// A page of a period far back reads its own rows, without statistics of the tables.
func TestListsOfAPeriodReadTheirOwnRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // the rows have no batches
	super, pool := pgtest.Pool(t, db.SuperDSN), pgtest.Pool(t, db.AllDSN)
	pgtest.StopAutovacuum(t, super)
	const at = "timestamptz '2026-01-01Z' + interval '1 min' * i"
	for _, sql := range []string{
		`insert into payment_transactions (tenant_id, gateway, transaction_id, out_trade_no, notice_id, currency, scale,
			amount, recorded_at)
			select 1, case when i % 2 = 0 then 'a' else 'b' end, 't' || i, 'p' || i, i, 'CNY', 2,
			i, ` + at + ` from generate_series(1, 30000) i`,
		`insert into payment_notices (tenant_id, notice_id, gateway, notify_id, callback, kind, out_trade_no, fields,
				effect, body, request_id, occurred_at, recorded_at)
			select 1, i, 'a', i, true, 'paid', 'p' || i, '{}', 'applied', '',
			'r', ` + at + `, ` + at + ` from generate_series(1, 30000) i`,
		`insert into payment_refunds (tenant_id, refund_no, refund_id, out_trade_no, gateway, transaction_id, currency,
				scale, amount, moves_order, principal, request_id, created_at)
			select 1, 'r' || i, i, 'p' || i, 'a', 't' || i, 'CNY', 2, i, false, 'p',
			'r', ` + at + ` from generate_series(1, 30000) i`,
		`insert into machine_instances (tenant_id, machine, key, instance_id, version, state, came_from, revision,
			cause, owner, created_at, changed_at)
			select 1, 'refund', 'r' || i, i, 1, 'succeeded', 'requested', 2, 'n',
			'p' || i, ` + at + `, ` + at + ` from generate_series(1, 30000) i`,
	} {
		if _, err := super.Exec(t.Context(), "begin; set local session_replication_role = replica; "+sql+
			"; commit"); err != nil {
			t.Fatal(err)
		}
	}
	r, start := payment.NewReader(pool), time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	period := payment.Period{Gateway: "a", From: start, Before: start.Add(20 * time.Minute)}
	for name, c := range map[string]struct {
		want int
		list func(ctx context.Context) (int, error)
	}{
		"transactions": {10, func(ctx context.Context) (int, error) {
			list, _, err := r.Transactions(ctx, 1, period, nil, 100, "")
			return len(list), err
		}},
		"numbers": {2, func(ctx context.Context) (int, error) {
			list, _, err := r.Transactions(ctx, 1, payment.Period{Gateway: "a"}, []string{"t2", "t3", "t4"}, 100, "")
			return len(list), err
		}},
		"refunds": {20, func(ctx context.Context) (int, error) {
			list, _, err := r.RefundsOf(ctx, 1, period, 100, "")
			return len(list), err
		}},
	} {
		for range 2 { // the first call reads the catalog
			before := pgtest.Touched(t, ".", super, pool)
			n, err := c.list(t.Context())
			if err != nil || n != c.want {
				t.Fatalf("%s: %d rows, %v", name, n, err)
			}
			if touched := pgtest.Touched(t, ".", super, pool) - before; touched > 400 {
				t.Errorf("%s: %d rows read %d blocks", name, n, touched)
			}
		}
	}
}
