package flow_test

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// A console refund that names only the transaction may arrive before the notice of the payment. Its payment number is
// found by the transaction, which the answer to the submission named.
func TestARefundThatNamesOnlyTheTransactionComesBeforeTheMoney(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n0", kind(gateway.Pending)), "applied") // the answer to the submission
	k, reader := payment.GatewayKey{Tenant: 1, Gateway: "g"}, payment.NewReader(m.app)
	for transaction, want := range map[string]string{"t1": "p1", "t2": ""} {
		if got, err := reader.NumberOf(context.Background(), k, "", "", transaction); got != want || err != nil {
			t.Errorf("transaction %s: got payment %q, %v, want %q", transaction, got, err, want)
		}
	}
	m.says(console("m1", "4"), "flagged")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.refuses(refund("r1", "7"), "6.00")
	m.verify()
}
