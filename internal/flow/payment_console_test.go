package flow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// paidTill returns a till with order o, which p1 has paid with 10.
func paidTill(t *testing.T) *till {
	t.Helper()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	return m
}

// console returns the notice of a console refund.
func console(id, amount string, change ...func(*payment.Received)) payment.Received {
	return notice(id, append([]func(*payment.Received){amountOf(amount, "CNY"), ofRefund("", gateway.Refunded),
		refundID("re_" + id)}, change...)...)
}

// refuses expects REFUND_EXCEEDS_PAID, with the amount that remains.
func (m *till) refuses(c *flow.RefundPayment, remaining string) {
	m.Helper()
	_, err := m.engines[0].Do(context.Background(),
		flow.Submission{Tenant: 1, RequestID: "r", Rows: 8, Bytes: 400, Command: c})
	f := fault.Of(err)
	if f == nil || f.Reason != payment.RefundExceedsPaid || f.Metadata["remaining"] != remaining ||
		f.Metadata["out_trade_no"] != "p1" {
		m.Errorf("refund %s: %v %v, want that %s remains", c.RefundNo, err, f, remaining)
	}
}

// Money that a console refund gave back cannot be given back again, however its flag is resolved.
func TestMoneyGivenBackInTheConsoleIsNotGivenBackAgain(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(console("m1", "4"), "flagged")
	m.refuses(refund("r1", "7"), "6.00")
	m.verify()
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "unknown_refund write_off")
	m.refuses(refund("r1", "6.01"), "6.00")
	m.gets(refund("r1", ""), "r1 requested")
	m.refuses(refund("r2", ""), "0.00")
	m.is("o refunding, p1 succeeded, r1 requested; unknown_refund 400 write_off; gw -6, loss -4, user:3 10 held 6")
	m.says(notice("m2", amountOf("6", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.is("o refunded, p1 succeeded, r1 succeeded; unknown_refund 400 write_off; loss -4, user:3 4")
	v, err := payment.NewReader(m.app).Payment(context.Background(), payment.Key{Tenant: 1, OutTradeNo: "p1"})
	if err != nil || v.Refunded.String() != "1000" || v.Refunding.String() != "0" {
		t.Errorf("payment: %+v, %v", v, err)
	}
	m.verify()
}

// A refund of flagged money can give back only the amount that console refunds have left.
func TestFlaggedMoneyGivenBackInTheConsoleIsNotGivenBackAgain(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged")
	m.says(console("m1", "10", of("p1", "t2")), "flagged")
	back := flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}
	m.gets(m.resolve(0, back), "REFUND_EXCEEDS_PAID")
	m.gets(refund("r2", "10"), "r2 requested") // the other transaction has its whole amount
	m.verify()
}

// The notice of a console refund and a refund share one batch. If the refund comes first, the gateway decides it, and
// the console refund is flagged.
func TestARefundMeetsTheConsoleInOneBatch(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	if got := m.together(hears(console("m1", "4")), refund("r1", "7"), refund("r2", "6")); got != "flagged, "+
		"REFUND_EXCEEDS_PAID, r2 requested" {
		t.Error(got)
	}
	m.verify()
	m = paidTill(t)
	if got := m.together(refund("r1", "7"), hears(console("m1", "4")), refund("r2", "1")); got != "r1 requested, "+
		"flagged, REFUND_EXCEEDS_PAID" {
		t.Error(got)
	}
	m.refuses(refund("r3", ""), "0.00")
	m.verify()
	// the gateway refuses to give back more than was paid
	m.says(notice("m2", ofRefund("r1", gateway.RefundFailed)), "applied")
	m.refuses(refund("r3", "6.01"), "6.00")
	m.gets(refund("r3", ""), "r3 requested")
	m.is("o refunding, p1 succeeded, r1 failed, r3 requested; unknown_refund 400; gw -10, user:3 10 held 6")
	m.verify()
}

// If the gateway gives back more than was paid, the surplus is flagged.
func TestMoreGivenBackThanCameIsFlagged(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.gets(refund("r1", ""), "r1 requested")
	m.says(console("m1", "4"), "flagged")
	m.says(notice("m2", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.is("o refunded, p1 succeeded, r1 succeeded; unknown_refund 400")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "unknown_refund write_off")
	m.is("o refunded, p1 succeeded, r1 succeeded; unknown_refund 400 write_off; gw 4, loss -4")
	m.verify()
}

// A refund on one server and a notice on another run one after the other: no update of the rows that both change is
// lost.
func TestARefundMeetsTheConsoleOnTwoServers(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	said := m.pay
	for n := range 8 {
		var ends [2]string
		var wait sync.WaitGroup
		wait.Go(func() { ends[0] = m.hear(0, console(fmt.Sprint("m", n), "1")) })
		wait.Go(func() { ends[1] = said(1, refund(fmt.Sprint("r", n), "0.75")) })
		wait.Wait()
		if want := map[bool]string{true: fmt.Sprint("r", n, " requested"),
			false: "REFUND_EXCEEDS_PAID"}[n < 5]; ends[0] != "flagged" || n != 5 && ends[1] != want {
			t.Errorf("%d: %q", n, ends)
		}
		m.verify()
	}
}

// The notice of a console refund may come before that of the money, in an earlier batch or in the same one.
func TestTheConsoleComesBeforeTheMoney(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"before": false, "together": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			m.payableOrder("o", outside)
			m.create("o", "p1")
			m.says(console("m1", "1"), "flagged")
			m.says(console("m2", "9", amountOf("9", "USD")), "flagged") // another currency: not comparable
			paid := notice("n1", amountOf("10", "CNY"))
			if together {
				got := m.together(hears(console("m3", "2")), hears(paid), hears(console("m4", "0.001")),
					refund("r1", "7"), refund("r2", "6.99"))
				if got != "flagged, applied, flagged, REFUND_EXCEEDS_PAID, r2 requested" {
					t.Error(got)
				}
			} else {
				m.says(console("m3", "2"), "flagged")
				m.says(console("m4", "0.001"), "flagged")
				m.says(paid, "applied")
				m.refuses(refund("r1", "7"), "6.99")
			}
			m.verify()
		})
	}
}

