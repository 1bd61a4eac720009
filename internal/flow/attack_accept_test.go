package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// Money that was given back cannot pay the order.
func TestMoneyThatWasGivenBackIsNotAccepted(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.says(console("m1", "9"), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "FIELD_INVALID")
	m.is("o awaiting_payment, p1 suspended; wrong_amount 900 sus, unknown_refund 900; gw -9, sus 9")
	m.verify()
}

// A refund may succeed after it has failed: its money has been given back, and cannot pay the order.
func TestMoneyOfALateRefundIsNotAccepted(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}), "wrong_amount refund")
	m.says(notice("m1", amountOf("9", "CNY"), ofRefund("r1", gateway.RefundFailed)), "applied")
	m.says(notice("m2", amountOf("9", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "FIELD_INVALID")
	m.verify()
}
