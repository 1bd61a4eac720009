package rpc_test

import (
	"testing"

	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// Operations of an Execute may refer to each other even if their commands find their rows only after several attempts.
func TestExecuteRefundsWithReferences(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.preparePayments("a")
	c.paidTwice("b", "COIN")
	c.executed(execute(operation("one", refundPayment("exec-1", "paid-b", "0.5")),
		operation("two", refundPayment("exec-2", "paid-b", ""), "amount=one:refund.amount")))
	if n := c.Count("select count(*) from payment_refunds where refund_no in ('exec-1', 'exec-2') " +
		"and amount * 2 = 10 ^ scale"); n != 2 {
		t.Errorf("%d refunds", n)
	}
	if n := c.Count("select count(*) from machine_instances where machine = 'order' and key = 'sold-b' " +
		"and state = 'refunding'"); n != 1 {
		t.Error("everything is asked back, and the order is not refunding")
	}
}

// The same, with an order that already has a payment.
func TestExecutePaysWithReferences(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.preparePayments("a")
	c.executed(execute(operation("one", createPayment("due-a", "due-001"))))
	order := &orderv1.CreateOrderRequest{OrderNo: "due-a", Subject: "u", Asset: "COIN", Amount: "1"}
	answers, existed := c.executed(execute(operation("one", order),
		operation("two", createPayment("", "due-001"), "order_no=one:order.order_no")))
	if got := answers[1].(*paymentv1.CreatePaymentResponse).GetPayment(); got.GetOutTradeNo() != "due-001" ||
		!existed[1] {
		t.Error(got, existed)
	}
}
