package rpc_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/notify"
	paid "github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

// engineOn returns an engine that is drained when the test ends.
func engineOn(t testing.TB, dsn string) *flow.Engine {
	t.Helper()
	pool, err := pg.Open(context.Background(), dsn, 4)
	if err != nil {
		t.Fatal(err)
	}
	e := flow.NewSendingEngine(pool, t.Name(), nil, nil,
		&notify.Outbox{Master: servertest.Secret, Instance: "test"})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return e
}

// says commits a notice of the gateway "till" that a payment is paid, as a server with that gateway does.
func (c *caller) says(number, transaction, asset string) {
	c.T.Helper()
	said := paid.Received{Asset: asset, Callback: true, Body: []byte("{}"),
		Header: map[string]string{"Note": secretNote},
		Notice: gateway.Notice{ID: transaction, Kind: gateway.Paid, OutTradeNo: number, TransactionID: transaction,
			Amount: amount.Decimal{Coef: amount.FromInt64(1)}, Currency: asset}}
	k := paid.GatewayKey{Tenant: c.tenant(), Gateway: "till"}
	if _, err := flow.CommitNotice(c.T.Context(), c.engine(), k, said, nil, secretRequest); err != nil {
		c.T.Fatal(err)
	}
}

func putGateway(name, clearing, payee string) *paymentv1.PutGatewayRequest {
	return &paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: name, Clearing: clearing,
		Suspense: secretNote, Payee: payee}}
}

func createPayment(orderNo, number string) *paymentv1.CreatePaymentRequest {
	return &paymentv1.CreatePaymentRequest{OrderNo: orderNo, Gateway: "till", OutTradeNo: number,
		Description: secretNote, Payer: secretNote}
}

func refundPayment(no, number, amount string) *paymentv1.RefundPaymentRequest {
	r := &paymentv1.RefundPaymentRequest{RefundNo: no, OutTradeNo: number, Reason: secretNote}
	if amount != "" {
		r.Amount = &amount
	}
	return r
}

func resolveFlag(name string, r *paymentv1.ResolveFlagRequest) *paymentv1.ResolveFlagRequest {
	r.FlagId, r.Note = prepared, name
	return r
}

// paidTwice creates an order with a payment that was paid twice: the second transaction is flagged.
func (c *caller) paidTwice(tag, asset string, headers ...string) {
	c.T.Helper()
	ok(c, "Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: "sold-" + tag, Subject: "u", Asset: asset,
		Amount: "1"},
		new(orderv1.CreateOrderResponse), headers...)
	ok(c, "Payment.CreatePayment", createPayment("sold-"+tag, "paid-"+tag), new(paymentv1.CreatePaymentResponse),
		headers...)
	c.says("paid-"+tag, "first-"+tag, asset)
	c.says("paid-"+tag, "second-"+tag, asset)
	for _, f := range ok(c, "Payment.ListFlags", &paymentv1.ListFlagsRequest{PageSize: 1000},
		new(paymentv1.ListFlagsResponse)).GetFlags() {
		c.fences.Store("flag-"+f.GetOrderNo(), f.GetId())
	}
}