// The notice of a console refund may name no transaction, or a transaction of another payment than the one it names.
func TestTheConsoleNamesNoTransactionOrThatOfAnotherPayment(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(console("m1", "4", of("p1", "")), "flagged")
	m.refuses(refund("r1", "7"), "6.00")
	m.says(console("m2", "1", of("p9", "t1")), "flagged")
	m.refuses(refund("r1", "6"), "5.00")
	m.says(console("m3", "1", of("p9", "")), "flagged")
	m.refuses(refund("r1", "6"), "5.00")
	m.verify()
}

// A refund that succeeds after it has failed counts until the gateway reports another failure.
func TestARefundThatSucceedsAfterItsFailureCounts(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	said := func(id string, k gateway.Kind, want string) {
		t.Helper()
		m.says(notice(id, amountOf("4", "CNY"), ofRefund("r1", k)), want)
		m.verify()
	}
	said("m1", gateway.RefundFailed, "applied")
	said("m2", gateway.Refunded, "flagged")
	m.refuses(refund("r2", "7"), "6.00")
	m.gets(refund("r2", ""), "r2 requested")
	said("m3", gateway.RefundFailed, "applied")
	m.refuses(refund("r3", "4.01"), "4.00")
	// The refunds covered the whole amount, and then a part of it failed.
	m.is("o refunding, p1 succeeded, r1 failed, r2 requested; unknown_refund 400 withdrawn; gw -10, user:3 10 held 6")
	m.says(notice("m4", amountOf("6", "CNY"), ofRefund("r2", gateway.Refunded)), "applied")
	m.is("o paid, p1 succeeded, r1 failed, r2 succeeded; unknown_refund 400 withdrawn; gw -4, user:3 4")
	m.gets(refund("r3", ""), "r3 requested")
	m.verify()
}

