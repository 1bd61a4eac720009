package load

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"

	"google.golang.org/protobuf/proto"

	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1/stockv1connect"
)

// itemDigits is the width of an item's number behind the prefix.
const itemDigits = 4

// ItemName is the name of an item. All items of a prefix have names of the same length.
func ItemName(prefix string, number int) string {
	return fmt.Sprintf("%s/%0*d", prefix, itemDigits, number)
}

// ReservationNo is the number of a caller's nth sale, of the length of bizNoMark.
func ReservationNo(run string, n uint64, caller int) string {
	return fmt.Sprintf("%.4s-%08x-%04x", run, n, caller)
}

// busy is the reason of the error when a strategy gives up.
const busy = "ROWS_LOCKED"

// stockCaller sells one unit after the other.
type stockCaller struct {
	conn   httpConn
	spec   *Spec
	caller int
	next   uint64
	calls  []stockCall // of one sale
}

// stockCall is a prepared request and the offsets of its variable parts.
type stockCall struct {
	bytes        []byte
	item, number int
}

func newStockCaller(spec *Spec, n int) (*stockCaller, error) {
	item := ItemName(spec.Prefix, 0)
	strategy := stockv1.Strategy(stockv1.Strategy_value["STRATEGY_"+strings.ToUpper(spec.Strategy)])
	c := &stockCaller{spec: spec, caller: n}
	add := func(procedure string, m proto.Message) error {
		body, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		head, err := frame(spec, procedure, "", len(body))
		if err != nil {
			return err
		}
		x := stockCall{bytes: append(head, body...)}
		x.item = find(x.bytes, len(head), item) + len(item) - itemDigits
		x.number = find(x.bytes, len(head), bizNoMark)
		c.calls = append(c.calls, x)
		return nil
	}
	var err error
	if spec.Confirm {
		if err = add(stockv1connect.StockServiceReserveProcedure, &stockv1.ReserveRequest{Item: item,
			ReservationNo: bizNoMark, Quantity: 1, Strategy: strategy}); err == nil {
			err = add(stockv1connect.StockServiceConfirmProcedure,
				&stockv1.ConfirmRequest{Item: item, ReservationNo: bizNoMark})
		}
	} else {
		err = add(stockv1connect.StockServiceDeductProcedure, &stockv1.DeductRequest{Item: item,
			ReservationNo: bizNoMark, Quantity: 1, Strategy: strategy})
	}
	if err != nil {
		return nil, err
	}
	return c, c.conn.open(spec)
}

func (c *stockCaller) close() { c.conn.close() }

func (c *stockCaller) call() Outcome {
	no, item := ReservationNo(c.spec.Run, c.next, c.caller), rand.IntN(c.spec.Accounts)
	c.next++
	for _, x := range c.calls {
		putDecimal(x.bytes[x.item:x.item+itemDigits], item)
		copy(x.bytes[x.number:], no)
		status, body, err := c.conn.roundTrip(x.bytes)
		if err != nil {
			return Outcome{Unknown: 1, Err: err}
		}
		if status == 200 {
			continue
		}
		err = fmt.Errorf("HTTP %d: %s", status, body)
		if bytes.Contains(body, []byte(busy)) {
			return Outcome{Refused: 1, Err: err}
		}
		return Outcome{Unknown: 1, Err: err}
	}
	return Outcome{Succeeded: 1}
}
