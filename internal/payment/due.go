package payment

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// DueFlag names a payment that its gateway reported as paid and that was not created in time.
type DueFlag struct {
	Key
	At time.Time
}

// DueFlags finds such payments, the oldest first, after the given one.
func DueFlags(ctx context.Context, pool *pgxpool.Pool, after DueFlag, limit int32) ([]DueFlag, error) {
	rows, err := q.CallFlagDue(pg.ForAllTenants(ctx), pg.Planned{DB: pool}, db.CallFlagDueParams{After: after.At,
		AfterTenant: after.Tenant, AfterNumber: after.OutTradeNo, Batch: limit})
	due := make([]DueFlag, len(rows))
	for i, r := range rows {
		due[i] = DueFlag{Key{r.TenantID, r.Number}, r.NextCallAt}
	}
	return due, err
}

// Leased is a call under a lease.
type Leased struct {
	Subject  Subject
	Number   string
	Kind     CallKind
	Attempts int // this one included
	tenant   int32
	nonce    int64
}

// Queue leases calls to workers. It is safe for concurrent use.
type Queue struct{ Pool *pgxpool.Pool }

// newNonce returns a random number for a lease, which its holder names to end it. It is never 0, which means no lease.
func newNonce() int64 { return 1 + rand.Int64N(math.MaxInt64) }

// Take leases calls of a gateway that are due, for a time.
func (u *Queue) Take(ctx context.Context, k GatewayKey, n int, lease time.Duration) ([]Leased, error) {
	nonce := newNonce()
	ctx = pg.ForTenants(ctx, k.Tenant)
	rows, err := q.CallTake(ctx, pg.Planned{DB: u.Pool}, db.CallTakeParams{TenantID: k.Tenant, Gateway: k.Gateway,
		LeaseNonce: nonce, LeaseS: lease.Seconds(), Count: int32(n)})
	list := make([]Leased, len(rows))
	for i, r := range rows {
		list[i] = Leased{Subject(r.Subject), r.Number, CallKind(r.Call), int(r.Attempts), k.Tenant, nonce}
	}
	return list, err
}

// TakeOne leases one call; if early is set, even before it is due. ok is false if there is none, or a worker has it.
func (u *Queue) TakeOne(ctx context.Context, tenant int32, s Subject, number string, lease time.Duration, early bool) (
	l Leased, ok bool, err error) {
	nonce := newNonce()
	ctx = pg.ForTenants(ctx, tenant)
	rows, err := q.CallTakeOne(ctx, pg.Planned{DB: u.Pool}, db.CallTakeOneParams{TenantID: tenant, Subject: string(s),
		Number: number, LeaseNonce: nonce, LeaseS: lease.Seconds(), Early: early})
	if err != nil || len(rows) == 0 {
		return l, false, err
	}
	r := rows[0]
	return Leased{Subject(r.Subject), r.Number, CallKind(r.Call), int(r.Attempts), tenant, nonce}, true, nil
}

// Running reports whether a worker has the call about a payment or refund.
func (u *Queue) Running(ctx context.Context, tenant int32, s Subject, number string) (bool, error) {
	ctx = pg.ForTenants(ctx, tenant)
	return q.CallRunning(ctx, pg.Planned{DB: u.Pool}, db.CallRunningParams{TenantID: tenant, Subject: string(s),
		Number: number})
}

// Again reschedules a call after a wait, unless the payment has been decided meanwhile, or another worker has the call.
// code and text are the error of the last try; empty: none.
func (u *Queue) Again(ctx context.Context, l Leased, kind CallKind, wait time.Duration, code, text string) error {
	ctx = pg.ForTenants(ctx, l.tenant)
	_, err := q.CallAgain(ctx, pg.Planned{DB: u.Pool}, db.CallAgainParams{TenantID: l.tenant,
		Subject: string(l.Subject), Number: l.Number, LeaseNonce: l.nonce, Call: string(kind), WaitS: wait.Seconds(),
		Code: code, Message: text})
	return err
}

// Stat is the state of the calls of one gateway.
type Stat struct {
	GatewayKey
	Calls int64
	Age   float64 // of the oldest, in seconds
}

// Stats returns the calls that are due, and the number of open flags, of all tenants.
func (u *Queue) Stats(ctx context.Context) (stats []Stat, flags int64, err error) {
	ctx = pg.ForAllTenants(ctx)
	rows, err := q.CallStats(ctx, pg.Planned{DB: u.Pool})
	if err != nil {
		return nil, 0, err
	}
	for _, r := range rows {
		stats = append(stats, Stat{GatewayKey{r.TenantID, r.Gateway}, r.Calls, r.Age})
	}
	flags, err = q.FlagStats(ctx, pg.Planned{DB: u.Pool})
	return stats, flags, err
}
