package load

import (
	"context"
	_ "embed" // of the call
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// baselineCaller calls the baseline's function over its own connection. It uses a prepared statement through
// pgconn, below pgx's conveniences, so that this client is as lean as the HTTP one.
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
	_ = c.conn.Close(ctx) // no caller waits for it
}

func (c *baselineCaller) call() Outcome {
	t := c.maker.make()
	c.params[1], c.params[2], c.params[3], c.params[4] = t.bizNo[:], t.from[:], t.to[:], t.minor[:]
	if err := c.conn.Conn().SetDeadline(time.Now().Add(c.patience)); err != nil {
		return Outcome{Unknown: 1, Err: err}
	}
	// The background context costs nothing to watch; the connection has the deadline.
	r := c.conn.ExecPrepared(context.Background(), baselineStatement, c.params[:], nil, nil)
	_, err := r.Close()
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return Outcome{Succeeded: 1}
	case errors.As(err, &refused):
		return Outcome{Refused: 1, Err: err}
	}
	return Outcome{Unknown: 1, Err: err}
}
