package pgtest

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Trips counts the round trips of pipelined batches, as the engine sends them.
type Trips struct{ atomic.Int64 }

// CountingPool is a Pool with a counter of its round trips.
func CountingPool(t testing.TB, dsn string) (*pgxpool.Pool, *Trips) {
	t.Helper()
	trips := new(Trips)
	config := Pool(t, dsn).Config()
	config.ConnConfig.Tracer = trips
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool, trips
}

// TraceBatchStart counts a round trip.
func (n *Trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	n.Add(1)
	return ctx
}

// The other tracer methods do nothing.

func (n *Trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (n *Trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (n *Trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (n *Trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
