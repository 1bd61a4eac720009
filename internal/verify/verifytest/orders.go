package verifytest

import (
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// orders makes orders of sku-2: order-7 is paid and used coupon SPRING-1, order-8 was cancelled, order-9 awaits
// payment, grab-1 and grab-2 were won in a sale, and grab-2 was cancelled. For other: order-1, cancelled with a hold.
func (b *Books) orders() {
	b.ask("req-item-2", flow.Stock(&stock.PutItemCommand{Caller: caller(Demo, "req-item-2"), Item: "sku-2"}))
	b.ask("req-restock-2", flow.Stock(&stock.ChangeCommand{Caller: caller(Demo, "req-restock-2"), Item: "sku-2",
		ChangeNo: "delivery-2", Kind: stock.Restock, Quantity: 10}))
	b.ask("req-coupons", &flow.IssueCoupons{Caller: caller(Demo, "req-coupons"), Campaign: "spring",
		Codes: []string{"SPRING-1", "SPRING-2"}})
	b.ask("req-coupon-claim", &flow.ClaimCoupon{Caller: caller(Demo, "req-coupon-claim"), Code: "SPRING-1",
		Owner: "user:1"})
	for _, no := range []string{"order-7", "order-8", "order-9"} {
		c := &flow.CreateOrder{Caller: caller(Demo, "req-"+no), OrderNo: no, Facts: order.Facts{
			Machine: machine.OrderMachine, Subject: "user:1", Asset: "CNY", Amount: Decimal("9.9"), Reserve: true,
			Lines: []order.Line{{Item: "sku-2", Quantity: 2}}}}
		switch no {
		case "order-7":
			c.Coupon = "SPRING-1"
		case "order-8":
			c.Purchase = &order.Purchase{Parts: []string{"user:1", "sku-2"}, Life: time.Hour}
		}
		b.ask(c.RequestID, c)
	}
	b.ask("req-paid", &flow.MoveOrder{Caller: caller(Demo, "req-paid"), OrderNo: "order-7",
		Params: machine.MoveParams{To: "paid", Cause: "payment-1"}})
	b.ask("req-cancelled", &flow.MoveOrder{Caller: caller(Demo, "req-cancelled"), OrderNo: "order-8", Cancel: true,
		Params: machine.MoveParams{Cause: "buyer", Reason: "too late"}})
	b.ask("req-sale", &flow.PutSale{Caller: caller(Demo, "req-sale"), Named: sale.Named{
		Key: sale.Key{Tenant: Demo, Sale: "autumn"}, Sale: sale.Sale{Item: "sku-2", PerBuyer: 1,
			Order: &sale.Order{Asset: "CNY", Amount: "9.9", Machine: machine.SimpleOrderMachine}}}})
	for no, buyer := range map[string]string{"grab-1": "user:9", "grab-2": "user:8"} {
		b.ask("req-"+no, &flow.Grab{Caller: caller(Demo, "req-"+no), Sale: "autumn", Buyer: buyer, Unit: 1,
			OrderNo: no})
	}
	b.ask("req-grab-2-off", &flow.MoveOrder{Caller: caller(Demo, "req-grab-2-off"), OrderNo: "grab-2", Cancel: true,
		Params: machine.MoveParams{Cause: "buyer"}})

	held := &flow.CreateOrder{Caller: caller(Other, "req-order-1"), OrderNo: "order-1", Facts: order.Facts{
		Machine: machine.OrderMachine, Subject: "user:1", Asset: "CNY", Amount: Decimal("9.9"), Payee: "world",
		Balance: &order.Balance{Account: "user:1:wallet", Amount: Decimal("0.4")}}}
	cancelled := &flow.MoveOrder{Caller: caller(Other, "req-cancelled-1"), OrderNo: "order-1", Cancel: true,
		Params: machine.MoveParams{Cause: "buyer"}}
	for _, c := range []flow.Command{held, cancelled} {
		b.do(flow.Submission{Tenant: Other, RequestID: "req-order-1", Command: c}, nil)
	}
}
