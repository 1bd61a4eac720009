package notify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Tables returns the tables that the cleaner deletes from: expired fingerprints and counters, and queue rows of parked
// messages whose content is gone. Other rows are dropped with their partition, or kept.
func Tables() []clean.Table {
	return []clean.Table{
		{
			Name: "notify_fingerprints",
			Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
				return q.FingerprintClean(ctx, tx, limit)
			},
			Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.FingerprintOverdue(ctx, tx) },
		},
		{
			Name: "notify_counters",
			Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
				return q.CounterClean(ctx, tx, limit)
			},
			Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.CounterOverdue(ctx, tx) },
		},
		{
			Name: "notify_queue",
			Delete: func(ctx context.Context, tx pgx.Tx, limit int32) (int64, error) {
				return q.ParkedClean(ctx, tx, limit)
			},
			Overdue: func(ctx context.Context, tx pgx.Tx) (float64, error) { return q.ParkedOverdue(ctx, tx) },
		},
	}
}

// KeepPartitions creates future partitions, and drops partitions of contents in which all contents have expired.
// leftOver counts expired partitions that other sessions still use. Concurrent calls wait for each other, for at most a
// second, and then fail.
func KeepPartitions(ctx context.Context, pool *pgxpool.Pool) (made, dropped, leftOver int, err error) {
	for {
		r, err := q.PartitionsKeep(ctx, pool)
		if err != nil {
			return made, dropped, leftOver, fmt.Errorf("keep partitions of messages: %w", err)
		}
		made, dropped, leftOver = made+int(r.Made), dropped+int(r.Dropped), int(r.LeftOver)
		if r.Dropped == 0 {
			return made, dropped, leftOver, nil
		}
	}
}

// DropProofs drops the partitions of messages and events that are older than the given number of full months, at least
// 4, and returns how many it dropped. Only the owner of the schema has the right; the service does not.
func DropProofs(ctx context.Context, owner *pgxpool.Pool, months int32) (dropped int, err error) {
	for tries := 0; ; {
		r, err := q.ProofsDrop(ctx, owner, months)
		if err != nil {
			return dropped, fmt.Errorf("drop proofs of messages: %w", err)
		}
		if dropped += int(r.Dropped); r.Dropped == 0 {
			if r.LeftOver == 0 {
				return dropped, nil
			}
			if tries++; tries == maxTries { // each call waits up to 100 ms for the locks
				return dropped, fmt.Errorf("drop proofs of messages: other sessions use %d partitions: try again later",
					r.LeftOver)
			}
		}
	}
}

// maxTries limits how often DropProofs retries partitions that are in use.
const maxTries = 100
