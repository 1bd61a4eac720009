package load

import (
	"context"
	_ "embed" // of the call
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// baselineCaller calls the baseline's function over a connection of its own: a prepared statement
// through pgconn, below pgx's own conveniences, so that this client is as lean as the HTTP one.
type baselineCaller struct {
	conn     *pgconn.PgConn
	maker    *maker
	patience time.Duration
	params   [5][]byte
}

const baselineStatement = "transfer"

//go:embed baseline_call.sql
var baselineCall string

func newBaselineCaller(ctx context.Context, spec *Spec, n int) (*baselineCaller, error) {
	conn, err := pgconn.Connect(ctx, spec.DSN)
	if err != nil {
		return nil, err
	}
	_, err = conn.Prepare(ctx, baselineStatement, baselineCall, nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close(ctx))
	}
	c := &baselineCaller{conn: conn, maker: newMaker(spec, n), patience: spec.Patience}
	tenant := make([]byte, 10)
	putDecimal(tenant, int(spec.Tenant))
	c.params[0] = tenant
	return c, nil
}

func (c *baselineCaller) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx) // nothing is waiting on it
}

func (c *baselineCaller) call() outcome {
	t := c.maker.make()
	c.params[1], c.params[2], c.params[3], c.params[4] = t.bizNo[:], t.from[:], t.to[:], t.minor[:]
	if err := c.conn.Conn().SetDeadline(time.Now().Add(c.patience)); err != nil {
		return outcome{unknown: 1, err: err}
	}
	// The background context costs nothing to watch; the deadline is on the connection.
	r := c.conn.ExecPrepared(context.Background(), baselineStatement, c.params[:], nil, nil)
	_, err := r.Close()
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return outcome{succeeded: 1}
	case errors.As(err, &refused):
		return outcome{refused: 1, err: err}
	}
	return outcome{unknown: 1, err: err}
}