// The notice of a console refund without a transaction may come before the money: it reduces the money that arrives
// later.
func TestTheConsoleWithoutATransactionComesBeforeTheMoney(t *testing.T) {
	t.Parallel()
	for name, together := range map[string]bool{"before": false, "together": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			m.payableOrder("o", outside)
			m.create("o", "p1")
			m.says(console("m0", "1", of("p2", "")), "flagged") // of another payment
			back, paid := console("m1", "4", of("p1", "")), notice("n1", amountOf("10", "CNY"))
			if together {
				if got := m.together(hears(back), hears(paid), hears(console("m2", "1", of("p1", ""))),
					refund("r1", "5.01")); got != "flagged, applied, flagged, REFUND_EXCEEDS_PAID" {
					t.Error(got)
				}
			} else {
				m.says(back, "flagged")
				m.says(paid, "applied")
				m.says(console("m2", "1", of("p1", "")), "flagged")
			}
			m.refuses(refund("r1", "7"), "5.00")
			m.verify()
		})
	}
}

// Money of an unknown payment may arrive before a console refund that names the payment and no transaction.
func TestTheConsoleNamesNoTransactionOfAnUnknownPayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.hear(0, notice("n1", amountOf("10", "CNY"), of("p9", "t9")))
	m.gets(flagUnknown("p9"), "true")
	m.says(console("m1", "10", of("p9", "")), "flagged")
	m.verify()
}

// The gateway may know the number of a refund before RefundPayment uses it, such as after a restore of the database.
// The gateway would not give money back twice under one number, so the number is refused.
func TestARefundWhoseNumberTheGatewayKnowsIsRefused(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "re_1"} {
		t.Run(id, func(t *testing.T) {
			t.Parallel()
			m := paidTill(t)
			known := func(s *payment.Received) { s.GatewayRefundID = id }
			m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), known), "flagged")
			m.gets(refund("r1", "4"), "REFUND_EXISTS_DIFFERENT")
			m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), known), "known")
			m.refuses(refund("r2", "7"), "6.00")
			m.gets(refund("r2", "6"), "r2 requested")
			m.verify()
		})
	}
}

func refundID(id string) func(*payment.Received) {
	return func(s *payment.Received) { s.GatewayRefundID = id }
}

// Notices report one refund by our number, by the gateway's id, or by both: it counts once.
func TestARefundReportedByNumberAndByIDCountsOnce(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), refundID("re_1")), "known")
	m.refuses(refund("r2", "7"), "6.00")
	m.verify()
	m = refunding(t, "4")
	m.says(notice("m0", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundPending), refundID("re_1")), "applied")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("", gateway.Refunded), refundID("re_1")), "known")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), refundID("re_1")), "applied")
	m.refuses(refund("r2", "7"), "6.00")
	m.verify()
}

// The notice of a pending payment may name an attempt instead of the transaction that pays. A console refund counts for
// the latter.
func TestTheConsoleDoesNotCountForAnAttempt(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n0", kind(gateway.Pending), of("p1", "attempt-1")), "applied")
	m.says(console("m1", "4", of("p1", "")), "flagged")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.refuses(refund("r1", "10"), "6.00")
	m.verify()
}

// The gateway reports a refund as succeeded in the batch that requests it.
func TestARefundMeetsItsSuccessInOneBatch(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	said := notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), refundID("re_1"))
	if got := m.together(refund("r1", "4"), hears(said)); got != "r1 requested, applied" {
		t.Error(got)
	}
	m.refuses(refund("r2", "7"), "6.00")
	m.verify()
}

// Two servers get requests for the same refund at the same time: all return that one refund.
func TestTheSameRefundOnTwoServersIsOne(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	for i := range 25 {
		o, p := fmt.Sprint("o", i), fmt.Sprint("p1", i)
		m.payableOrder(o, outside)
		m.create(o, p)
		m.hear(0, notice(fmt.Sprint("n", i), amountOf("10", "CNY"), of(p, fmt.Sprint("t", i))))
		var wait sync.WaitGroup
		for s := range 4 {
			wait.Go(func() {
				got := m.pay(s%2, &flow.RefundPayment{Caller: caller,
					RefundKey: payment.RefundKey{RefundNo: fmt.Sprint("r", i)}, OutTradeNo: p})
				if got != fmt.Sprint("r", i, " requested") && got != fmt.Sprint("r", i, " requested existed") {
					t.Errorf("refund %d: %s", i, got)
				}
			})
		}
		wait.Wait()
	}
}

