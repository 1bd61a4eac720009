package flow_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// refunding returns a till with order o, which p1 has paid with 10, and with refund r1, which the gateway has not
// decided.
func refunding(t *testing.T, amount string) *till {
	t.Helper()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", amount), "r1 requested")
	return m
}

// A refund of which the gateway gave back another amount ends, and a flag has the difference.
func TestARefundOfAnotherAmountEnds(t *testing.T) {
	t.Parallel()
	for given, c := range map[string]struct{ flag, after string }{
		"8":  {"refund_returned", "gw -2, loss 2"},
		"12": {"unknown_refund", "gw 2, loss -2"},
	} {
		t.Run(given, func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "")
			back := func(id, n string) payment.Received {
				return notice(id, amountOf(n, "CNY"), ofRefund("r1", gateway.Refunded))
			}
			m.says(back("m1", given), "flagged")
			m.says(back("m2", given), "known")
			// without an amount
			m.says(notice("m3", amountOf("0", "CNY"), ofRefund("r1", gateway.Refunded)), "known")
			m.calls("none")
			ended := "o refunded, p1 succeeded, r1 succeeded; " + c.flag + " 200"
			m.is(ended)
			m.verify()
			m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), c.flag+" write_off")
			m.is(ended + " write_off; " + c.after)
			m.verify()
		})
	}
}

// The latest notice of a refund counts. If the refund returns to its earlier outcome, an open flag is withdrawn, and a
// flag that a person has resolved is followed by an opposite one.
func TestARefundThatTurnsTwiceLeavesTheRightFlag(t *testing.T) {
	t.Parallel()
	for _, first := range []gateway.Kind{gateway.Refunded, gateway.RefundFailed} {
		kinds, flags := []gateway.Kind{gateway.Refunded, gateway.RefundFailed},
			[]string{"unknown_refund", "refund_returned"}
		state, books := "succeeded", "gw -6, user:3 6"
		if first == gateway.RefundFailed {
			kinds, flags = []gateway.Kind{kinds[1], kinds[0]}, []string{flags[1], flags[0]}
			state, books = "failed", "gw -10, user:3 10"
		}
		t.Run(string(first), func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "4")
			n := 0
			says := func(turn int, want string) {
				t.Helper()
				for _, want := range []string{want, "known"} { // each under two notice ids
					n++
					m.says(notice(fmt.Sprint("m", n), amountOf("4", "CNY"), ofRefund("r1", kinds[turn%2])), want)
				}
				m.verify()
			}
			off := flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}
			is := func(flags, books string) {
				t.Helper()
				m.is("o paid, p1 succeeded, r1 " + state + "; " + flags + "; " + books)
			}
			says(0, "applied")
			says(1, "flagged")
			is(flags[1]+" 400", books)
			says(2, "applied")
			is(flags[1]+" 400 withdrawn", books)
			m.gets(m.resolve(0, off), "FLAG_RESOLVED")
			says(3, "flagged")
			m.gets(m.resolve(1, off), flags[1]+" write_off")
			says(4, "flagged")
			says(5, "applied")
			says(6, "flagged")
			m.gets(m.resolve(3, off), flags[0]+" write_off")
			is(flags[1]+" 400 withdrawn, "+flags[1]+" 400 write_off, "+
				flags[0]+" 400 withdrawn, "+flags[0]+" 400 write_off", books)
			m.verify()
		})
	}
}

