package flow_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// together runs commands in one batch.
func (m *till) together(commands ...flow.Command) string {
	m.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = flow.Submission{Tenant: 1, RequestID: "r", Rows: 12, Bytes: 400, Command: c}
	}
	var ends []string
	for _, r := range m.engines[0].DoAll(context.Background(), submissions) {
		ends = append(ends, describePay(r.Outcome, r.Err))
	}
	return strings.Join(ends, ", ")
}

// hears returns the command that applies a notice.
func hears(s payment.Received) flow.Command {
	return &flow.ApplyNotice{Caller: caller, NoticeParams: flow.NoticeParams{Gateway: "g", Received: s}}
}

func (m *till) hearFrom(name string, s payment.Received) string {
	return resultText(flow.CommitNotice(context.Background(), m.engines[0],
		payment.GatewayKey{Tenant: 1, Gateway: name}, s, nil, "r"))
}

func creates(number, payType string) *flow.CreatePayment {
	return &flow.CreatePayment{Caller: caller, OrderNo: "o", Gateway: "g", PayType: payType, OutTradeNo: number}
}

func numbered(number string) *flow.CreatePayment {
	c := creates(number, "")
	c.Renumber = func() (string, error) { return number + "x", nil }
	return c
}

func TestTwoCreatesInOneBatchMakeOnePayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	if got := m.together(numbered("p1"), numbered("p2")); got != "p1 created, p1 created existed" {
		t.Error(got)
	}
	m.is("o awaiting_payment, p1 created")
}

func TestACreateSeesANoticeOfItsBatch(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	if got := m.together(hears(notice("n1")), creates("p1", "")); got != "applied, p1 succeeded existed" {
		t.Error(got)
	}
}

func TestARefundSeesANoticeOfItsBatch(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	if got := m.together(hears(notice("n1")), refund("r1", "1")); got != "applied, r1 requested" {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded, r1 requested; gw -6, user:3 10 held 1")
}

func TestNoticesOfOneBatchPayOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.together(creates("p1", ""), creates("p2", "app"))
	ten := amountOf("10", "CNY")
	got := m.together(hears(notice("n1", ten)), hears(notice("n2", ten)), hears(notice("n1", ten)),
		hears(notice("n3", ten, of("p2", "t3"))), hears(notice("n4", ten, of("p1", "t4"))))
	if got != "applied, known, applied existed, flagged, flagged" {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded, p2 late; second_transaction 1000 sus, second_transaction 1000 sus; gw -30, " +
		"sus 20, user:3 10")
}

func TestANoticeSeesACreateOfItsBatch(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	if got := m.together(creates("p1", ""), hears(notice("n1"))); got != "p1 created, applied" {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded; gw -6, user:3 10")
	if n := m.text("select count(*)::text from payment_calls"); n != "0" {
		t.Errorf("%s calls are due for a paid order", n)
	}
}

func TestAnUnknownPaymentIsCreatedInItsBatch(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	if got := m.together(hears(notice("n1")), creates("p1", ""),
		hears(notice("n1"))); got != "unmatched again, p1 created, applied" {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded; gw -6, user:3 10")
}

func TestAPaymentThatTheGatewayLearnsOfInTheBatchOfTheEndIsClosed(t *testing.T) {
	t.Parallel()
	for _, withCreate := range []bool{false, true} {
		m := newTill(t)
		m.payableOrder("o")
		commands := []flow.Command{hears(notice("n1", kind(gateway.Pending))), cancelOrder("o")}
		if withCreate {
			commands = append([]flow.Command{creates("p1", "")}, commands...)
		} else {
			m.create("o", "p1")
		}
		m.together(commands...)
		if got := m.text("select call || ' ' || (next_call_at <= now()) from payment_calls"); got != "close true" {
			t.Errorf("of an order that is cancelled: %s", got)
		}
	}
}

func TestAnotherGatewayMovesNoPayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.wants(&flow.PutGateway{Caller: caller, Name: "h",
		Gateway: payment.Gateway{Clearing: "loss", Suspense: "sus", Payee: user(3)}}, "ok")
	m.payableOrder("o")
	m.create("o", "p1")
	for i, k := range []gateway.Kind{gateway.Pending, gateway.Declined, gateway.Closed} {
		if got := m.hearFrom("h", notice(fmt.Sprint("n", i), kind(k))); got != "known" {
			t.Errorf("%s: %s", k, got)
		}
	}
	m.is("o awaiting_payment, p1 created")
	if got := m.text("select gateway || ' ' || call from payment_calls"); got != "g submit" {
		t.Error(got)
	}
	if got := m.hearFrom("h", notice("n9")); got != "flagged" {
		t.Error(got)
	}
	m.is("o awaiting_payment, p1 created; wrong_merchant 600 sus; loss -6, sus 6")
	m.says(notice("n1"), "applied")
	m.is("o paid, p1 succeeded; wrong_merchant 600 sus; gw -6, loss -6, sus 6, user:3 10")
	m.gets(refund("r1", "4"), "r1 requested")
	if got := m.hearFrom("h", notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded))); got != "flagged" {
		t.Error(got)
	}
	if got := m.hearFrom("h", notice("m2", amountOf("4", "CNY"),
		ofRefund("r1", gateway.RefundFailed))); got != "applied" {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded, r1 requested; wrong_merchant 600 sus, unknown_refund 400 withdrawn; gw -6, loss -6, " +
		"sus 6, user:3 10 held 4")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r2"}), "wrong_merchant refund")
	if got := m.text("select gateway || ' ' || transaction_id from payment_refunds " +
		"where refund_no = 'r2'"); got != "h t1" {
		t.Error(got)
	}
}

func TestForeignNoticesMoveNoPayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	foreign := func(s *payment.Received) { s.Foreign = "mode test" }
	for i, k := range []gateway.Kind{gateway.Pending, gateway.Declined, gateway.Closed} {
		m.says(notice(fmt.Sprint("n", i), kind(k), foreign), "known")
	}
	m.is("o awaiting_payment, p1 created")
	m.says(notice("n9", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded), foreign), "flagged")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed), foreign), "known")
	m.is("o paid, p1 succeeded, r1 requested; unknown_refund 400; gw -10, user:3 10 held 4")
}

func TestARefundOfAnotherPaymentIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	ten := amountOf("10", "CNY")
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", ten), "applied")
	m.payableOrder("u", outside)
	m.create("u", "p2")
	m.says(notice("n2", ten, of("p2", "t2")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	m.says(notice("m1", amountOf("4", "CNY"), of("p2", "t2"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.is("o paid, u paid, p1 succeeded, p2 succeeded, r1 requested; unknown_refund 400; gw -20, user:3 20 held 4")
	m.says(notice("m3", amountOf("4", "CNY"), of("p3", "t3"), ofRefund("r1", gateway.Refunded)), "flagged")
}

func TestMoneyComesFromTheAccountsOfTheGatewayAsItIs(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	ten := amountOf("10", "CNY")
	zero := dec("0")
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "gw2", Asset: "CNY", Kind: "asset"}, {Code: "sus2", Asset: "CNY", Kind: "liability", Min: &zero}}}),
		"ok")
	for _, n := range []string{"1", "2", "3", "4"} {
		m.payableOrder("o"+n, outside)
		m.create("o"+n, "p"+n)
	}
	m.says(notice("n1", ten), "applied")     // the server knows the gateway
	put := func(clearing, suspense string) { // as another server does
		t.Helper()
		if _, err := m.super.Exec(context.Background(), "update payment_gateways set clearing = $1, suspense = $2",
			clearing, suspense); err != nil {
			t.Fatal(err)
		}
	}
	put("gw2", "sus2")
	m.says(notice("n2", ten, of("p2", "t2")), "applied")
	if got := m.text("select string_agg(code || ' ' || (balance/100)::bigint, ', ' order by code) " +
		"from ledger_accounts where balance <> 0 and code ~ '^(gw|sus)'"); got != "gw -10, gw2 -10" {
		t.Error(got)
	}
	put("gw", "sus")
	m.says(notice("n3", amountOf("9", "CNY"), of("p3", "t3")), "flagged")
	put("gw2", "sus2")
	m.says(notice("n4", amountOf("9", "CNY"), of("p4", "t4")), "flagged")
	if got := m.text("select string_agg(code || ' ' || (balance/100)::bigint, ', ' order by code) " +
		"from ledger_accounts where balance <> 0 and code ~ '^(gw|sus)'"); got != "gw -19, gw2 -19, sus 9, sus2 9" {
		t.Error(got)
	}
	if got := m.text("select string_agg(transaction_id || ' ' || account, ', ' order by transaction_id) " +
		"from payment_transactions"); got != "t1 user:3, t2 user:3, t3 sus, t4 sus2" {
		t.Error(got)
	}
}

