package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// Two notices report one refund, the second by the gateway's id alone: the refund counts once.
func TestARefundReportedWithoutItsNumberCountsOnce(t *testing.T) {
	t.Parallel()
	id := func(s *payment.Received) { s.GatewayRefundID = "re_1" }
	m := refunding(t, "4")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), id), "applied")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("", gateway.Refunded), id), "known")
	m.refuses(refund("r2", "7"), "6.00")
}
