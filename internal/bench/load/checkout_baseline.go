package load

import (
	"context"
	_ "embed" // of the calls
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// checkoutBaseline creates and pays one order after the other, by one PL/pgSQL call per step. It calls no gateway and
// checks no signature: it only writes the rows.
type checkoutBaseline struct {
	conn   *pgconn.PgConn
	spec   *Spec
	caller int
	next   uint64
	tenant []byte
}

//go:embed checkout_calls.sql
var checkoutCalls string

func newCheckoutBaseline(ctx context.Context, spec *Spec, n int) (*checkoutBaseline, error) {
	conn, err := pgconn.Connect(ctx, spec.DSN)
	if err != nil {
		return nil, err
	}
	c := &checkoutBaseline{conn: conn, spec: spec, caller: n, tenant: fmt.Append(nil, spec.Tenant)}
	for i, call := range strings.Split(strings.TrimSpace(checkoutCalls), ";\n") {
		if _, err := conn.Prepare(ctx, fmt.Sprint("step", i), call, nil); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
	}
	return c, nil
}

func (c *checkoutBaseline) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.Close(ctx) // no caller waits for it
}

func (c *checkoutBaseline) call() Outcome {
	no, item := ReservationNo(c.spec.Run, c.next, c.caller), ItemName(c.spec.Prefix, rand.IntN(c.spec.Accounts))
	c.next++
	number := []byte(no)
	for i, params := range [][][]byte{
		{c.tenant, number, []byte(item), []byte(Seller(item))},
		{c.tenant, number},
		{c.tenant, number, fmt.Appendf(nil, `{"url": %q}`, Credential(no))},
		{c.tenant, number, []byte(TransactionID(no)), []byte(callbackBody(no, time.Now())), []byte(callbackHeaders)},
	} {
		if err := c.conn.Conn().SetDeadline(time.Now().Add(c.spec.Patience)); err != nil {
			return Outcome{Unknown: 1, Err: err}
		}
		r := c.conn.ExecPrepared(context.Background(), fmt.Sprint("step", i), params, nil, nil)
		if _, err := r.Close(); err != nil {
			return Outcome{Unknown: 1, Err: fmt.Errorf("step %d: %w", i+1, err)}
		}
	}
	return Outcome{Succeeded: 1}
}

// callbackHeaders are as long as those that the service stores.
const callbackHeaders = `{"Webhook-Id": "paid_c001-00000000-0000", "Webhook-Timestamp": "1764053400", ` +
	`"Webhook-Signature": "v1,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`
