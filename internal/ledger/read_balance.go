package ledger

import (
	"context"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
)

// Balance is an account's balance, now or at a time.
type Balance struct {
	Scale     uint8
	Balance   amount.Total // by effective time it may have more digits than an amount
	Held      amount.Int   // now only
	Available *amount.Int  // now only; nil: there is no bound, or a time was asked for
	Version   int64        // of the last entry counted; by effective time, of the last one known
}

// Balance is the balance now. Returns fault ACCOUNT_NOT_FOUND.
func (r *Reader) Balance(ctx context.Context, tenant int32, code, asset string) (Balance, error) {
	row, err := q.BalanceRead(ctx, r.one(), db.BalanceReadParams{TenantID: tenant, Code: code, Asset: asset})
	if err != nil {
		return Balance{}, orNotFound(err, tenant, code, asset)
	}
	b := Balance{Scale: uint8(row.Scale), Balance: row.Balance.Total(), Held: row.Held, Version: row.Version}
	a := Account{Balance: row.Balance, Held: row.Held, Min: row.MinBalance}
	if available, bounded := a.Available(); bounded {
		b.Available = &available
	}
	return b, nil
}

// BalanceAtRecord is the balance that the record shows at a time. The answer never changes, as long as
// the database's clock does not go back: what is recorded later has a later time, and a batch in
// flight, whose time may be earlier, is waited for. Returns faults ACCOUNT_NOT_FOUND, and
// FIELD_INVALID for a time to come.
func (r *Reader) BalanceAtRecord(ctx context.Context, tenant int32, code, asset string, at time.Time) (Balance, error) {
	arg := db.BalanceReadAtRecordParams{At: at, TenantID: tenant, Code: code, Asset: asset}
	row, err := q.BalanceReadAtRecord(ctx, r.one(), arg)
	if err == nil && row.Future {
		return Balance{}, fault.FieldInvalid.New("record_time: must not be in the future").WithField("record_time",
			"must not be in the future")
	}
	if err == nil && !row.Final {
		// Nothing later is recorded, so a batch in flight may yet record something earlier.
		if err = commit.AwaitRunning(ctx, r.one()); err == nil {
			row, err = q.BalanceReadAtRecord(ctx, r.one(), arg)
		}
	}
	if err != nil {
		return Balance{}, orNotFound(err, tenant, code, asset)
	}
	return Balance{Scale: uint8(row.Scale), Balance: row.Balance.Total(), Version: row.Version}, nil
}

// BalanceAtEffective is the balance by when things happened, at a time, as known now: of all entries
// whose effective time is not later, or whose recorded time when they have none. A time to come is
// answered too. Version is that of the account now: what is recorded later may change the answer. Returns fault
// ACCOUNT_NOT_FOUND.
func (r *Reader) BalanceAtEffective(ctx context.Context, tenant int32, code, asset string,
	at time.Time) (Balance, error) {
	row, err := q.BalanceReadAtEffective(ctx, r.one(),
		db.BalanceReadAtEffectiveParams{At: at, TenantID: tenant, Code: code, Asset: asset})
	if err != nil {
		return Balance{}, orNotFound(err, tenant, code, asset)
	}
	return Balance{Scale: uint8(row.Scale), Balance: amount.Total(row.Balance), Version: row.Version}, nil
}
