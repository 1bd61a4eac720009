package verifytest

import (
	"context"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// says commits a notice of a gateway of demo about a payment.
func (b *Books) says(gatewayName string, n gateway.Notice) {
	b.t.Helper()
	n.Currency = "CNY"
	_, err := flow.CommitNotice(context.Background(), b.engine, payment.GatewayKey{Tenant: Demo, Gateway: gatewayName},
		payment.Received{Notice: n, Asset: "CNY", Callback: true, Body: []byte(n.ID)}, nil, "req-notice-"+n.ID)
	if err != nil {
		b.t.Errorf("notice %s: %v", n.ID, err)
	}
}

func (b *Books) pay(gatewayName, orderNo, number string) {
	b.t.Helper()
	b.ask("req-"+number, &flow.CreatePayment{Caller: caller(Demo, "req-"+number), OrderNo: orderNo,
		Gateway: gatewayName, OutTradeNo: number})
}

// flagOf returns the id of the flag about a transaction.
func (b *Books) flagOf(transaction string) (id int64) {
	b.t.Helper()
	err := b.super.QueryRow(b.t.Context(), "select flag_id from payment_flags where transaction_id = $1", transaction).
		Scan(&id)
	if err != nil {
		b.t.Error(err)
	}
	return id
}

// payments pays order-9 through the gateway card, with too little: payment card-1 is flagged, and refund-1 gives its
// money back. Payment card-2 is undecided. A console refund is for payment card-3, which does not exist. None of this
// is in the ledger, because the gateway has no suspense account.
func (b *Books) payments() {
	b.ask("req-gateway", &flow.PutGateway{Caller: caller(Demo, "req-gateway"), Name: "card",
		Gateway: payment.Gateway{Clearing: "world", Payee: "fees"}})
	b.pay("card", "order-9", "card-1")
	b.says("card", gateway.Notice{ID: "n-1", Kind: gateway.Paid, OutTradeNo: "card-1", TransactionID: "tx-1",
		Amount: Decimal("9")})
	b.ask("req-resolve", &flow.ResolveFlag{Caller: caller(Demo, "req-resolve"), ID: b.flagOf("tx-1"),
		Resolution: payment.GiveBack, RefundNo: "refund-1", Note: "too little"})
	b.pay("card", "order-9", "card-2")
	b.says("card", gateway.Notice{ID: "n-3", Kind: gateway.Refunded, OutTradeNo: "card-3", TransactionID: "tx-3",
		GatewayRefundID: "re-3", Amount: Decimal("3")})
	if _, err := flow.Keep(b.t.Context(), b.engine, payment.GatewayKey{Tenant: Demo, Gateway: "card"},
		payment.Received{Notice: gateway.Notice{ID: "n-4", Kind: gateway.Other}, Callback: true,
			Body: []byte("dispute")},
		payment.EffectKnown, "not followed", "req-notice-n-4"); err != nil {
		b.t.Error(err)
	}
}

// Payments makes payments of demo through the gateway bank, each of an order of 10 with the same number: good has paid
// its order and is being refunded, back was refunded in part, less was accepted with 9, twice was paid twice and the
// second money written off, late came after its order was cancelled, open is undecided, and gone is to be closed. A
// notice is about payment none, which does not exist.
func (b *Books) Payments() {
	b.t.Helper()
	b.Accounts(Demo, "req-accounts", "bank", "shop", "suspense", "loss")
	b.ask("req-gateway", &flow.PutGateway{Caller: caller(Demo, "req-gateway"), Name: "bank",
		Gateway: payment.Gateway{Clearing: "bank", Suspense: "suspense", Payee: "shop"}})
	for _, no := range []string{"good", "back", "less", "twice", "late", "open", "gone"} {
		b.ask("req-order-"+no, &flow.CreateOrder{Caller: caller(Demo, "req-order-"+no), OrderNo: no,
			Facts: order.Facts{Machine: machine.OrderMachine, Subject: "user:1", Asset: "CNY", Amount: Decimal("10")}})
		b.pay("bank", no, no)
	}
	for _, no := range []string{"late", "gone"} {
		b.ask("req-cancel-"+no, &flow.MoveOrder{Caller: caller(Demo, "req-cancel-"+no), OrderNo: no, Cancel: true,
			Params: machine.MoveParams{Cause: flow.CauseCancel}})
	}
	paid := func(number, transaction, amount string) {
		b.says("bank", gateway.Notice{ID: "n-" + transaction, Kind: gateway.Paid, OutTradeNo: number,
			TransactionID: transaction, Amount: Decimal(amount)})
	}
	for _, no := range []string{"good", "back", "twice", "late", "none"} {
		paid(no, "t-"+no, "10")
	}
	paid("less", "t-less", "9")
	paid("twice", "t-again", "10")
	b.ask("req-accept", &flow.ResolveFlag{Caller: caller(Demo, "req-accept"), ID: b.flagOf("t-less"),
		Resolution: payment.Accept})
	b.ask("req-write-off", &flow.ResolveFlag{Caller: caller(Demo, "req-write-off"), ID: b.flagOf("t-again"),
		Resolution: payment.WriteOff, Target: "loss"})
	b.refunds()
}

// refunds requests three refunds of 4: r-good of payment good is undecided; r-back and r-gone of payment back succeed,
// r-gone after its hold was released. r-late, of all money of late, fails, and the gateway then reports 2 of it as
// refunded. A console refund gave back 3 of good.
func (b *Books) refunds() {
	for _, no := range []string{"good", "back", "gone"} {
		of, n := no, Decimal("4")
		if no == "gone" {
			of = "back"
		}
		b.ask("req-r-"+no, &flow.RefundPayment{Caller: caller(Demo, "req-r-"+no), OutTradeNo: of, Amount: &n,
			RefundKey: payment.RefundKey{RefundNo: "r-" + no}})
	}
	b.ask("req-r-late", &flow.ResolveFlag{Caller: caller(Demo, "req-r-late"), ID: b.flagOf("t-late"),
		Resolution: payment.GiveBack, RefundNo: "r-late"})
	b.ask("req-release", flow.Ledger(ledger.ReleaseOf(caller(Demo, "req-release"), 0, "refund/r-gone")))
	back := func(no, of, n string, k gateway.Kind) {
		b.says("bank", gateway.Notice{ID: "n-r-" + no, Kind: k, OutTradeNo: of, TransactionID: "t-" + of,
			RefundNo: "r-" + no, Amount: Decimal(n)})
	}
	back("back", "back", "4", gateway.Refunded)
	back("gone", "back", "4", gateway.Refunded)
	back("late", "late", "10", gateway.RefundFailed)
	b.says("bank", gateway.Notice{ID: "n-console", Kind: gateway.Refunded, OutTradeNo: "good", TransactionID: "t-good",
		GatewayRefundID: "by-hand", Amount: Decimal("3")})
	b.says("bank", gateway.Notice{ID: "n-r-late-2", Kind: gateway.Refunded, OutTradeNo: "late", TransactionID: "t-late",
		RefundNo: "r-late", Amount: Decimal("2")})
}