func TestAcceptedTransactionIsThatOfThePayment(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.says(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.Accept}), "second_transaction accept")
	m.gets(refund("r1", ""), "r1 requested")
	m.is("o refunding, p1 succeeded, r1 requested; wrong_amount 900 sus, second_transaction 1000 sus accept; gw -19, " +
		"sus 9, user:3 10 held 10")
}

// Flagged money is given back only by resolving its flag, so that the flag and the money cannot disagree.
func TestFlaggedMoneyIsGivenBackByItsFlag(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.gets(refund("r1", ""), "PAYMENT_NOT_PAID")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.gets(refund("r1", ""), "PAYMENT_NOT_PAID")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "wrong_amount accept")
	m.gets(refund("r1", ""), "r1 requested")
}

// A refund of flagged money may name the foreign merchant that its payment named.
func TestARefundOfForeignMoneySucceeds(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	foreign := func(s *payment.Received) { s.Foreign = "merchant m2" }
	m.says(notice("n1", amountOf("10", "CNY"), foreign), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}), "wrong_merchant refund")
	m.says(notice("m1", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded), foreign), "applied")
	m.is("o awaiting_payment, p1 suspended, r1 succeeded; wrong_merchant 1000 sus refund")
	m.verify()
}

// Money in another asset has the decimals of that asset, and can be given back to the cent.
func TestMoneyInAnotherAssetHasItsDecimals(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "gw", Asset: "USD", Kind: "asset"}, {Code: "sus", Asset: "USD", Kind: "liability"},
		{Code: user(3), Asset: "USD", Kind: "liability"}}}), "ok")
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "USD")), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "wrong_asset accept")
	m.gets(refund("r1", "5.55"), "r1 requested")
	m.says(notice("m1", amountOf("5.55", "USD"), ofRefund("r1", gateway.Refunded)), "applied")
	v, err := payment.NewReader(m.app).Payment(context.Background(), payment.Key{Tenant: 1, OutTradeNo: "p1"})
	if err != nil || v.Refunded != amount.FromInt64(555) {
		t.Errorf("refunded %v, %v", v.Refunded, err)
	}
	m.verify()
}

func TestUnknownMoneyThatSuspenseRefusesIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.gateway("missing")
	m.says(notice("n1"), "unmatched again")
	m.clock.Set(t, 25*time.Hour)
	due, err := payment.DueFlags(context.Background(), m.app, payment.DueFlag{}, 10)
	if err != nil || len(due) != 1 {
		t.Fatal(due, err)
	}
	if got := m.pay(0, flow.FlagUnknowns(due, "r")[0].Command); got != "true" {
		t.Error(got)
	}
	m.is("p1 late; unknown_number 600")
	m.says(notice("n1"), "known") // its money is flagged
}

func TestUnknownMoneyIsGivenBack(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1"), "unmatched again")
	m.clock.Set(t, 25*time.Hour)
	due, _ := payment.DueFlags(context.Background(), m.app, payment.DueFlag{}, 10)
	m.gets(flow.FlagUnknowns(due, "r")[0].Command, "true")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r2"}), "unknown_number refund")
	m.says(notice("m1", ofRefund("r2", gateway.Refunded)), "applied")
	m.is("p1 late, r2 succeeded; unknown_number 600 sus refund")
}

func TestMoneyOfOddNoticesIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	nothing := amountOf("0", "CNY")
	m.says(notice("a", of("p1", "t é/\n")), "applied")
	m.says(notice("b", of("p1", "t3"), nothing, func(s *payment.Received) { s.Foreign = "currency UGX" }), "flagged")
	m.says(notice("c", of("p1", "t4"), amountOf("0.000000000000000001", "CNY")), "flagged")
	m.says(notice("d", of("p1", "t5"), amountOf("99999999999999999999999999999999999999", "CNY")), "flagged")
	m.payableOrder("u")
	m.create("u", "p2")
	m.says(notice(strings.Repeat("x", 127)+"é", of("p2", ""), kind(gateway.Closed)), "applied") // cut to its cause
	m.is("o paid, u awaiting_payment, p1 succeeded, p2 closed; wrong_merchant 0, second_transaction 1, " +
		"second_transaction 99999999999999999999999999999999999999; gw -6, user:3 10")
}

func TestMoneyWhoseNamesAreTakenIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	transfer := func(no string) {
		m.wants(flow.Ledger(&ledger.TransferCommand{Caller: caller,
			TransferParams: ledger.TransferParams{BizNo: no, Type: "x",
				Postings: []ledger.Posting{{From: "gw", To: "loss", Asset: "CNY", Amount: dec("1")}}}}), "ok")
	}
	transfer("pay/g/t1")
	m.payableOrder("o")
	m.create("o", "p1")
	m.says(notice("n1"), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "order_refused accept")
	transfer("refund/r2/paid")
	m.gets(refund("r2", "1"), "r2 requested")
	m.says(notice("m1", amountOf("1", "CNY"), ofRefund("r2", gateway.Refunded)), "flagged")
	m.gets(refund("r3", "1"), "r3 requested")
	m.wants(flow.Ledger(ledger.ReleaseOf(caller, 0, "refund/r3")), "ok")
	m.says(notice("m2", amountOf("1", "CNY"), ofRefund("r3", gateway.Refunded)), "flagged")
	m.says(notice("m2", amountOf("1", "CNY"), ofRefund("r3", gateway.Refunded)), "flagged existed")
	m.gets(refund("r4", "1"), "r4 requested")
	m.wants(flow.Ledger(ledger.ReleaseOf(caller, 0, "refund/r4")), "ok")
	m.says(notice("m3", amountOf("1", "CNY"), ofRefund("r4", gateway.RefundFailed)), "applied")
	m.is("o paid, p1 succeeded, r2 succeeded, r3 succeeded, r4 failed; order_refused 600 accept, " +
		"unknown_refund 100, unknown_refund 100; gw -8, loss 2, user:3 10")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: user(3)}), "unknown_refund write_off")
	m.is("o paid, p1 succeeded, r2 succeeded, r3 succeeded, r4 failed; order_refused 600 accept, " +
		"unknown_refund 100 write_off, unknown_refund 100; gw -7, loss 2, user:3 9")
}

func TestAClosedPaymentHasNoCallAfterTheSameAnswer(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	m.says(notice("close", kind(gateway.Closed)), "applied")
	m.says(notice("n3", kind(gateway.Pending)), "known")
	m.says(notice("close", kind(gateway.Closed)), "applied existed")
	if n := m.text("select count(*)::text from payment_calls"); n != "0" {
		t.Errorf("%s calls", n)
	}
}

func TestAFlagIsResolvedOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	back, off := flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"},
		flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}
	if got := m.together(m.resolve(0, back), m.resolve(0, off)); got != "wrong_amount refund, FLAG_RESOLVED" {
		t.Error(got)
	}
	m.says(notice("m1", amountOf("4", "CNY"), of("px", "tx"), ofRefund("", gateway.Refunded)), "flagged")
	ends := m.race(8, func(i int) flow.Command {
		return m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: []string{"loss", "world"}[i%2]})
	})
	slices.Sort(ends)
	if got := slices.Compact(ends); len(got) != 3 || got[0] != "FLAG_RESOLVED" {
		t.Error(got)
	}
	if n := m.text("select count(*)::text from ledger_transfers where biz_no ~ '^flag/'"); n != "1" {
		t.Errorf("%s transfers", n)
	}
}

func TestOneUnknownRefundIsFlaggedOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	by := func(s *payment.Received) { s.GatewayRefundID = "re_1" }
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("", gateway.Refunded), by), "flagged")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("", gateway.Refunded), by), "known")
	m.is("o paid, p1 succeeded; unknown_refund 400; gw -10, user:3 10")
}

func TestANoticeSeesAPutGatewayOfItsBatch(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	zero := dec("0")
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "gw2", Asset: "CNY", Kind: "asset"}, {Code: "sus2", Asset: "CNY", Kind: "liability", Min: &zero}}}),
		"ok")
	got := m.together(&flow.PutGateway{Caller: caller, Name: "g",
		Gateway: payment.Gateway{Clearing: "gw2", Suspense: "sus2"}},
		hears(notice("n1", amountOf("10", "CNY"))))
	if !strings.HasSuffix(got, ", applied") {
		t.Error(got)
	}
	m.is("o paid, p1 succeeded; user:3 10")
	if got := m.text("select (balance / 100)::bigint::text from ledger_accounts where code = 'gw2'"); got != "-10" {
		t.Errorf("gw2 has %s", got)
	}
}

// A flag is open again when the refund of its money has failed, and the next one needs another number.
func TestAFlagWhoseRefundFailsIsOpenAgain(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	back := flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}
	m.gets(m.resolve(0, back), "wrong_amount refund")
	m.is("o awaiting_payment, p1 suspended, r1 requested; wrong_amount 900 sus refund; gw -9, sus 9 held 9")
	m.says(notice("m1", amountOf("9", "CNY"), ofRefund("r1", gateway.RefundFailed)), "applied")
	m.is("o awaiting_payment, p1 suspended, r1 failed; wrong_amount 900 sus; gw -9, sus 9")
	m.gets(m.resolve(0, back), "REFUND_EXISTS_DIFFERENT")
	back.RefundNo = "r2"
	m.gets(m.resolve(0, back), "wrong_amount refund")
	m.says(notice("m2", amountOf("9", "CNY"), ofRefund("r2", gateway.Refunded)), "applied")
	m.is("o awaiting_payment, p1 suspended, r1 failed, r2 succeeded; wrong_amount 900 sus refund")
	m.verify()
}

// A payment may have many transactions: each can be given back.
func TestEveryTransactionCanBeGivenBack(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	const times = 23
	for n := range times {
		want := "flagged"
		if n == 0 {
			want = "applied"
		}
		m.says(notice(fmt.Sprint("n", n), amountOf("10", "CNY"), of("p1", fmt.Sprint("t", n))), want)
	}
	m.gets(m.resolve(times-2, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}),
		"second_transaction refund")
	unnamed := notice("m1", amountOf("10", "CNY"), of("p1", ""), ofRefund("r1", gateway.Refunded))
	m.says(unnamed, "applied")
	if got := m.text("select refunded::text from payment_transactions where transaction_id = 't22'"); got != "1000" {
		t.Errorf("refunded %s", got)
	}
	m.verify()
}

// An order is refunded when its whole amount has been given back: not while one refund is undecided, nor if one has
// failed.
func TestAnOrderIsRefundedWhenEveryPartIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part gateway.Kind
		want string
	}{{gateway.Refunded, "o refunded, p1 succeeded, part succeeded, rest succeeded"},
		{gateway.RefundFailed, "o paid, p1 succeeded, part failed, rest succeeded; gw -4, user:3 4"}} {
		m := newTill(t)
		m.payableOrder("o", outside)
		m.create("o", "p1")
		m.says(notice("n1", amountOf("10", "CNY")), "applied")
		m.gets(refund("part", "4"), "part requested")
		m.gets(refund("rest", ""), "rest requested")
		m.says(notice("m1", amountOf("6", "CNY"), ofRefund("rest", gateway.Refunded)), "applied")
		m.is("o refunding, p1 succeeded, part requested, rest succeeded; gw -4, user:3 4 held 4")
		m.says(notice("m2", amountOf("4", "CNY"), ofRefund("part", c.part)), "applied")
		m.is(c.want)
		m.verify()
	}
}