// A console refund names a transaction and the number of another payment, while another server records the
// transaction's money. Whichever commits first, that amount cannot be given back again.
func TestTheConsoleNamesAnotherPaymentWhileTheMoneyComes(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	for n := range 12 {
		order, number, id := fmt.Sprint("o", n), fmt.Sprint("p", n), fmt.Sprint("t", n)
		m.payableOrder(order, outside)
		m.create(order, number)
		var ends [2]string
		var wait sync.WaitGroup
		wait.Go(func() { ends[0] = m.hear(0, console(fmt.Sprint("m", n), "4", of("other", id))) })
		wait.Go(func() { ends[1] = m.hear(1, notice(fmt.Sprint("n", n), amountOf("10", "CNY"), of(number, id))) })
		wait.Wait()
		if ends != [2]string{"flagged", "applied"} {
			t.Errorf("%d: %q", n, ends)
		}
		c := &flow.RefundPayment{Caller: caller, RefundKey: payment.RefundKey{RefundNo: fmt.Sprint("r", n)},
			OutTradeNo: number}
		m.gets(c, fmt.Sprintf("r%d requested", n))
		if got := m.text("select amount::text from payment_refunds " +
			"where refund_no = 'r" + fmt.Sprint(n) + "'"); got != "600" {
			t.Errorf("%d: %s is given back, want 600", n, got)
		}
	}
	m.verify()
}

// A console refund is reported under one of its names, and then under both: from then on, either name finds it.
func TestAConsoleRefundIsKnownByAllItsNames(t *testing.T) {
	t.Parallel()
	by := func(id, number, gatewayID string) payment.Received {
		said := notice(id, amountOf("4", "CNY"), ofRefund(number, gateway.Refunded))
		said.GatewayRefundID = gatewayID
		return said
	}
	for first, second := range map[[2]string][2]string{{"", "re_1"}: {"hand", ""}, {"hand", ""}: {"", "re_1"}} {
		m := paidTill(t)
		m.says(by("m1", first[0], first[1]), "flagged")
		m.says(by("m2", "hand", "re_1"), "known")
		m.says(by("m3", second[0], second[1]), "known")
		m.gets(refund("hand", "4"), "REFUND_EXISTS_DIFFERENT")
		m.refuses(refund("r2", "7"), "6.00")
		m.verify()
	}
}

// The first notice of a console refund may have no amount or another currency: a later notice with the amount counts.
func TestALaterCorrectNoticeOfAConsoleRefundCounts(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(*payment.Received){
		"of nothing": amountOf("0", "CNY"), "without an amount": amountOf("0", ""),
		"in another currency": amountOf("4", "USD"),
	} {
		for _, number := range []string{"", "hand"} {
			t.Run(name+" "+number, func(t *testing.T) {
				t.Parallel()
				m := paidTill(t)
				said := func(id string, amount func(*payment.Received)) payment.Received {
					return notice(id, amount, ofRefund(number, gateway.Refunded), refundID("re_1"))
				}
				m.says(said("m1", first), "flagged")
				m.says(said("m0", first), "known")
				m.refuses(refund("r2", "11"), "10.00")
				m.says(said("m2", amountOf("4", "CNY")), "flagged")
				m.refuses(refund("r2", "7"), "6.00")
				m.says(said("m3", amountOf("4", "CNY")), "known")
				m.refuses(refund("r2", "7"), "6.00")
				m.verify()
			})
		}
	}
}

// A console refund without a transaction, of a payment with many, counts for the transaction that paid.
func TestTheConsoleNamesNoneOfManyTransactions(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	const times = 23
	for n := range times {
		m.says(notice(fmt.Sprint("n", n), amountOf("9", "CNY"), of("p1", fmt.Sprint("t", n))), "flagged")
	}
	m.gets(m.resolve(times-1, flow.ResolveFlag{Resolution: payment.Accept}), "second_transaction accept")
	m.says(console("c1", "9", of("p1", "")), "flagged")
	m.refuses(refund("r1", "9"), "0.00")
	if got := m.text("select string_agg(transaction_id || ' ' || extra_refunded, ', ') from payment_money " +
		"where extra_refunded > 0"); got != "t22 900" {
		t.Errorf("given back: %s", got)
	}
	m.verify()
}
