package flow_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/gateway"
)

// leasing leases the calls at gateways as a worker does that commits only when a batch waits for it.
func (m *till) leasing(during func()) {
	m.Helper()
	ctx := context.Background()
	tx, err := m.super.Begin(ctx)
	if err != nil {
		m.Fatal(err)
	}
	defer func(tx pgx.Tx) { _ = tx.Rollback(ctx) }(tx)
	if _, err := tx.Exec(ctx, "update payment_calls set attempts = attempts + 1, fence = 1, lease_until = now() + interval '90 s'"); err != nil {
		m.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); during() }()
	for end := time.Now().Add(time.Minute); ; {
		if m.text(`select count(*)::text from pg_locks l join pg_database d on not l.granted and l.locktype = 'transactionid'
			and d.datname = current_database() join pg_stat_activity a on a.pid = l.pid and a.datname = d.datname`) != "0" {
			break
		}
		if time.Now().After(end) {
			m.Fatal("no batch waits for the lease")
		}
	}
	if err := tx.Commit(ctx); err != nil {
		m.Error(err)
	}
	<-done
}

// A worker leases a call at the moment in which a callback decides its payment: nothing is left to ask. And if its order
// is cancelled then, the gateway is asked to close the payment.
func TestACallThatIsBeingLeasedEnds(t *testing.T) {
	t.Parallel()
	call := "select coalesce((select call from payment_calls), 'none')"
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	m.leasing(func() { m.says(notice("n1"), "applied") })
	if got := m.text(call); got != "none" {
		t.Errorf("the next call of a paid payment is %s", got)
	}
	m.payableOrder("o1")
	m.create("o1", "p3")
	m.leasing(func() { m.says(notice("n3", kind(gateway.Closed), of("p3", "")), "applied") })
	if got := m.text(call); got != "none" {
		t.Errorf("the next call of a closed payment is %s", got)
	}
	m.payableOrder("o2")
	m.create("o2", "p2")
	m.leasing(func() { m.wants(cancelOrder("o2"), "o2 cancelled") })
	if got := m.text(call); got != "close" {
		t.Errorf("the next call of a cancelled order's payment is %s", got)
	}
}
