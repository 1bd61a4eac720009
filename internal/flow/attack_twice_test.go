package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/gateway"
)

// A notice of a console that names no transaction may come before the money too.
func TestTheConsoleWithoutATransactionComesBeforeTheMoney(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(console("m1", "4", of("p1", "")), "flagged")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.refuses(refund("r1", "7"), "6.00")
	m.verify()
}

// The gateway may know the number of a refund before it is asked for, as after a restore of the database.
func TestARefundWhoseNumberTheGatewayKnowsCountsOnce(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.gets(refund("r1", "4"), "r1 asked")
	m.hear(0, notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)))
	m.refuses(refund("r2", "7"), "6.00")
	m.verify()
}

// A refund of which the gateway says later that it gave back more.
func TestARefundThatGrowsIsNotLostSightOf(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.says(notice("m2", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.refuses(refund("r2", "6"), "0.00")
}
