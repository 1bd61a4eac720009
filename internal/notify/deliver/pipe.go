package deliver

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
)

// steered runs statements in one round trip, which is one transaction, with plans that do not hang on statistics. It
// tells the time of the transaction by the database's clock.
func (p *Pool) steered(ctx context.Context, all ...func(db.DBTX) error) (now time.Time, err error) {
	err = p.DB.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		pipe := commit.NewPipe(ctx)
		pipe.Queue(func(d commit.DB) error {
			row, err := q.PlanSteer(ctx, d)
			now = row.Now
			return err
		})
		for _, run := range all {
			pipe.Queue(func(d commit.DB) error { return run(d) })
		}
		return end(c.Conn(), pipe.Run(c.Conn()))
	})
	return now, err
}

// end leaves no connection behind that is in the middle of something.
func end(conn *pgx.Conn, err error) error {
	if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}
	return err
}