// A refund that changes its outcome twice in one batch has both changes recorded.
func TestARefundTurnsTwiceInABatch(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	said := func(id string, k gateway.Kind) flow.Command {
		return hears(notice(id, amountOf("4", "CNY"), ofRefund("r1", k)))
	}
	got := m.together(said("m1", gateway.Refunded), said("m2", gateway.RefundFailed), said("m3", gateway.RefundFailed),
		said("m4", gateway.Refunded))
	if got != "applied, flagged, known, applied" {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded, r1 succeeded; refund_returned 400 withdrawn; gw -6, user:3 6")
	m.verify()
}

// A caller may release the hold of an undecided refund: if the refund succeeds, it is flagged.
func TestTheHoldOfARefundIsReleasedByHand(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	m.wants(flow.Ledger(ledger.ReleaseOf(caller, 0, "refund/r1")), "ok")
	m.verify()
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.verify()
}

// The gateway gave back another amount than requested, and later reports the refund as failed: one flag is open, with
// the whole amount that the ledger has given back.
func TestARefundOfAnotherAmountIsReturned(t *testing.T) {
	t.Parallel()
	for given, flag := range map[string]string{"3": "refund_returned 100", "5": "unknown_refund 100"} {
		t.Run(given, func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "4")
			m.says(notice("m1", amountOf(given, "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
			m.verify()
			m.says(notice("m2", ofRefund("r1", gateway.RefundFailed)), "flagged")
			m.says(notice("m3", ofRefund("r1", gateway.RefundFailed)), "known")
			m.is("o paid, p1 succeeded, r1 succeeded; " + flag + " withdrawn, refund_returned 400; gw -6, user:3 6")
			m.verify()
			m.says(notice("m4", amountOf(given, "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
			m.is("o paid, p1 succeeded, r1 succeeded; " + flag + " withdrawn, refund_returned 400 withdrawn, " + flag +
				"; gw -6, user:3 6")
			m.verify()
		})
	}
}

// The same, but a person has resolved the flag of the difference: the new flag has the whole amount of the gateway.
func TestARefundOfAnotherAmountIsReturnedAfterItsFlagWasResolved(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	off := flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}
	m.says(notice("m1", amountOf("5", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.refuses(refund("r2", "6"), "5.00")
	m.gets(m.resolve(0, off), "unknown_refund write_off")
	m.says(notice("m2", ofRefund("r1", gateway.RefundFailed)), "flagged")
	m.refuses(refund("r2", "7"), "6.00")
	m.gets(m.resolve(1, off), "refund_returned write_off")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 100 write_off, refund_returned 500 write_off; gw -10, " +
		"loss 4, user:3 6")
	m.verify()
}

// A refund without a hold moved no money when it succeeded, so none comes back when it fails. A flag of amount 0 says
// that the payer has not got the money.
func TestARefundWithoutAHoldIsReturned(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	m.wants(flow.Ledger(ledger.ReleaseOf(caller, 0, "refund/r1")), "ok")
	m.says(notice("m1", amountOf("5", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.refuses(refund("r2", "6"), "5.00")
	m.verify()
	m.says(notice("m2", ofRefund("r1", gateway.RefundFailed)), "flagged")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 500 withdrawn, refund_returned 0; gw -10, user:3 10")
	m.verify()
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "refund_returned write_off")
	m.verify()
	m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 500 withdrawn, refund_returned 0 write_off, " +
		"unknown_refund 400; gw -10, user:3 10")
	m.verify()
}

// A notice reports a refund with another merchant, and a later one with ours, or its failure: the refund counts once,
// even if a person has resolved the flag in between.
func TestARefundOfAnotherMerchantAndThenOfOursCountsOnce(t *testing.T) {
	t.Parallel()
	foreign := func(s *payment.Received) { s.Foreign = "seller" }
	off := flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}
	for name, c := range map[string]struct {
		resolved bool
		then     gateway.Kind
		effect   string
		is       string
	}{
		"succeeds": {false, gateway.Refunded, "applied", "r1 succeeded; unknown_refund 400 withdrawn; gw -6, user:3 6"},
		"fails": {false, gateway.RefundFailed, "applied", "r1 failed; unknown_refund 400 withdrawn; " +
			"gw -10, user:3 10"},
		"succeeds, decided": {true, gateway.Refunded, "flagged",
			"r1 succeeded; unknown_refund 400 write_off, refund_returned 400; gw -2, loss -4, user:3 6"},
		"fails, decided": {true, gateway.RefundFailed, "flagged",
			"r1 failed; unknown_refund 400 write_off, refund_returned 400; gw -6, loss -4, user:3 10"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "4")
			m.says(notice("m0", ofRefund("r1", gateway.RefundFailed), foreign), "known")
			m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), foreign), "flagged")
			m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), foreign), "known")
			m.is("o paid, p1 succeeded, r1 requested; unknown_refund 400; gw -10, user:3 10 held 4")
			m.refuses(refund("r2", "7"), "6.00")
			m.verify()
			if c.resolved {
				m.gets(m.resolve(0, off), "unknown_refund write_off")
			}
			m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", c.then)), c.effect)
			m.is("o paid, p1 succeeded, " + c.is)
			m.refuses(refund("r2", "11"), map[gateway.Kind]string{gateway.Refunded: "6.00",
				gateway.RefundFailed: "10.00"}[c.then])
			m.verify()
		})
	}
}

