package claim

import (
	"context"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/claim/internal/db"
)

// table is one of the two tables of claims: the same statements on each.
type table struct {
	name string
	lock func(context.Context, db.DBTX, db.ClaimLockParams) ([]db.ClaimLockRow, error)
	read func(context.Context, db.DBTX, db.ClaimLockParams) ([]db.ClaimLockRow, error)
	// confirm locks what was read.
	confirm func(context.Context, db.DBTX, db.ClaimConfirmParams) (string, error)
	// absent makes sure that there is none.
	absent  func(context.Context, db.DBTX, db.ClaimAbsentParams) (string, error)
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
	{
		name: "claim_keys",
		lock: q.ClaimLock,
		read: func(ctx context.Context, d db.DBTX, arg db.ClaimLockParams) ([]db.ClaimLockRow, error) {
			rows, err := q.ClaimRead(ctx, d, db.ClaimReadParams(arg))
			return sameRows(rows, func(r db.ClaimReadRow) db.ClaimLockRow { return db.ClaimLockRow(r) }), err
		},
		confirm: q.ClaimConfirm, absent: q.ClaimAbsent, drop: q.ClaimDrop, count: q.ClaimCount, renew: q.ClaimRenew, insert: q.ClaimInsert,
		get: q.ClaimGet, clean: q.ClaimClean, overdue: q.ClaimOverdue,
	},
	{
		name: "claim_volatile_keys",
		lock: func(ctx context.Context, d db.DBTX, arg db.ClaimLockParams) ([]db.ClaimLockRow, error) {
			rows, err := q.VolatileLock(ctx, d, db.VolatileLockParams(arg))
			return sameRows(rows, func(r db.VolatileLockRow) db.ClaimLockRow { return db.ClaimLockRow(r) }), err
		},
		read: func(ctx context.Context, d db.DBTX, arg db.ClaimLockParams) ([]db.ClaimLockRow, error) {
			rows, err := q.VolatileRead(ctx, d, db.VolatileReadParams(arg))
			return sameRows(rows, func(r db.VolatileReadRow) db.ClaimLockRow { return db.ClaimLockRow(r) }), err
		},
		confirm: func(ctx context.Context, d db.DBTX, arg db.ClaimConfirmParams) (string, error) {
			return q.VolatileConfirm(ctx, d, db.VolatileConfirmParams(arg))
		},
		absent: func(ctx context.Context, d db.DBTX, arg db.ClaimAbsentParams) (string, error) {
			return q.VolatileAbsent(ctx, d, db.VolatileAbsentParams(arg))
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

// sameRows are rows of one statement as those of another, which has the same columns.
func sameRows[R any](rows []R, same func(R) db.ClaimLockRow) []db.ClaimLockRow {
	converted := make([]db.ClaimLockRow, len(rows))
	for i, r := range rows {
		converted[i] = same(r)
	}
	return converted
}

// tableOf is where the keys of a scope are.
func tableOf(scope string) *table {
	if Volatile(scope) {
		return &tables[1]
	}
	return &tables[0]
}
