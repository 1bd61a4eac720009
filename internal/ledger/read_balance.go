package ledger

import (
	"context"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
)

// Balance is an account's balance, now or at a past time.
type Balance struct {
	Scale     uint8
	Balance   amount.Total // by effective time it may exceed the digits of an amount
	Held      amount.Int   // now only
	Available *amount.Int  // now only; nil: unbounded, or at a past time
	Version   int64        // of the last entry included; by effective time, of the latest entry
}

// Balance returns the current balance. Returns fault ACCOUNT_NOT_FOUND.
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

// BalanceAtRecord returns the balance as recorded at a time. The answer is stable as long as the database's
// clock does not go back: later entries have later times, and the call waits for running batches, whose times
// may be earlier. Returns faults ACCOUNT_NOT_FOUND, and FIELD_INVALID for a future time.
func (r *Reader) BalanceAtRecord(ctx context.Context, tenant int32, code, asset string, at time.Time) (Balance, error) {
	arg := db.BalanceReadAtRecordParams{At: at, TenantID: tenant, Code: code, Asset: asset}
	row, err := q.BalanceReadAtRecord(ctx, r.one(), arg)
	if err == nil && row.Future {
		return Balance{}, fault.InvalidField("record_time", "must not be in the future")
	}
	if err == nil && !row.Final {
		// The account has no entry after that time, so a running batch may still record one before it: wait.
		if err = commit.AwaitRunning(ctx, r.one()); err == nil {
			row, err = q.BalanceReadAtRecord(ctx, r.one(), arg)
		}
	}
	if err != nil {
		return Balance{}, orNotFound(err, tenant, code, asset)
	}
	return Balance{Scale: uint8(row.Scale), Balance: row.Balance.Total(), Version: row.Version}, nil
}

// BalanceAtEffective returns the balance by effective time, as known now: the sum of all entries whose
// effective time, by default their recorded time, is not later. A future time is allowed. Version is the
// account's current version, because later entries may change the answer. Returns fault ACCOUNT_NOT_FOUND.
func (r *Reader) BalanceAtEffective(ctx context.Context, tenant int32, code, asset string,
	at time.Time) (Balance, error) {
	row, err := q.BalanceReadAtEffective(ctx, r.one(),
		db.BalanceReadAtEffectiveParams{At: at, TenantID: tenant, Code: code, Asset: asset})
	if err != nil {
		return Balance{}, orNotFound(err, tenant, code, asset)
	}
	return Balance{Scale: uint8(row.Scale), Balance: amount.Total(row.Balance), Version: row.Version}, nil
}