// A notice of a refund in another currency does not end the refund: its money is flagged.
func TestARefundOfAnotherCurrencyIsFlagged(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	m.says(notice("m1", amountOf("4", "USD"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.says(notice("m2", amountOf("4", "USD"), ofRefund("r1", gateway.Refunded)), "known")
	m.is("o paid, p1 succeeded, r1 requested; unknown_refund 400; gw -10, user:3 10 held 4")
	if got := m.text("select detail || ' ' || currency from payment_flags"); got != "the gateway gave back USD for "+
		"refund r1, which requested CNY USD" {
		t.Error(got)
	}
	m.verify()
	m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.says(notice("m4", amountOf("4", ""), ofRefund("r1", gateway.Refunded)), "known")
	m.verify()
}

// Later notices may change the amount that a refund gave back.
func TestARefundThatGrowsAndShrinksIsFlagged(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	said := func(id, n, effect, remaining string) {
		t.Helper()
		m.says(notice(id, amountOf(n, "CNY"), ofRefund("r1", gateway.Refunded)), effect)
		m.refuses(refund("r2", "7"), remaining)
		m.verify()
	}
	said("m1", "4", "applied", "6.00")
	said("m2", "10", "flagged", "0.00")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 600; gw -6, user:3 6")
	said("m3", "5", "flagged", "5.00")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 600 withdrawn, unknown_refund 100; gw -6, user:3 6")
	said("m4", "4", "applied", "6.00")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 600 withdrawn, unknown_refund 100 withdrawn; " +
		"gw -6, user:3 6")
	said("m5", "3", "flagged", "6.00")
	m.gets(m.resolve(2, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "refund_returned write_off")
	said("m6", "4", "flagged", "6.00")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 600 withdrawn, unknown_refund 100 withdrawn, " +
		"refund_returned 100 write_off, unknown_refund 100; gw -7, loss 1, user:3 6")
}

// Notices arrive in any order: the latest by the gateway's clock counts.
func TestNoticesOfARefundCountByTheGatewaysTime(t *testing.T) {
	t.Parallel()
	begin := time.Now().Add(-time.Hour)
	at := func(minute int) func(*payment.Received) {
		return func(s *payment.Received) { s.At = begin.Add(time.Duration(minute) * time.Minute) }
	}
	type said struct {
		kind   gateway.Kind
		minute int // -1: in the answer to a call, without a time
		effect string
	}
	yes, no := gateway.Refunded, gateway.RefundFailed
	for name, c := range map[string]struct {
		says  []said
		ends  string
		given string
	}{
		"failed, and a success from before": {[]said{{no, 12, "applied"}, {yes, 10, "known"}, {no, 12, "known"}},
			"r1 failed; gw -10, user:3 10", "0"},
		"a failed answer, a success, and the failure's notice": {[]said{{no, -1, "applied"}, {yes, 10, "flagged"},
			{no, 9, "known"}},
			"r1 failed; unknown_refund 400; gw -10, user:3 10", "400"},
		"success, failure, and the success again": {[]said{{yes, 10, "applied"}, {no, 12, "flagged"},
			{yes, 10, "known"}},
			"r1 succeeded; refund_returned 400; gw -6, user:3 6", "0"},
		"in order": {[]said{{no, 10, "applied"}, {yes, 12, "flagged"}, {no, 13, "applied"}},
			"r1 failed; unknown_refund 400 withdrawn; gw -10, user:3 10", "0"},
		"at the same time, as they come": {[]said{{no, 10, "applied"}, {yes, 10, "flagged"}, {no, 10, "applied"}},
			"r1 failed; unknown_refund 400 withdrawn; gw -10, user:3 10", "0"},
		"a clock that is ahead": {[]said{{no, 10_000, "applied"}, {yes, 9_000, "flagged"}},
			"r1 failed; unknown_refund 400; gw -10, user:3 10", "400"},
		"the gateway is asked": {[]said{{no, 12, "applied"}, {yes, -1, "flagged"}},
			"r1 failed; unknown_refund 400; gw -10, user:3 10", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "4")
			for n, s := range c.says {
				said := notice(fmt.Sprint("m", n), amountOf("4", "CNY"), ofRefund("r1", s.kind), at(s.minute))
				if s.minute < 0 {
					said.At, said.Callback = time.Time{}, false
				}
				m.says(said, s.effect)
				m.verify()
			}
			m.is("o paid, p1 succeeded, " + c.ends)
			if got := m.text("select given::text from payment_refunds"); got != c.given {
				t.Errorf("%s are given back", got)
			}
		})
	}
}

