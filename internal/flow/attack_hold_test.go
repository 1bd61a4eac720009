package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// A caller captures a part of a refund's hold. The rest does not cover the refund: the capture for the clearing account
// fails, and a flag has the whole amount that the gateway gave back.
func TestAPartOfARefundsHoldIsCapturedByHand(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	two := dec("2")
	c := &ledger.CaptureCommand{Caller: caller, CaptureParams: ledger.CaptureOf(0, "refund/r1")}
	c.BizNo, c.Type, c.To, c.Amount = "by hand", "other", "loss", &two
	m.wants(flow.Ledger(c), "ok")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400; gw -10, loss 2, user:3 8")
	m.verify()
}

func takes(t testing.TB, m *till, bizNo, n string) {
	t.Helper()
	m.wants(flow.Ledger(&ledger.TransferCommand{Caller: caller,
		TransferParams: ledger.TransferParams{BizNo: bizNo, Type: "other",
			Postings: []ledger.Posting{{From: "gw", To: "loss", Asset: "CNY", Amount: dec(n)}}}}), "ok")
}

// Another transfer already has the biz_no of a payment's transfer: the money is flagged.
func TestTheNumberOfATransferOfAPaymentIsTaken(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	takes(t, m, "pay/g/t1", "1")
	m.says(notice("n1", amountOf("10", "CNY")), "flagged")
	m.is("o awaiting_payment, p1 suspended; order_refused 1000; gw -1, loss 1")
}

// Another transfer already has the biz_no of a refund's capture: the money is flagged.
func TestTheNumberOfATransferOfARefundIsTaken(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	takes(t, m, "refund/r1/paid", "1")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
}
