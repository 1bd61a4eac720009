package flow_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// gaveBack returns a notice that console refund re_1 gave back an amount.
func gaveBack(id, amount string, change ...func(*payment.Received)) payment.Received {
	return console(id, amount, append([]func(*payment.Received){refundID("re_1")}, change...)...)
}

// cameBack returns a notice that console refund re_1 failed.
func cameBack(id string, change ...func(*payment.Received)) payment.Received {
	return gaveBack(id, "4", append([]func(*payment.Received){kind(gateway.RefundFailed)}, change...)...)
}

func minute(n int) func(*payment.Received) {
	began := time.Now().Add(-time.Hour)
	return func(s *payment.Received) { s.At = began.Add(time.Duration(n) * time.Minute) }
}

// resolveLast resolves the newest flag.
func (m *till) resolveLast(c flow.ResolveFlag) flow.Command {
	m.Helper()
	n, err := strconv.ParseInt(m.text("select flag_id::text from payment_flags order by created_at desc limit 1"), 10,
		64)
	if err != nil {
		m.Fatal(err)
	}
	c.Caller, c.ID = caller, n
	return &c
}

func writtenOff() flow.ResolveFlag {
	return flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}
}

// A console refund that fails later gave nothing back: its open flag is withdrawn. If a person has resolved the flag,
// another flag has the money that came back.
func TestAConsoleRefundThatFailsLaterIsFlagged(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "4"), "flagged")
	m.refuses(refund("r1", "7"), "6.00")
	m.says(cameBack("m2"), "applied")
	m.says(cameBack("m3"), "known")
	m.refuses(refund("r1", "10.01"), "10.00")
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn; gw -10, user:3 10")
	m.verify()
	m.says(gaveBack("m4", "4"), "flagged")
	m.refuses(refund("r1", "7"), "6.00")
	m.gets(m.resolve(1, writtenOff()), "unknown_refund write_off")
	m.says(cameBack("m5"), "flagged")
	m.refuses(refund("r1", "10.01"), "10.00")
	m.verify()
	m.gets(m.resolve(2, writtenOff()), "refund_returned write_off")
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn, unknown_refund 400 write_off, " +
		"refund_returned 400 write_off; gw -10, user:3 10")
	m.gets(refund("r1", ""), "r1 requested")
	m.verify()
}

// A console refund may succeed again after it has failed: the flag of the failure is withdrawn or, if it was resolved,
// followed by a new flag.
func TestAConsoleRefundTurnsAgain(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "4"), "flagged")
	m.gets(m.resolve(0, writtenOff()), "unknown_refund write_off")
	m.says(cameBack("m2"), "flagged")
	m.says(gaveBack("m3", "4"), "applied")
	m.is("o paid, p1 succeeded; unknown_refund 400 write_off, refund_returned 400 withdrawn; gw -6, loss -4, user:3 10")
	m.refuses(refund("r1", "7"), "6.00")
	m.verify()
	m.says(cameBack("m4"), "flagged")
	m.gets(m.resolve(2, writtenOff()), "refund_returned write_off")
	m.says(gaveBack("m5", "0", amountOf("0", "")), "flagged") // without an amount: as much as before
	m.refuses(refund("r1", "7"), "6.00")
	m.is("o paid, p1 succeeded; unknown_refund 400 write_off, refund_returned 400 withdrawn, " +
		"refund_returned 400 write_off, unknown_refund 400; gw -10, user:3 10")
	m.verify()
}

// Of several notices of a console refund, the latest by the gateway's clock counts.
func TestNoticesOfAConsoleRefundCountByTheGatewaysTime(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "4", minute(5)), "flagged")
	m.says(cameBack("m2", minute(20)), "applied")
	m.says(gaveBack("m3", "4", minute(10)), "known") // older than m2
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn; gw -10, user:3 10")
	answer := gaveBack("m4", "4", minute(10)) // an answer to a query reports the present state
	answer.Callback = false
	m.says(answer, "flagged")
	m.says(cameBack("m5", minute(30)), "applied")
	m.says(answer, "flagged existed") // the same answer, after another notice
	m.says(answer, "flagged existed")
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn, unknown_refund 400 withdrawn, unknown_refund 400; " +
		"gw -10, user:3 10")
	m.verify()
}

