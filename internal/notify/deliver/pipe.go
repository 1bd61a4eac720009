package deliver

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/notify/deliver/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// transact runs statements in one round trip and one transaction, with planner settings that make plans independent of
// statistics. They see the tenants of the context. It returns the transaction's time by the database clock. It fails if
// the wait for a synchronous standby was cancelled.
func (p *Pool) transact(ctx context.Context, all ...func(db.DBTX) error) (now time.Time, err error) {
	err = p.DB.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		pg.ClearWarning(c.Conn())
		pipe := commit.NewPipe(ctx)
		pipe.Queue(func(d commit.DB) error {
			row, err := q.PlanSteer(ctx, d, pg.TenantsOf(ctx))
			now = row.Now
			return err
		})
		for _, run := range all {
			pipe.Queue(func(d commit.DB) error { return run(d) })
		}
		if err := end(c.Conn(), pipe.Run(c.Conn())); err != nil || !pg.Warned(c.Conn()) {
			return err
		}
		return errors.New("the database warned that the commit may be lost")
	})
	return now, err
}

// end closes a connection that is not idle after an error.
func end(conn *pgx.Conn, err error) error {
	if err != nil && !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}
	return err
}
