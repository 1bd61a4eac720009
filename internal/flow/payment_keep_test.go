package flow_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// A notice about no payment is stored once.
func TestANoticeIsKeptOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	for _, want := range []string{"known", "known existed"} {
		got := resultText(flow.Keep(t.Context(), m.engines[0], payment.GatewayKey{Tenant: 1, Gateway: "g"},
			notice("n1", kind(gateway.Other), of("", "")),
			payment.EffectKnown, "not followed", "r"))
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	m.verify()
}

// A gateway that PutGateway has not set may send notices: they are stored, and their money is flagged.
func TestAGatewayThatIsNotPutIsHeard(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	hear := func(s payment.Received, want string) {
		t.Helper()
		if got := m.hearFrom("new", s); got != want {
			t.Errorf("notice %s: %s, want %s", s.ID, got, want)
		}
	}
	hear(notice("n1", amountOf("9", "CNY"), of("p9", "t9")), "unmatched again")
	m.gets(flagUnknown("p9"), "true")
	hear(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged")
	hear(console("m1", "1", of("p9", "t9")), "flagged")
	hear(notice("n3", kind(gateway.Closed)), "known")
	m.is("o awaiting_payment, p1 created, p9 late; unknown_number 900, wrong_merchant 1000, unknown_refund 100")
	m.verify()
	m.gets(m.resolve(0, writtenOff()), "GATEWAY_NOT_FOUND")
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller,
		Accounts: []ledger.NewAccount{{Code: "new", Asset: "CNY", Kind: "asset"}}}), "ok")
	m.wants(&flow.PutGateway{Caller: caller, Name: "new", Gateway: payment.Gateway{Clearing: "new"}}, "ok")
	m.gets(m.resolve(0, writtenOff()), "unknown_number write_off")
	m.gets(m.resolve(2, writtenOff()), "unknown_refund write_off")
	m.is("o awaiting_payment, p1 created, p9 late; unknown_number 900 write_off, wrong_merchant 1000, " +
		"unknown_refund 100 write_off; loss 8")
	m.verify()
}