// The notice of a console refund's failure may come before that of its success.
func TestTheFailureOfAConsoleRefundComesFirst(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(cameBack("m1", minute(20)), "known")
	m.says(gaveBack("m2", "4", minute(10)), "known")
	m.is("o paid, p1 succeeded; gw -10, user:3 10")
	m.refuses(refund("r1", "10.01"), "10.00")
	m.says(gaveBack("m3", "4", minute(30)), "flagged")
	m.refuses(refund("r1", "7"), "6.00")
	m.verify()
}

// Later notices may increase and reduce the amount of a console refund.
func TestAConsoleRefundOfAnotherAmountIsFlagged(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "4"), "flagged")
	m.says(gaveBack("m2", "5"), "flagged")
	m.refuses(refund("r1", "6"), "5.00")
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn, unknown_refund 500; gw -10, user:3 10")
	m.gets(m.resolve(1, writtenOff()), "unknown_refund write_off")
	m.says(gaveBack("m3", "3"), "flagged")
	m.refuses(refund("r1", "8"), "7.00")
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn, unknown_refund 500 write_off, refund_returned 200; " +
		"gw -5, loss -5, user:3 10")
	m.says(gaveBack("m4", "6"), "flagged")
	m.is("o paid, p1 succeeded; unknown_refund 400 withdrawn, unknown_refund 500 write_off, " +
		"refund_returned 200 withdrawn, unknown_refund 100; gw -5, loss -5, user:3 10")
	m.verify()
}

// A console refund changes its currency: the amount that was flagged in the old currency was not given back.
func TestAConsoleRefundOfAnotherCurrencyIsFlagged(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "gw", Asset: "USD", Kind: "asset"}, {Code: "loss", Asset: "USD", Kind: "expense"}}}), "ok")
	m.says(gaveBack("m1", "3", amountOf("3", "USD")), "flagged")
	m.says(gaveBack("m2", "4"), "flagged")
	m.is("o paid, p1 succeeded; unknown_refund 300 withdrawn, unknown_refund 400; gw -10, user:3 10")
	m.says(gaveBack("m3", "3", amountOf("3", "USD")), "flagged")
	m.refuses(refund("r1", "11"), "10.00")
	m.gets(m.resolve(2, writtenOff()), "unknown_refund write_off")
	m.says(gaveBack("m4", "4"), "flagged")
	m.refuses(refund("r1", "7"), "6.00")
	m.is("o paid, p1 succeeded; unknown_refund 300 withdrawn, unknown_refund 400 withdrawn, " +
		"unknown_refund 300 write_off, refund_returned 300, unknown_refund 400; gw -10, user:3 10")
	m.verify()
	m.says(cameBack("m5"), "applied")
	m.gets(m.resolve(3, writtenOff()), "refund_returned write_off")
	m.verify()
}

// A console refund whose first notice had no amount may fail.
func TestAConsoleRefundWithoutAnAmountFails(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "0", amountOf("0", "")), "flagged")
	m.says(cameBack("m2"), "applied")
	m.says(gaveBack("m3", "0", amountOf("0", "")), "flagged")
	m.says(gaveBack("m4", "4"), "flagged")
	m.is("o paid, p1 succeeded; unknown_refund 0 withdrawn, unknown_refund 0 withdrawn, unknown_refund 400; " +
		"gw -10, user:3 10")
	m.verify()
}

// The failure of a console refund may be reported under any of its names.
func TestAConsoleRefundFailsUnderAllItsNames(t *testing.T) {
	t.Parallel()
	by := func(id string, k gateway.Kind, number, gatewayID string) payment.Received {
		return notice(id, amountOf("4", "CNY"), ofRefund(number, k), refundID(gatewayID))
	}
	for _, last := range [][2]string{{"hand", ""}, {"", "re_1"}, {"hand", "re_1"}} {
		for _, first := range [][2]string{{"hand", "re_1"}, {"hand", ""}, {"", "re_1"}} {
			m := paidTill(t)
			m.says(by("m1", gateway.Refunded, first[0], first[1]), "flagged")
			m.says(by("m2", gateway.Refunded, "hand", "re_1"), "known")
			m.says(by("m3", gateway.RefundFailed, last[0], last[1]), "applied")
			m.gets(refund("hand", "4"), "REFUND_EXISTS_DIFFERENT")
			m.refuses(refund("r2", "11"), "10.00")
			m.verify()
		}
	}
}

