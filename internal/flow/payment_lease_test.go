package flow_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/verify"
)

// leasing leases all calls in a transaction that commits only when a batch of during waits for it.
func (m *till) leasing(during func()) {
	m.Helper()
	ctx := context.Background()
	tx, err := m.super.Begin(ctx)
	if err != nil {
		m.Fatal(err)
	}
	defer func(tx pgx.Tx) { _ = tx.Rollback(ctx) }(tx)
	if _, err := tx.Exec(ctx, "update payment_calls set attempts = attempts + 1, lease_nonce = 1, "+
		"lease_expires_at = now() + interval '90 s'"); err != nil {
		m.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); during() }()
	for end := time.Now().Add(time.Minute); ; {
		if m.text(`select count(*)::text from pg_locks l join pg_database d on not l.granted
			and l.locktype = 'transactionid'
			and d.datname = current_database() join pg_stat_activity a on a.pid = l.pid
			and a.datname = d.datname`) != "0" {
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

// A caller that makes the first call itself gets the lease with the payment, so that no worker makes the call too.
func TestACallerHasTheCallOfItsPayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	c := &flow.CreatePayment{Caller: caller, OrderNo: "o", Gateway: "g", OutTradeNo: "p1",
		Lease: func(name string) time.Duration {
			if name != "g" {
				t.Errorf("the lease of gateway %q", name)
			}
			return time.Minute
		}}
	out, err := m.engines[0].Do(t.Context(), submission(flow.Submission{Command: c, Rows: 8, Bytes: 400}))
	if err != nil {
		t.Fatal(err)
	}
	l := out.Answer.(payment.View).Lease
	if l == nil || l.Subject != payment.OfPayment || l.Number != "p1" || l.Kind != payment.Submit || l.Attempts != 1 {
		t.Fatalf("the lease is %+v", l)
	}
	u := &payment.Queue{Pool: m.app}
	k := payment.GatewayKey{Tenant: caller.Tenant, Gateway: "g"}
	if taken, err := u.Take(t.Context(), k, 10, time.Minute); len(taken) > 0 || err != nil {
		t.Errorf("a worker has taken %+v: %v", taken, err)
	}
	if _, ok, err := u.TakeOne(t.Context(), caller.Tenant, payment.OfPayment, "p1", time.Minute, true); ok ||
		err != nil {
		t.Errorf("another caller has the call: %v", err)
	}
	if err := u.Again(t.Context(), *l, payment.Query, 0, "", ""); err != nil {
		t.Fatal(err)
	}
	if taken, err := u.Take(t.Context(), k, 10, time.Minute); len(taken) != 1 || taken[0].Kind != payment.Query ||
		err != nil {
		t.Errorf("after the lease: %+v: %v", taken, err)
	}
}

// A worker leases a call while a callback decides its payment: no call remains. If the order is cancelled meanwhile,
// the next call closes the payment.
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

// verify runs the checks of payments.
func (m *till) verify() {
	m.Helper()
	conn, err := m.super.Acquire(context.Background())
	if err != nil {
		m.Fatal(err)
	}
	defer conn.Release()
	r, err := verify.Whole(context.Background(), conn.Conn(), paymentChecks())
	if err != nil || len(r.Found) > 0 {
		m.Errorf("violations: %v, %v", r.Found, err)
	}
}