// A refund does not move an order that a caller has moved to refunding.
func TestARefundLeavesAnOrderThatACallerMoved(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.wants(moveOrder("o", "refunding", "mine"), "o refunding")
	m.gets(refund("r1", ""), "r1 requested")
	m.says(notice("m1", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.is("o refunding, p1 succeeded, r1 succeeded")
}

// A refund that fails after it has succeeded is flagged once, and its money can be written off to an account.
func TestARefundThatIsReturnedIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.says(notice("m2", ofRefund("r1", gateway.RefundFailed)), "flagged")
	m.says(notice("m3", ofRefund("r1", gateway.RefundFailed)), "known")
	m.is("o paid, p1 succeeded, r1 succeeded; refund_returned 400; gw -6, user:3 6")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r2"}), "FIELD_INVALID")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "refund_returned write_off")
	m.is("o paid, p1 succeeded, r1 succeeded; refund_returned 400 write_off; gw -10, loss 4, user:3 6")
	m.verify()
}

// The notice of a console refund that does not say how the refund ended needs a query.
func TestAConsoleRefundThatNeedsAQueryIsQueried(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	for no, want := range map[string]bool{"hand": true, "r1": false, "": false} {
		for range 2 {
			out, err := flow.CommitNotice(context.Background(), m.engines[0],
				payment.GatewayKey{Tenant: 1, Gateway: "g"},
				notice("m"+no, ofRefund(no, gateway.RefundPending)), nil, "r")
			if err != nil || out.NeedsQuery != want || !out.Done {
				t.Errorf("refund %q: %+v, %v", no, out, err)
			}
		}
	}
}

// Each flag needs a refund of its own: the number of an existing refund does not resolve it.
func TestARefundResolvesOneFlag(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	for n, want := range []string{"applied", "flagged", "flagged"} {
		m.says(notice(fmt.Sprint("n", n), amountOf("10", "CNY"), of("p1", fmt.Sprint("t", n))), want)
	}
	back := flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}
	m.gets(m.resolve(0, back), "second_transaction refund")
	m.gets(m.resolve(1, back), "REFUND_EXISTS_DIFFERENT")
	m.gets(refund("r2", "1"), "r2 requested")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r2"}), "REFUND_EXISTS_DIFFERENT")
	m.is("o paid, p1 succeeded, r1 requested, r2 requested; second_transaction 1000 sus refund, " +
		"second_transaction 1000 sus; gw -30, sus 20 held 10, user:3 10 held 1")
}

// A refund that succeeds after it has failed has no hold any more: it is flagged once.
func TestARefundThatSucceedsAfterItsFailureIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	m.says(notice("m1", ofRefund("r1", gateway.RefundFailed)), "applied")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "flagged")
	m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "known")
	m.is("o paid, p1 succeeded, r1 failed; unknown_refund 400; gw -10, user:3 10")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: user(3)}), "unknown_refund write_off")
	m.is("o paid, p1 succeeded, r1 failed; unknown_refund 400 write_off; gw -6, user:3 6")
	m.verify()
}

// Of many transactions, the one that a person has accepted can be given back.
func TestAnAcceptedTransactionOfManyCanBeGivenBack(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	const times = 23
	for n := range times {
		m.says(notice(fmt.Sprint("n", n), amountOf("9", "CNY"), of("p1", fmt.Sprint("t", n))), "flagged")
	}
	m.gets(m.resolve(times-1, flow.ResolveFlag{Resolution: payment.Accept}), "second_transaction accept")
	m.gets(refund("r1", "9"), "r1 requested")
	if got := m.text("select transaction_id from payment_refunds"); got != "t22" {
		t.Errorf("given back of %s", got)
	}
}

// The payment that paid an order is found even if another payment was created after it.
func TestAnAcceptedEarlierAttemptHasPaidTheOrder(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.gets(creates("p2", ""), "p2 created")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "wrong_amount accept")
	m.gets(numbered("p3"), "p1 succeeded existed")
	m.says(notice("n2", amountOf("10", "CNY"), of("p2", "t2")), "flagged")
	m.is("o paid, p1 succeeded, p2 late; wrong_amount 900 sus accept, second_transaction 1000 sus; gw -19, " +
		"sus 10, user:3 9")
}

