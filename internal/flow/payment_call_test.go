package flow_test

import (
	"context"
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// secondGateway adds the gateway "h": from the account gwh to user:3, or to sus.
func (m *till) secondGateway() {
	m.Helper()
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller,
		Accounts: []ledger.NewAccount{{Code: "gwh", Asset: "CNY", Kind: "asset"}}}), "ok")
	m.wants(&flow.PutGateway{Caller: caller, Name: "h",
		Gateway: payment.Gateway{Clearing: "gwh", Suspense: "sus", Payee: user(3)}}, "ok")
}

// calls compares the calls that are due: gateway, number and kind.
func (m *till) calls(want string) {
	m.Helper()
	if got := m.text("select coalesce(string_agg(concat_ws(' ', gateway, number, call), ', ' " +
		"order by number), 'none') from payment_calls"); got != want {
		m.Errorf("calls: got %s, want %s", got, want)
	}
}

// Money for a payment arrives first from another gateway. CreatePayment queries the payment's own gateway, and the
// other gateway's money is flagged in the end.
func TestAPaymentReportedByAnotherGatewayIsQueriedAtItsOwn(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.secondGateway()
	ten := amountOf("10", "CNY")
	if got := m.hearFrom("h", notice("n1", ten)); got != "unmatched again" {
		t.Error(got)
	}
	m.says(notice("n2", ten, of("p1", "t2")), "unmatched again")
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.calls("g p1 query")
	m.verify()
	m.says(notice("n2", ten, of("p1", "t2")), "applied")
	m.calls("g p1 flag")
	m.gets(flagUnknown("p1"), "true")
	m.calls("g p1 flag")
	m.verify()
	m.gets(flagUnknown("p1"), "false")
	m.calls("none")
	m.is("o paid, p1 succeeded; wrong_merchant 1000 sus; gw -10, sus 10, user:3 10")
	m.verify()
}

// lost compares the number of notices that no call will ever apply or flag.
func (m *till) lost(want string) {
	m.Helper()
	if got := m.text(`select count(*)::text from payment_notices n where effect = 'unmatched'
		and not exists (select from payment_transactions t where t.gateway = n.gateway
		and t.transaction_id = n.transaction_id)
		and not exists (select from payment_calls c where c.number = n.out_trade_no)`); got != want {
		m.Errorf("%s notices are lost, want %s", got, want)
	}
}

// Money is reported in the batch in which FlagUnknown finds none to flag: the next run flags it.
func TestMoneyThatComesInTheBatchOfTheLastRunIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1", of("px", "t1")), "unmatched again")
	m.says(notice("n2", of("py", "t1")), "unmatched again")
	m.gets(flagUnknown("px"), "true")
	m.gets(flagUnknown("px"), "false")
	if got := m.together(hears(notice("n3", of("py", "t2"))), flagUnknown("py"),
		flagUnknown("py")); got != "unmatched again, false, false" {
		t.Error(got)
	}
	m.lost("0")
	for _, want := range []string{"true", "false"} {
		m.gets(flagUnknown("py"), want)
	}
	m.calls("none")
	m.is("px late, py late; unknown_number 600 sus, unknown_number 600 sus; gw -12, sus 12")
	m.verify()
}

// A close is scheduled after the scheduler has read a due payment: its FlagUnknown does not remove the close.
func TestARunThatFlagsMoneyLeavesAClose(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		m := newTill(t)
		m.secondGateway()
		m.hearFrom("h", notice("n1"))
		m.payableOrder("o")
		m.create("o", "p1")
		m.says(notice("c1", kind(gateway.Closed)), "applied")
		m.calls("g p1 flag")
		due, err := payment.DueFlags(context.Background(), m.app, payment.DueFlag{}, 10)
		if err != nil || len(due) != 1 {
			t.Fatal(due, err)
		}
		// its submission was on its way
		flags, pending := flow.FlagUnknowns(due, "r")[0].Command, notice("n2", kind(gateway.Pending))
		if together {
			m.gets(flags, "true")
			if got := m.together(hears(pending), flagUnknown("p1")); got != "known, false" {
				t.Error(got)
			}
		} else {
			m.says(pending, "known")
			m.calls("g p1 close")
			m.gets(flags, "true")
			m.gets(flagUnknown("p1"), "false")
		}
		m.calls("g p1 close")
		m.says(notice("c2", kind(gateway.Closed)), "known")
		m.calls("g p1 flag")
		m.gets(flagUnknown("p1"), "false")
		m.calls("none")
		m.verify()
	}
}

// A gateway reports a payment as paid by a transaction that belongs to another payment: the payment is closed, and not
// queried again.
func TestAPaymentThatTheTransactionOfAnotherOnePaidIsClosed(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]string{"own": "", "foreign": "mode test"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			ten := amountOf("10", "CNY")
			m.says(notice("n1", ten, of("px", "t1")), "unmatched again")
			m.gets(flagUnknown("px"), "true")
			m.gets(flagUnknown("px"), "false")
			said := func(id string) payment.Received {
				return notice(id, ten, func(s *payment.Received) { s.Foreign = foreign })
			}
			m.says(said("early"), "known") // before the payment is created
			m.payableOrder("o", outside)
			m.create("o", "p1")
			m.gets(creates("p2", "app"), "p2 created")
			m.calls("g p1 submit, g p2 submit")
			m.says(said("early"), "known existed")
			m.calls("g p2 submit")
			m.says(notice("n3", ten, of("p2", "t1"), func(s *payment.Received) { s.Foreign = foreign }), "known")
			m.calls("none")
			m.is("o awaiting_payment, p1 closed, p2 closed, px late; unknown_number 1000 sus; gw -10, sus 10")
			m.says(notice("n4", kind(gateway.Pending)), "known")
			m.calls("g p1 close")
			m.says(said("early"), "known existed")
			m.calls("none")
			m.says(notice("n5", kind(gateway.Pending)), "known")
			m.says(said("n6"), "known")
			m.calls("none")
			if got := m.text("select string_agg(failure_code, ' ') " +
				"from payment_payments"); got != "transaction_known transaction_known" {
				t.Error(got)
			}
			m.verify()
			m.says(notice("n7", ten, of("p1", "t2")), "applied") // it was paid nevertheless
			m.verify()
		})
	}
}

// A transaction that another gateway has reported closes no payment.
func TestAKnownTransactionOfAnotherGatewayClosesNoPayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.secondGateway()
	ten := amountOf("10", "CNY")
	m.hearFrom("h", notice("n1", ten, of("px", "t1")))
	m.gets(flagUnknown("px"), "true")
	m.payableOrder("o", outside)
	m.create("o", "p1")
	if got := m.hearFrom("h", notice("n2", ten)); got != "known" {
		t.Error(got)
	}
	m.calls("g p1 submit, h px flag")
	m.is("o awaiting_payment, p1 created, px late; unknown_number 1000 sus; sus 10")
}

// The notice that a payment is closed may arrive before the payment is created. Its repeat closes the payment, although
// the notice is recorded already.
func TestAPaymentThatWasClosedBeforeIsClosed(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	said := notice("c1", kind(gateway.Closed))
	m.says(said, "known")
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(said, "known existed")
	m.is("o awaiting_payment, p1 closed")
	m.calls("none")
	if got := m.create("o", "p1"); got != "p1 closed existed" {
		t.Error(got)
	}
	m.verify()
}
