package rpc_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/access"
)

// Operations of an Execute may refund a payment that another operation names.
func TestExecuteRefundsWithReferences(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.preparePayments("a")
	c.paidTwice("b", "COIN")
	c.executed(execute(operation("one", refundPayment("exec-1", "paid-b", "0.5")),
		operation("two", refundPayment("exec-2", "paid-b", "1"), "amount=one:refund.amount")))
	if n := c.Count("select count(*) from payment_refunds where refund_no in ('exec-1', 'exec-2') and amount * 2 = 10 ^ scale"); n != 2 {
		t.Errorf("%d refunds", n)
	}
	if n := c.Count("select count(*) from machine_instances where machine = 'order' and key = 'sold-b' and state = 'refunding'"); n != 1 {
		t.Error("everything is asked back, and the order is not refunding")
	}
}