// A later notice of a console refund may name another payment: its flag stays with the first one.
func TestAConsoleRefundNamesAnotherPayment(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.payableOrder("o2", outside)
	m.create("o2", "p2")
	m.says(gaveBack("m1", "4"), "flagged")
	m.says(gaveBack("m2", "5", of("p2", "t2")), "flagged")
	if got := m.text("select string_agg(concat_ws(' ', out_trade_no, transaction_id, order_no), ', ' " +
		"order by flag_id) from payment_flags"); got != "p1 t1 o, p1 t1" {
		t.Errorf("flags of %s", got)
	}
	m.refuses(refund("r1", "6"), "5.00")
	m.verify()
}

// Notices that name another refund, none, or another merchant do not change a console refund.
func TestFailuresOfOthersTurnNoConsoleRefund(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	other := func(s *payment.Received) { s.Foreign = "merchant m2" }
	m.says(gaveBack("m1", "4", minute(5)), "flagged")
	m.says(cameBack("m2", refundID("")), "known")
	m.says(cameBack("m3", refundID("re_2")), "known")
	m.says(cameBack("m4", other, minute(50)), "known")
	m.is("o paid, p1 succeeded; unknown_refund 400; gw -10, user:3 10")
	m.says(gaveBack("m5", "4", other, minute(50)), "known")
	m.says(cameBack("m6", minute(20)), "applied")
	m.verify()
}

// Two servers receive notices of a console refund's failure at the same time, also of an unknown payment: it takes
// effect once.
func TestAConsoleRefundTurnsOnTwoServers(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	for n := range 12 {
		number := []string{"p1", "p9"}[n%2]
		says := func(id string, k gateway.Kind) payment.Received {
			return notice(fmt.Sprint(id, n), amountOf("0.1", "CNY"), ofRefund("", k), of(number, "t"+number[1:]),
				refundID(fmt.Sprint("re_", n)))
		}
		m.says(says("m", gateway.Refunded), "flagged")
		if n%3 > 0 {
			m.gets(m.resolveLast(writtenOff()), "unknown_refund write_off")
		}
		var ends [4]string
		var wait sync.WaitGroup
		for i := range ends {
			wait.Go(func() { ends[i] = m.hear(i%2, says(fmt.Sprint("f", i, "-"), gateway.RefundFailed)) })
		}
		wait.Wait()
		first := []string{"applied", "flagged", "flagged"}[n%3]
		if got := strings.Count(strings.Join(ends[:], " "), first); got != 1 {
			t.Errorf("%d: %q, want %s once", n, ends, first)
		}
	}
	m.verify()
}

// A person resolves a flag while another server receives the notice that withdraws it.
func TestAConsoleRefundTurnsWhileItsFlagIsResolved(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	for n := range 10 {
		number := []string{"p1", "p9"}[n%2]
		says := func(id string, k gateway.Kind) payment.Received {
			return notice(fmt.Sprint(id, n), amountOf("0.1", "CNY"), ofRefund("", k), of(number, "t"+number[1:]),
				refundID(fmt.Sprint("re_", n)))
		}
		m.says(says("m", gateway.Refunded), "flagged")
		resolve := m.resolveLast(writtenOff())
		var wait sync.WaitGroup
		var ends [2]string
		wait.Go(func() { ends[0] = m.hear(0, says("f", gateway.RefundFailed)) })
		wait.Go(func() { ends[1] = m.pay(1, resolve) })
		wait.Wait()
		if ends != [2]string{"applied", "FLAG_RESOLVED"} && ends != [2]string{"flagged", "unknown_refund write_off"} {
			t.Errorf("%d: %q", n, ends)
		}
		m.verify()
	}
}

// In one batch, a refund sees the effect of earlier notices of console refunds, and repeated notices count once.
func TestAConsoleRefundTurnsInTheBatchOfARefund(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "4"), "flagged")
	if got := m.together(hears(cameBack("m2")), refund("r1", "10.01"), refund("r2", "7")); got != "applied, "+
		"REFUND_EXCEEDS_PAID, r2 requested" {
		t.Error(got)
	}
	if got := m.together(hears(gaveBack("m3", "2")), refund("r3", "1.01"), hears(cameBack("m4")),
		hears(gaveBack("m5", "2.5"))); got !=
		"flagged, REFUND_EXCEEDS_PAID, applied, flagged" {
		t.Error(got)
	}
	m.refuses(refund("r3", "1"), "0.50")
	m.is("o paid, p1 succeeded, r2 requested; unknown_refund 400 withdrawn, unknown_refund 200 withdrawn, " +
		"unknown_refund 250; gw -10, user:3 10 held 7")
	m.verify()
	first := notice("x1", amountOf("0.5", "CNY"), ofRefund("", gateway.Refunded), refundID("re_2"))
	again, failed := first, first
	again.ID, failed.ID, failed.Kind = "x2", "x3", gateway.RefundFailed
	if got := m.together(hears(first), hears(again), hears(failed)); got != "flagged, known, applied" {
		t.Error(got)
	}
	m.verify()
}

