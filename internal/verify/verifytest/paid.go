package verifytest

import (
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// PaidOrders makes orders of demo, each with a reservation, that user:1:wallet pays: paid-1 out of a hold, and it is
// shipped since; paid-2 at once. open-1 has a hold and is not paid, and gone-1 was cancelled.
func (b *Books) PaidOrders() {
	b.t.Helper()
	b.Accounts(Demo, "req-accounts", "world", "user:1:wallet", "shop")
	b.Transfer(Demo, "fund-1", "world", "user:1:wallet", "100")
	b.ask("req-item", flow.Stock(&stock.PutItemCommand{Caller: caller(Demo, "req-item"), Item: "tea"}))
	b.ask("req-restock", flow.Stock(&stock.ChangeCommand{Caller: caller(Demo, "req-restock"), Item: "tea",
		ChangeNo: "delivery-1", Kind: stock.Restock, Quantity: 20}))
	for no, pays := range map[string]string{"paid-1": "4", "paid-2": "10", "open-1": "3", "gone-1": "2"} {
		b.ask("req-"+no, &flow.CreateOrder{Caller: caller(Demo, "req-"+no), OrderNo: no, Facts: order.Facts{
			Machine: machine.OrderMachine, Subject: "user:1", Asset: "CNY", Amount: Decimal("10"), Payee: "shop",
			Lines: []order.Line{{Item: "tea", Quantity: 2}}, Reserve: true,
			Balance: &order.Balance{Account: "user:1:wallet", Amount: Decimal(pays)}}})
	}
	for _, to := range []string{"paid", "awaiting_shipment", "shipped"} {
		b.ask("req-"+to, &flow.MoveOrder{Caller: caller(Demo, "req-"+to), OrderNo: "paid-1",
			Params: machine.MoveParams{To: to, Cause: to + "-1"}})
	}
	b.ask("req-gone", &flow.MoveOrder{Caller: caller(Demo, "req-gone"), OrderNo: "gone-1", Cancel: true,
		Params: machine.MoveParams{Cause: flow.CauseCancel}})
}
