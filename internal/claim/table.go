package claim

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/claim/internal/db"
)

// table is one of the two tables of claims: the same statements on each.
type table struct {
	name    string
	lock    func(context.Context, db.DBTX, db.ClaimLockParams) ([]db.ClaimLockRow, error)
	drop    func(context.Context, db.DBTX, []pgtype.TID) (string, error)
	count   func(context.Context, db.DBTX, db.ClaimCountParams) (string, error)
	renew   func(context.Context, db.DBTX, db.ClaimRenewParams) (string, error)
	insert  func(context.Context, db.DBTX, db.ClaimInsertParams) error
	get     func(context.Context, db.DBTX, db.ClaimGetParams) (db.ClaimGetRow, error)
	clean   func(context.Context, db.DBTX, int32) (int64, error)
	overdue func(context.Context, db.DBTX) (float64, error)
}

var q db.Queries

// tables are claim_keys and claim_volatile_keys, in the order in which batches lock them.
var tables = [2]table{
	{"claim_keys", q.ClaimLock, q.ClaimDrop, q.ClaimCount, q.ClaimRenew, q.ClaimInsert, q.ClaimGet, q.ClaimClean, q.ClaimOverdue},
	{
		name: "claim_volatile_keys",
		lock: func(ctx context.Context, d db.DBTX, arg db.ClaimLockParams) ([]db.ClaimLockRow, error) {
			rows, err := q.VolatileLock(ctx, d, db.VolatileLockParams(arg))
			same := make([]db.ClaimLockRow, len(rows))
			for i, r := range rows {
				same[i] = db.ClaimLockRow(r)
			}
			return same, err
		},
		drop: q.VolatileDrop,
		count: func(ctx context.Context, d db.DBTX, arg db.ClaimCountParams) (string, error) {
			return q.VolatileCount(ctx, d, db.VolatileCountParams(arg))
		},
		renew: func(ctx context.Context, d db.DBTX, arg db.ClaimRenewParams) (string, error) {
			return q.VolatileRenew(ctx, d, db.VolatileRenewParams(arg))
		},
		insert: func(ctx context.Context, d db.DBTX, arg db.ClaimInsertParams) error {
			return q.VolatileInsert(ctx, d, db.VolatileInsertParams(arg))
		},
		get: func(ctx context.Context, d db.DBTX, arg db.ClaimGetParams) (db.ClaimGetRow, error) {
			row, err := q.VolatileGet(ctx, d, db.VolatileGetParams(arg))
			return db.ClaimGetRow(row), err
		},
		clean:   q.VolatileClean,
		overdue: q.VolatileOverdue,
	},
}

// tableOf is where the keys of a scope are.
func tableOf(scope string) *table {
	if Volatile(scope) {
		return &tables[1]
	}
	return &tables[0]
}