// If the clock of a gateway is a little ahead, its notices still count in the order of their times.
func TestAClockThatIsAheadOrdersItsNotices(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	ahead := func(seconds int) func(*payment.Received) {
		at := time.Now().Add(30*time.Second + time.Duration(seconds)*time.Second)
		return func(s *payment.Received) { s.At = at }
	}
	first, second := ahead(0), ahead(3)
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), first), "applied")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed), second), "flagged")
	m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), first), "known")
	m.is("o paid, p1 succeeded, r1 succeeded; refund_returned 400; gw -6, user:3 6")
	m.verify()
}

// A notice that names another merchant does not advance the notice time of our refund.
func TestANoticeOfAnotherMerchantOrdersNothing(t *testing.T) {
	t.Parallel()
	begin := time.Now().Add(-time.Hour)
	at := func(minute int) func(*payment.Received) {
		return func(s *payment.Received) { s.At = begin.Add(time.Duration(minute) * time.Minute) }
	}
	for given, want := range map[string]struct{ effect, flags string }{
		"4": {"known", "refund_returned 400"},
		"5": {"flagged", "unknown_refund 100 withdrawn, refund_returned 400"},
	} {
		t.Run(given, func(t *testing.T) {
			t.Parallel()
			m := refunding(t, "4")
			m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), at(10)), "applied")
			m.says(notice("m2", amountOf(given, "CNY"), ofRefund("r1", gateway.Refunded), at(20),
				func(s *payment.Received) { s.Foreign = "merchant m2" }), want.effect)
			m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed), at(15)), "flagged")
			m.is("o paid, p1 succeeded, r1 succeeded; " + want.flags + "; gw -6, user:3 6")
			m.verify()
		})
	}
}

// A pending notice without an amount needs a query if the refund is a console refund, or has ended already.
func TestNoticesWithoutTheOutcomeOfARefundCauseAQuery(t *testing.T) {
	t.Parallel()
	apply := func(m *till, s payment.Received) flow.NoticeResult {
		t.Helper()
		out, err := flow.CommitNotice(t.Context(), m.engines[0], payment.GatewayKey{Tenant: 1, Gateway: "g"}, s, nil,
			"r")
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	m := refunding(t, "4")
	asks := notice("m1", amountOf("0", ""), ofRefund("r1", gateway.RefundPending))
	if apply(m, asks).NeedsQuery {
		t.Error("a query beside the poller's, about a refund that is not decided")
	}
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed)), "applied")
	for range 2 { // also when the notice comes again
		if asks.ID = "m3"; !apply(m, asks).NeedsQuery {
			t.Error("no query about a refund that failed before")
		}
	}
	pending := notice("m4", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundPending))
	if apply(m, pending).NeedsQuery {
		t.Error("a query after a notice with an amount")
	}
	// The payment does not exist yet: without a query, its money would count as not given back.
	if !apply(m, notice("m5", amountOf("0", ""), of("p9", "t9"), ofRefund("hand", gateway.RefundPending))).NeedsQuery {
		t.Error("no query about a refund of an unknown payment")
	}
	if apply(m, notice("m6", amountOf("4", "CNY"), of("p9", "t9"),
		ofRefund("hand2", gateway.RefundPending))).NeedsQuery {
		t.Error("a query about a pending refund of an unknown payment")
	}
}

