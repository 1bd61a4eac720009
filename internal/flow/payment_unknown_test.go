package flow_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

func flagUnknown(number string) flow.Command {
	return &flow.FlagUnknown{Caller: caller, Key: payment.Key{Tenant: 1, OutTradeNo: number}}
}

// Money of an unknown payment is reported in the batch that flags other money of the payment: it is flagged too.
func TestMoneyThatComesWhileOtherMoneyIsFlaggedIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1", of("px", "t1")), "unmatched again")
	if got := m.together(hears(notice("n2", of("px", "t2"))), flagUnknown("px"),
		hears(notice("n3", of("px", "t3")))); got != "unmatched again, true, flagged" {
		t.Error(got)
	}
	if got := m.text("select number || ' ' || call from payment_calls"); got != "px flag" {
		t.Errorf("calls: %s", got)
	}
	m.gets(flagUnknown("px"), "true")
	m.gets(flagUnknown("px"), "false")
	m.is("px late; unknown_number 600 sus, unknown_number 600 sus, unknown_number 600 sus; gw -18, sus 18")
	if n := m.text("select count(*)::text from payment_calls"); n != "0" {
		t.Errorf("%s calls are due", n)
	}
	m.verify()
}

// All money that was reported before its payment was created is posted or flagged, whichever notice about the payment
// comes next, and even if the gateway repeats none of the others.
func TestAllMoneyThatCameBeforeThePaymentIsTaken(t *testing.T) {
	t.Parallel()
	for _, end := range []struct{ name, with, calls string }{
		{"paid by an early notice", "n1", "p1 flag"},
		{"paid by another notice", "n3", "p1 flag"},
		{"closed", "c1", "p1 flag"},
	} {
		m := newTill(t)
		ten := amountOf("10", "CNY")
		m.says(notice("n1", ten), "unmatched again")
		m.says(notice("n2", ten, of("p1", "t2")), "unmatched again")
		m.payableOrder("o", outside)
		m.create("o", "p1")
		said := notice(end.with, ten)
		switch end.with {
		case "n3":
			said = notice("n3", ten, of("p1", "t3"))
		case "c1":
			said = notice("c1", kind(gateway.Closed))
		}
		m.says(said, "applied")
		if got := m.text("select number || ' ' || call from payment_calls"); got != end.calls {
			t.Errorf("%s: calls %s, want %s", end.name, got, end.calls)
		}
		m.verify()
		if end.with == "c1" {
			m.says(said, "applied existed") // the gateway repeats the notice
			m.verify()
		}
		m.gets(flagUnknown("p1"), "true")
		m.gets(flagUnknown("p1"), "false")
		want := "o paid, p1 succeeded; second_transaction 1000 sus; gw -20, sus 10, user:3 10"
		switch end.with {
		case "c1":
			want = "o awaiting_payment, p1 late; late 1000 sus, second_transaction 1000 sus; gw -20, sus 20"
		case "n3":
			want = "o paid, p1 succeeded; second_transaction 1000 sus, second_transaction 1000 sus; gw -30, " +
				"sus 20, user:3 10"
		}
		m.is(want)
		if n := m.text("select count(*)::text from payment_calls"); n != "0" {
			t.Errorf("%s: %s calls are due", end.name, n)
		}
		m.verify()
	}
}

// An unknown payment may have any number of transactions: all are flagged when the time to create it is over.
func TestAllMoneyOfAnUnknownPaymentIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	const times = payment.MaxUnknown + 3
	paid := func(n int) payment.Received { return notice(fmt.Sprint("n", n), of("px", fmt.Sprint("t", n))) }
	for n := range times {
		m.says(paid(n), "unmatched again")
	}
	for _, want := range []string{"true", "true", "false"} {
		m.gets(flagUnknown("px"), want)
	}
	if got := m.text("select count(*)::text || ' ' || sum(amount) || ' ' || (select count(*) from payment_calls) " +
		"from payment_flags"); got != fmt.Sprint(times, " ", times*600, " 0") {
		t.Errorf("flags: %s", got)
	}
	for n := range times {
		m.says(paid(n), "known")
	}
	m.verify()
}

// The notice of an unknown payment's money is repeated after the time to create the payment is over: the money is
// flagged once.
func TestMoneyOfAnUnknownPaymentThatIsReportedAgainIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1", of("px", "t1")), "unmatched again")
	m.says(notice("n2", of("px", "t2")), "unmatched again")
	if _, err := m.super.Exec(context.Background(), "alter table payment_notices disable trigger all; update "+
		"payment_notices set effect = 'known' where notify_id = 'n2'; alter table payment_notices "+
		"enable trigger all"); err != nil {
		t.Fatal(err)
	}
	m.gets(flagUnknown("px"), "true")
	if _, err := m.super.Exec(context.Background(), "alter table payment_notices disable trigger all; update "+
		"payment_notices set effect = 'unmatched' where notify_id = 'n2'; alter table payment_notices "+
		"enable trigger all"); err != nil {
		t.Fatal(err)
	}
	m.says(notice("n2", of("px", "t2")), "flagged")
	m.says(notice("n2", of("px", "t2")), "known")
	m.is("px late; unknown_number 600 sus, unknown_number 600 sus; gw -12, sus 12")
}

// A transaction that is reported under two unknown numbers is flagged once, and both payments end.
func TestATransactionOfTwoUnknownPaymentsIsFlaggedOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1", of("px", "t1")), "unmatched again")
	m.says(notice("n2", of("py", "t1")), "unmatched again")
	for _, number := range []string{"px", "py"} {
		m.pay(0, flagUnknown(number))
		m.gets(flagUnknown(number), "false")
	}
	m.is("px late, py late; unknown_number 600 sus; gw -6, sus 6")
	m.verify()
}

// A gateway uses the id of a notice again for another one: the money of both is recorded, with its own notice.
func TestNoticesWithTheSameIDLoseNoMoney(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	if got := m.create("o", "p1"); got != "p1 created" {
		t.Fatal(got)
	}
	m.says(notice("n", of("px", "tx")), "unmatched again")
	for _, want := range []string{"applied", "applied existed"} {
		m.says(notice("n", of("p1", "t1")), want)
	}
	m.says(notice("n", of("px", "tx")), "unmatched existed again")
	m.says(notice("n", of("p1", "t2")), "flagged")
	m.gets(flagUnknown("px"), "true")
	if got := m.text("select string_agg(transaction_id, ' ' order by transaction_id) from payment_notices"); got !=
		"t1 t2 tx" {
		t.Errorf("notices of %s", got)
	}
	m.verify()
}