// A console refund without a transaction counts for all transactions of its payment, also in the batch of a refund,
// even if a later notice names another payment.
func TestAConsoleRefundWithoutATransactionTurnsInTheBatchOfARefund(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	no := of("p1", "")
	m.says(gaveBack("m1", "4", no), "flagged")
	m.says(cameBack("m2", no), "applied")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	if got := m.together(hears(gaveBack("m3", "4", no)), refund("r1", "10")); got != "flagged, REFUND_EXCEEDS_PAID" {
		t.Error(got)
	}
	if got := m.together(hears(gaveBack("m4", "9", of("p9", ""))),
		refund("r1", "6")); got != "flagged, REFUND_EXCEEDS_PAID" {
		t.Error(got)
	}
	if got := m.together(hears(cameBack("m5", no)), refund("r1", "10")); got != "applied, r1 requested" {
		t.Error(got)
	}
	m.verify()
}

// A notice reports one of our refunds in another currency: the money is flagged once, also if the gateway's id of that
// refund is known.
func TestARefundOfAnotherCurrencyWithAKnownIDIsFlagged(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	usd := func(id string) payment.Received {
		return notice(id, amountOf("4", "USD"), ofRefund("r1", gateway.Refunded), refundID("re_1"))
	}
	m.says(notice("m0", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundPending), refundID("re_1")), "applied")
	m.says(usd("m1"), "flagged")
	m.says(usd("m2"), "known")
	m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), refundID("re_1")), "applied")
	m.says(usd("m4"), "known")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400; gw -6, user:3 6")
	m.verify()
}

// The same amount with other decimals is not flagged again, and neither is an amount whose currency has got an asset
// since.
func TestAConsoleRefundInOtherDecimalsIsTheSame(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	eur := func(id, n string) payment.Received { return gaveBack(id, n, amountOf(n, "EUR")) }
	m.says(eur("m1", "3"), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "unknown_refund write_off")
	m.wants(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
		Assets: []ledger.NewAsset{{Code: "EUR", Scale: 2}}}), "ok")
	m.says(eur("m2", "3.00"), "known")
	m.says(console("m3", "4"), "flagged")
	m.gets(m.resolve(1, writtenOff()), "unknown_refund write_off")
	m.says(console("m4", "4.001", refundID("re_m3")), "flagged")
	m.is("o paid, p1 succeeded; unknown_refund 3 write_off, unknown_refund 400 write_off, unknown_refund 1; gw -6, " +
		"loss -4, user:3 10")
	m.verify()
}

// A notice may name a console refund by the gateway's id alone: the payment is found by that id.
func TestThePaymentOfAConsoleRefundIsFoundByItsID(t *testing.T) {
	t.Parallel()
	m := paidTill(t)
	m.says(gaveBack("m1", "4", of("p9", "t9")), "flagged")
	for id, want := range map[string]string{"re_1": "p9", "re_2": ""} {
		got, err := payment.NewReader(m.app).NumberOf(t.Context(), payment.GatewayKey{Tenant: 1, Gateway: "g"}, "", id,
			"t9")
		if got != want || err != nil {
			t.Errorf("%s: %q, %v", id, got, err)
		}
	}
}

// RefundPayment on another server locks the payment's instance and reads the amount that remains. A notice of a console
// refund of that payment waits for the lock, even if it names another payment.
func TestAConsoleRefundWaitsForARefundOfItsPayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(gaveBack("m1", "4", of("p1", "")), "flagged")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	tx, err := m.super.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), "select from machine_instances where machine = 'payment' "+
			"and key = 'p1' for update")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	done := make(chan string, 1)
	go func() { done <- m.hear(0, gaveBack("m2", "9", of("p9", ""))) }()
	for m.text(`select count(*)::text from pg_locks l join pg_database d on not l.granted
		and l.locktype = 'transactionid'
		join pg_stat_activity a on a.pid = l.pid and a.datid = d.oid and d.datname = current_database()`) == "0" {
		select {
		case got := <-done:
			t.Fatalf("it does not wait: %s", got)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != "flagged" {
		t.Error(got)
	}
	m.verify()
}
