package verifytest

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// stock makes an item of three segments, with an open reservation, a sold one of which units were returned, a cancelled
// one that had units of two segments, and a direct sale.
func (b *Books) stock() {
	b.t.Helper()
	run := func(request string, command func(c commit.Caller) commit.Command[*stock.Tx]) {
		b.t.Helper()
		b.ask(request, flow.Stock(command(caller(Demo, request))))
	}
	reserve := func(request, no string, n int64, life time.Duration) {
		b.t.Helper()
		run(request, func(c commit.Caller) commit.Command[*stock.Tx] {
			return &stock.ReserveCommand{Caller: c, Item: "sku-1", ReservationNo: no, Quantity: n, Life: life,
				Ref: "order-1"}
		})
	}
	change := func(request, no, kind string, n int64, of, reason string) {
		b.t.Helper()
		run(request, func(c commit.Caller) commit.Command[*stock.Tx] {
			return &stock.ChangeCommand{Caller: c, Item: "sku-1", ChangeNo: no, Kind: kind, Quantity: n,
				ReservationNo: of, Reason: reason}
		})
	}
	run("req-item", func(c commit.Caller) commit.Command[*stock.Tx] {
		return &stock.PutItemCommand{Caller: c, Item: "sku-1", Label: "Green tea", Segments: 3}
	})
	change("req-restock", "delivery-1", stock.Restock, 30, "", "")
	change("req-adjust", "count-1", stock.Adjust, -3, "", "broken")
	reserve("req-reserve", "order-1/1", 2, time.Hour)
	reserve("req-reserve-2", "order-2/1", 3, time.Hour)
	run("req-confirm", func(c commit.Caller) commit.Command[*stock.Tx] {
		return &stock.ConfirmCommand{Caller: c, Item: "sku-1", ReservationNo: "order-2/1"}
	})
	change("req-unsell", "return-1", stock.Unsell, 1, "order-2/1", "")
	reserve("req-reserve-3", "order-3/1", 12, time.Hour)
	run("req-cancel", func(c commit.Caller) commit.Command[*stock.Tx] {
		return &stock.CancelCommand{Caller: c, Item: "sku-1", ReservationNo: "order-3/1"}
	})
	reserve("req-deduct", "order-4/1", 5, 0)
}
