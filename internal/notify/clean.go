package notify

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/clean"
)

// Tables are fingerprints and counters, as the cleaner sees them, and what of the queue nobody can send any more.
// Everything else goes with its partition, or stays.
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

// KeepPartitions makes the partitions to come and drops those of contents on their day. What somebody uses is left over
// for the next time. One process at a time does it.
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

// DropProofs drops the proof of messages that is older than so many full months, 4 at least, and tells how many
// partitions that were. The service may not: it is the owner's decision.
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
			if tries++; tries == mostTries { // each looks for 100 ms whether they are free
				return dropped, fmt.Errorf("drop proofs of messages: other sessions use %d partitions: try again later",
					r.LeftOver)
			}
		}
	}
}

// mostTries is how often DropProofs comes upon partitions that are in use.
const mostTries = 100