// A gateway without refund ids of its own reports a console refund twice: it is flagged once.
func TestAnUnknownRefundWithoutANumberIsFlaggedOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("hand", gateway.Refunded)), "flagged")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("hand", gateway.Refunded)), "known")
	m.is("o paid, p1 succeeded; unknown_refund 400; gw -10, user:3 10")
}

// Money may arrive for a payment that its gateway has closed: it pays the order if the order still awaits payment.
func TestTheMoneyOfAClosedPaymentPaysAnOrderThatWaits(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("c1", kind(gateway.Closed)), "applied")
	m.gets(creates("p2", ""), "p2 created")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.is("o paid, p1 succeeded, p2 created; gw -10, user:3 10")
	if got := m.text("select number || ' ' || call from payment_calls"); got != "p2 close" {
		t.Errorf("the other payment: %s", got)
	}
	m.verify()
}

// An order that is being refunded in full cannot be paid again.
func TestARefundingOrderCannotBePaid(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.gets(creates("p2", "app"), "p2 created")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", ""), "r1 requested")
	m.gets(creates("p3", ""), "p1 succeeded existed")
	m.says(notice("n2", amountOf("10", "CNY"), of("p2", "t2")), "flagged")
	m.is("o refunding, p1 succeeded, p2 late, r1 requested; second_transaction 1000 sus; gw -20, sus 10, " +
		"user:3 10 held 10")
	m.verify()
}

// A refund of flagged money does not move the order.
func TestTheRefundOfFlaggedMoneyMovesNoOrder(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.says(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}), "second_transaction refund")
	m.gets(refund("r1", "10"), "REFUND_EXISTS_DIFFERENT")
	m.gets(refund("r2", ""), "r2 requested")
	m.is("o refunding, p1 succeeded, r1 requested, r2 requested; second_transaction 1000 sus refund; gw -20, " +
		"sus 10 held 10, user:3 10 held 10")
	m.verify()
}

// A wrong amount for a closed payment can be accepted while its order awaits payment.
func TestAWrongAmountOfAClosedPaymentCanBeAccepted(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("c1", kind(gateway.Closed)), "applied")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.is("o awaiting_payment, p1 suspended; wrong_amount 900 sus; gw -9, sus 9")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.Accept}), "wrong_amount accept")
	m.is("o paid, p1 succeeded; wrong_amount 900 sus accept; gw -9, user:3 9")
	m.verify()
}

// A refund fails even if a caller has captured its hold.
func TestARefundWhoseHoldIsGoneFails(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	taken := capture("console", "refund/r1", "4")
	taken.To = "loss"
	m.wants(flow.Ledger(taken), "ok")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed)), "applied")
	m.is("o paid, p1 succeeded, r1 failed; gw -10, loss 4, user:3 6")
	m.verify()
}

// A flag can be resolved even if the ledger has no money to move for it.
func TestFlagsWithoutMoneyToMoveAreResolved(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	off := flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}
	m.says(notice("n2", amountOf("0", "CNY"), of("p1", "t2")), "flagged")
	m.says(notice("m1", amountOf("4", "XYZ"), ofRefund("a", gateway.Refunded)), "flagged")
	m.says(notice("m2", amountOf("0", "CNY"), ofRefund("b", gateway.Refunded)), "flagged")
	m.says(notice("m3", amountOf("0.0000000000001", "CNY"), ofRefund("c", gateway.Refunded)), "flagged")
	m.gets(m.resolve(0, off), "second_transaction write_off")
	for n := range 3 {
		m.gets(m.resolve(n+1, off), "unknown_refund write_off")
	}
	m.says(notice("n3", amountOf("3", "XYZ"), of("p1", "t3")), "flagged")
	m.gets(m.resolve(4, off), "FIELD_INVALID") // a refund can give it back
	m.says(notice("n4", amountOf("0.0000000000001", "CNY"), of("p1", "t4")), "flagged")
	m.gets(m.resolve(5, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r4"}), "second_transaction refund")
	m.verify()
}