func init() {
	resourceMakers = append(resourceMakers, func(c *caller, x resources, id []string) {
		ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{{Code: secretNote,
			Asset: x.asset}}}, new(ledgerv1.CreateAccountsResponse), id...)
		ok(c, "Payment.PutGateway", putGateway("till", x.world, x.shop), new(paymentv1.PutGatewayResponse), id...)
		c.paidTwice(x.paid, x.asset, id...)
		ok(c, "Payment.RefundPayment", refundPayment("refund-"+x.paid, "paid-"+x.paid, "0.1"),
			new(paymentv1.RefundPaymentResponse), id...)
	})
	goWell = append(goWell, "Payment.PutGateway", "Payment.ListGateways", "Payment.ListPayments", "Payment.ListNotices",
		"Payment.ListRefunds", "Payment.ListTransactions", "Payment.ListFlags")
	for name, example := range map[string]func(x resources) []proto.Message{
		"Payment.PutGateway": func(x resources) []proto.Message {
			return all(&paymentv1.PutGatewayRequest{Gateway: &paymentv1.Gateway{Gateway: "till", Clearing: x.world}})
		},
		"Payment.ListGateways": func(resources) []proto.Message {
			return all(&paymentv1.ListGatewaysRequest{})
		},
		"Payment.CreatePayment": func(x resources) []proto.Message {
			return all(createPayment("sold-"+x.paid, ""), createPayment("sold-"+x.paid, "paid-"+x.paid))
		},
		"Payment.GetPayment": func(x resources) []proto.Message {
			return all(&paymentv1.GetPaymentRequest{OutTradeNo: "paid-" + x.paid})
		},
		"Payment.ListPayments": func(x resources) []proto.Message {
			return all(&paymentv1.ListPaymentsRequest{}, &paymentv1.ListPaymentsRequest{OrderNo: "sold-" + x.paid})
		},
		"Payment.AskGateway": func(x resources) []proto.Message {
			return all(&paymentv1.AskGatewayRequest{OutTradeNo: "paid-" + x.paid})
		},
		"Payment.HandleCallback": func(resources) []proto.Message {
			return all(&paymentv1.HandleCallbackRequest{Gateway: "till", Body: []byte("{}")})
		},
		"Payment.ListNotices": func(x resources) []proto.Message {
			return all(&paymentv1.ListNoticesRequest{}, &paymentv1.ListNoticesRequest{OutTradeNo: "paid-" + x.paid})
		},
		"Payment.RefundPayment": func(x resources) []proto.Message {
			return all(refundPayment("refund-walk", "paid-"+x.paid, "0.1"),
				refundPayment("refund-"+x.paid, "paid-"+x.paid, "0.1"))
		},
		"Payment.GetRefund": func(x resources) []proto.Message {
			return all(&paymentv1.GetRefundRequest{RefundNo: "refund-" + x.paid})
		},
		"Payment.ListRefunds": func(x resources) []proto.Message {
			return all(&paymentv1.ListRefundsRequest{}, &paymentv1.ListRefundsRequest{OutTradeNo: "paid-" + x.paid})
		},
		"Payment.ListTransactions": func(x resources) []proto.Message {
			return all(&paymentv1.ListTransactionsRequest{Gateway: "till"},
				&paymentv1.ListTransactionsRequest{Gateway: "till", TransactionIds: []string{"second-" + x.paid}})
		},
		"Payment.ListFlags": func(resources) []proto.Message {
			return all(&paymentv1.ListFlagsRequest{},
				&paymentv1.ListFlagsRequest{State: paymentv1.FlagState_FLAG_STATE_OPEN})
		},
		"Payment.ResolveFlag": func(x resources) []proto.Message {
			return all(resolveFlag("flag-sold-"+x.paid, writeOff(x.shop)))
		},
	} {
		examples[name] = example
	}
	preparers["Payment"] = (*caller).preparePayments
	for name, x := range paymentChanges {
		changes[name] = x
	}
}

func writeOff(account string) *paymentv1.ResolveFlagRequest {
	return &paymentv1.ResolveFlagRequest{Resolution: paymentv1.Resolution_RESOLUTION_WRITE_OFF, Account: account}
}

// paymentChanges use the resources of preparePayments. No gateway is configured, so payments and refunds wait for one.
var paymentChanges = map[string]change{
	"Payment.PutGateway": {well: func(tag string) proto.Message { return putGateway("other-"+tag, "world", "shop") }},
	"Payment.CreatePayment": {reason: "ORDER_NOT_PAYABLE",
		well:    func(tag string) proto.Message { return createPayment("due-"+tag, "new-"+tag+"-1") },
		refused: func(tag string) proto.Message { return createPayment("over-"+tag, "new-"+tag+"-1") }},
	"Payment.RefundPayment": {reason: "REFUND_EXCEEDS_PAID",
		well:    func(tag string) proto.Message { return refundPayment("refund-"+tag, "paid-"+tag, "0.1") },
		refused: func(tag string) proto.Message { return refundPayment("refund-"+tag, "paid-"+tag, "1000") }},
	"Payment.ResolveFlag": {reason: "ORDER_NOT_PAYABLE",
		well: func(tag string) proto.Message { return resolveFlag("flag-sold-"+tag, writeOff("shop")) },
		refused: func(tag string) proto.Message {
			return resolveFlag("flag-sold-"+tag,
				&paymentv1.ResolveFlagRequest{Resolution: paymentv1.Resolution_RESOLUTION_ACCEPT})
		}},
}

// preparePayments creates the gateway "till", and orders: one to be paid, one that was paid twice, a cancelled one.
func (c *caller) preparePayments(tag string) {
	c.T.Helper()
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "world", Asset: "COIN", Unbounded: true}, {Code: "shop", Asset: "COIN"},
		{Code: secretNote, Asset: "COIN"}}}, new(ledgerv1.CreateAccountsResponse))
	ok(c, "Payment.PutGateway", putGateway("till", "world", "shop"), new(paymentv1.PutGatewayResponse))
	c.paidTwice(tag, "COIN")
	for _, no := range []string{"due-" + tag, "over-" + tag} {
		ok(c, "Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: no, Subject: "u", Asset: "COIN", Amount: "1"},
			new(orderv1.CreateOrderResponse))
	}
	ok(c, "Order.CancelOrder", cancelOrder("over-"+tag), new(orderv1.CancelOrderResponse))
}