// The gateway knows a refund number already, such as after a restore of the database. Its notice arrives while another
// server requests a refund with that number.
func TestARefundMeetsItsNoticeOnAnotherServer(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	four := dec("4")
	for n := range 100 {
		o, p, id, no := fmt.Sprint("o", n), fmt.Sprint("p", n), fmt.Sprint("t", n), fmt.Sprint("r", n)
		m.payableOrder(o, outside, func(c *flow.CreateOrder) { c.Lines, c.Reserve = nil, false })
		m.create(o, p)
		m.hear(0, notice(fmt.Sprint("n", n), amountOf("10", "CNY"), of(p, id)))
		k := []gateway.Kind{gateway.Refunded, gateway.Refunded, gateway.RefundFailed}[n%3]
		var both sync.WaitGroup
		both.Go(func() {
			for range n % 10 { // at other moments
				m.text("select 1")
			}
			m.pay(0, &flow.RefundPayment{Caller: caller, RefundKey: payment.RefundKey{RefundNo: no}, OutTradeNo: p,
				Amount: &four})
		})
		both.Go(func() {
			for range 4 {
				m.text("select 1")
			}
			m.hear(1, notice(fmt.Sprint("m", n), amountOf("4", "CNY"), of(p, id), ofRefund(no, k)))
		})
		both.Wait()
	}
	if got := m.text("select coalesce(string_agg(detail, ', '), 'none') from payment_flags " +
		"where about_refund is not null"); got != "none" {
		t.Error(got)
	}
	m.verify()
}

// No amount in a notice makes a read fail.
func TestSumsOfRefundsBeyond38DigitsBreakNoRead(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	for n := range 2 {
		m.says(console(fmt.Sprint("c", n), "999999999999999999999999999999999999.99"), "flagged")
	}
	v, err := payment.NewReader(m.app).Payment(t.Context(), payment.Key{Tenant: 1, OutTradeNo: "p1"})
	if err != nil || v.Refunded != amount.Max {
		t.Errorf("%v is given back, %v", v.Refunded, err)
	}
	if list, _, err := payment.NewReader(m.app).Payments(t.Context(), 1, "", 10, ""); err != nil || len(list) != 1 {
		t.Errorf("%d payments, %v", len(list), err)
	}
	m.refuses(refund("r2", "1"), "0.00")
	m.verify()
}

// The notice of a flag's refund may name another merchant only if the notice of the money named another merchant too.
func TestANoticeOfAnotherMerchantAboutTheRefundOfAFlag(t *testing.T) {
	t.Parallel()
	another := func(s *payment.Received) { s.Foreign = "merchant m2" }
	back := flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.wants(cancelOrder("o"), "o cancelled")
	m.says(notice("n1", amountOf("10", "CNY")), "flagged")
	m.gets(m.resolve(0, back), "late refund")
	m.says(notice("m0", ofRefund("r1", gateway.RefundPending), another), "known")
	m.says(notice("m1", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded), another), "flagged")
	m.is("o cancelled, p1 late, r1 requested; late 1000 sus refund, unknown_refund 1000; gw -10, sus 10 held 10")
	m.verify()
	m.says(notice("m2", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.is("o cancelled, p1 late, r1 succeeded; late 1000 sus refund, unknown_refund 1000 withdrawn")
	m.verify()

	m = newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY"), another), "flagged")
	m.gets(m.resolve(0, back), "wrong_merchant refund")
	m.says(notice("m1", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded), another), "applied")
	m.verify()
}
