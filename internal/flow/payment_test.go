package flow_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/token"
)

// till is a market with the gateway "g", which pays user:3, or the suspense account sus, from its clearing account gw.
type till struct{ *market }

func newTill(t testing.TB) *till {
	t.Helper()
	m := &till{newMarket(t)}
	zero := dec("0")
	m.wants(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
		Assets: []ledger.NewAsset{{Code: "USD", Scale: 2}}}), "ok")
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "gw", Asset: "CNY", Kind: "asset"}, {Code: "sus", Asset: "CNY", Kind: "liability", Min: &zero},
		{Code: "loss", Asset: "CNY", Kind: "expense"}}}), "ok")
	m.gateway("sus")
	return m
}

func (m *till) gateway(suspense string) {
	m.Helper()
	m.wants(&flow.PutGateway{Caller: caller, Name: "g",
		Gateway: payment.Gateway{Clearing: "gw", Suspense: suspense, Payee: user(3)}}, "ok")
}

// payableOrder creates an order of 10 for 3 units of tea. user:0 pays 4, and the gateway 6.
func (m *till) payableOrder(no string, change ...func(*flow.CreateOrder)) {
	m.Helper()
	c := newOrder(no, append([]func(*flow.CreateOrder){func(c *flow.CreateOrder) { c.Payee = user(3) }}, change...)...)
	m.wants(c, no+" awaiting_payment")
}

// outside makes the gateway pay the whole amount.
func outside(c *flow.CreateOrder) { c.Balance = nil }

func (m *till) create(orderNo, number string) string {
	m.Helper()
	return m.pay(0, &flow.CreatePayment{Caller: caller, OrderNo: orderNo, Gateway: "g", OutTradeNo: number})
}

// pay runs a command on an engine, and describes its outcome.
func (m *till) pay(engine int, c flow.Command) string {
	return describePay(m.engines[engine].Do(context.Background(),
		flow.Submission{Tenant: 1, RequestID: "r", Rows: 8, Bytes: 400, Command: c}))
}

func describePay(out commit.Outcome, err error) string {
	if f := fault.Of(err); f != nil {
		return f.Reason.Name
	} else if err != nil {
		return err.Error()
	}
	existed := ""
	if out.Existed {
		existed = " existed"
	}
	switch a := out.Answer.(type) {
	case payment.View:
		return fmt.Sprint(a.OutTradeNo, " ", a.State.State, existed)
	case payment.RefundView:
		return fmt.Sprint(a.RefundNo, " ", a.State.State, existed)
	case payment.FlagView:
		return fmt.Sprint(a.Kind, " ", a.Resolution, existed)
	case flow.NoticeResult:
		return resultText(a, nil)
	}
	return fmt.Sprint(out.Answer, existed)
}

// notice returns a notice about payment p1: by default that it is paid, with 6 CNY.
func notice(id string, change ...func(*payment.Received)) payment.Received {
	s := payment.Received{Notice: gateway.Notice{ID: id, Kind: gateway.Paid, OutTradeNo: "p1", TransactionID: "t1",
		Amount: dec("6"), Currency: "CNY"}, Asset: "CNY", Callback: true, Body: []byte("{}")}
	for _, f := range change {
		f(&s)
	}
	return s
}

func kind(k gateway.Kind) func(*payment.Received) { return func(s *payment.Received) { s.Kind = k } }

func of(number, transaction string) func(*payment.Received) {
	return func(s *payment.Received) { s.OutTradeNo, s.TransactionID = number, transaction }
}

func amountOf(text, currency string) func(*payment.Received) {
	return func(s *payment.Received) { s.Amount, s.Currency, s.Asset = dec(text), currency, currency }
}

func (m *till) says(s payment.Received, want string) {
	m.Helper()
	if got := m.hear(0, s); got != want {
		m.Errorf("notice %s: got %s, want %s", s.ID, got, want)
	}
}

func (m *till) hear(engine int, s payment.Received) string {
	return resultText(flow.CommitNotice(context.Background(), m.engines[engine],
		payment.GatewayKey{Tenant: 1, Gateway: "g"}, s, nil, "r"))
}

func resultText(out flow.NoticeResult, err error) string {
	if f := fault.Of(err); f != nil {
		return f.Reason.Name
	} else if err != nil {
		return err.Error()
	}
	text := string(out.Effect)
	if out.Existed {
		text += " existed"
	}
	if !out.Done {
		text += " again"
	}
	return text
}

// is compares the order o, the payments, the flags, and the balances.
func (m *till) is(want string) {
	m.Helper()
	got := m.text(`select concat_ws('; ',
		(select string_agg(key || ' ' || state, ', ' order by machine, key) from machine_instances
		where machine in ('order', 'payment', 'refund')),
		(select string_agg(concat_ws(' ', kind, amount, account, resolution), ', ' order by flag_id)
		from payment_flags),
		(select string_agg(code || ' ' || (balance / 100)::bigint || case when held > 0 then
		' held ' || (held / 100)::bigint else '' end, ', ' order by code)
			from ledger_accounts where code in ('gw', 'sus', 'loss', 'user:3') and asset = 'CNY' and (balance <> 0
			or held <> 0)))`)
	if got != want {
		m.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestACallbackPaysItsOrderOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	for _, want := range []string{"p1 created", "p1 created existed"} {
		if got := m.create("o", "p1"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	m.says(notice("n1"), "applied")
	m.says(notice("n1"), "applied existed")
	m.says(notice("n2"), "known") // another id for the same transaction
	m.is("o paid, p1 succeeded; gw -6, user:3 10")
	m.wantRows("o", "order, paid 2 p1, 3 tea sold, hold captured, transfer")
	if got := m.create("o", "p1"); got != "p1 succeeded existed" {
		t.Error(got)
	}
	if n := m.text("select count(*)::text from payment_calls"); n != "0" {
		t.Errorf("%s calls are due for a paid order", n)
	}
}

func TestWhatDoesNotFitIsFlagged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said payment.Received
		end  string
	}{
		"amount": {notice("n", amountOf("5.99", "CNY")), "o awaiting_payment, p1 suspended; wrong_amount 599 sus; " +
			"gw -6, sus 6"},
		"decimals": {notice("n", amountOf("6.001", "CNY")), "o awaiting_payment, p1 suspended; wrong_amount 6001"},
		"asset":    {notice("n", amountOf("6", "USD")), "o awaiting_payment, p1 suspended; wrong_asset 600"},
		"currency": {notice("n", func(s *payment.Received) { s.Currency, s.Asset = "XAU", "" }),
			"o awaiting_payment, p1 suspended; wrong_asset 6"},
		"merchant": {notice("n", func(s *payment.Received) { s.Foreign = "seller_id 1" }),
			"o awaiting_payment, p1 suspended; wrong_merchant 600 sus; gw -6, sus 6"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			m.payableOrder("o")
			m.create("o", "p1")
			m.says(c.said, "flagged")
			m.says(c.said, "flagged existed")
			m.is(c.end)
			if got := m.create("o", "p2"); got != "p2 created" { // the buyer can still pay
				t.Error(got)
			}
			m.says(notice("m", of("p2", "t2")), "applied")
		})
	}
}

func TestMoneyThatComesLateIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	m.wants(cancelOrder("o"), "o cancelled")
	if got := m.text("select call || ' ' || (next_call_at <= now()) from payment_calls"); got != "close true" {
		t.Errorf("the payment of a cancelled order: %s", got)
	}
	m.says(notice("n0", kind(gateway.Closed)), "applied")
	m.says(notice("n1"), "flagged")
	m.is("o cancelled, p1 late; late 600 sus; gw -6, sus 6")
	if got := m.create("o", "p2"); got != "ORDER_NOT_PAYABLE" {
		t.Error(got)
	}
}

func TestMoneyThatComesTwiceIsFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	if got := m.pay(0, &flow.CreatePayment{Caller: caller, OrderNo: "o", Gateway: "g", PayType: "app",
		OutTradeNo: "p2"}); got != "p2 created" {
		t.Fatal(got)
	}
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.says(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged") // a second transaction of the same payment
	m.says(notice("n3", amountOf("10", "CNY"), of("p2", "t3")), "flagged") // another payment of the same order
	m.is("o paid, p1 succeeded, p2 late; second_transaction 1000 sus, second_transaction 1000 sus; gw -30, " +
		"sus 20, user:3 10")
}

func TestADeclineLeavesTheOrderPayable(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	m.says(notice("n1", kind(gateway.Pending)), "applied")
	m.says(notice("n2", kind(gateway.Declined), func(s *payment.Received) { s.Code = "card_declined" }), "applied")
	m.says(notice("n3", kind(gateway.Declined)), "known")
	// The answer to a query after another decline is like the first.
	answer := func(s *payment.Received) { s.Callback = false }
	m.says(notice("q4", kind(gateway.Pending), answer), "applied")
	m.says(notice("n2", kind(gateway.Declined)), "applied existed") // a repeated callback changes nothing
	if got := m.create("o", "p1"); got != "p1 submitted existed" {
		t.Error(got)
	}
	m.says(notice("n2", kind(gateway.Declined), answer), "applied existed")
	if got := m.create("o", "p1"); got != "p1 declined existed" {
		t.Error(got)
	}
	m.says(notice("n4", kind(gateway.Pending)), "applied")
	m.says(notice("n5"), "applied")
	m.says(notice("n6", kind(gateway.Pending)), "known") // out of order
	m.says(notice("n7", kind(gateway.Closed)), "known")
	m.is("o paid, p1 succeeded; gw -6, user:3 10")
	if got := m.text("select coalesce(failure_code, 'none') from payment_payments"); got != "none" {
		t.Errorf("a paid payment has the failure %s", got)
	}
}

func TestAnUnknownPaymentIsAppliedWhenItIsCreated(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1"), "unmatched again")
	m.says(notice("n1"), "unmatched existed again")
	m.payableOrder("o")
	if got := m.create("o", "p1"); got != "p1 created" {
		t.Fatal(got)
	}
	if got := m.text("select call || ' ' || (next_call_at <= now()) from payment_calls"); got != "query true" {
		t.Errorf("of a payment that the gateway knows, the next call is %s", got)
	}
	m.says(notice("n1"), "applied")
	m.is("o paid, p1 succeeded; gw -6, user:3 10")
}

func TestAnUnknownPaymentIsFlaggedAfterADay(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.says(notice("n1"), "unmatched again")
	m.says(notice("n2", of("p1", "t2")), "unmatched again")
	m.clock.Set(t, 25*time.Hour)
	due, err := payment.DueFlags(context.Background(), m.app, payment.DueFlag{}, 10)
	if err != nil || len(due) != 1 {
		t.Fatal(due, err)
	}
	for _, want := range []string{"true", "false"} {
		if got := m.pay(0, flow.FlagUnknowns(due, "r")[0].Command); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	m.says(notice("n1"), "known")
	m.says(notice("n3", of("p1", "t3")), "flagged")
	m.is("p1 late; unknown_number 600 sus, unknown_number 600 sus, unknown_number 600 sus; gw -18, sus 18")
	m.payableOrder("o")
	if got := m.create("o", "p1"); got != "OUT_TRADE_NO_TAKEN" {
		t.Error(got)
	}
}

func TestRefusedMoneyGoesToSuspense(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	most := dec("5")
	m.wants(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "small", Asset: "CNY", Kind: "liability", Max: &most}}}), "ok")
	m.payableOrder("o", outside, func(c *flow.CreateOrder) { c.Payee = "small" })
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "flagged")
	m.is("o awaiting_payment, p1 suspended; order_refused 1000 sus; gw -10, sus 10")
}

func TestWithoutSuspenseMoneyIsFlaggedOnly(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.gateway("")
	m.payableOrder("o")
	m.create("o", "p1")
	m.says(notice("n1", amountOf("5", "CNY")), "flagged")
	m.gateway("missing")
	m.says(notice("n2", amountOf("5", "CNY"), of("p1", "t2")), "flagged")
	m.is("o awaiting_payment, p1 suspended; wrong_amount 500, second_transaction 500")
}

func refund(no, amount string) *flow.RefundPayment {
	c := &flow.RefundPayment{Caller: caller, RefundKey: payment.RefundKey{RefundNo: no}, OutTradeNo: "p1"}
	if amount != "" {
		n := dec(amount)
		c.Amount = &n
	}
	return c
}

func ofRefund(no string, k gateway.Kind) func(*payment.Received) {
	return func(s *payment.Received) { s.Kind, s.RefundNo = k, no }
}

func (m *till) gets(c flow.Command, want string) {
	m.Helper()
	if got := m.pay(0, c); got != want {
		m.Errorf("%T: got %s, want %s", c, got, want)
	}
}

func TestRefundsGiveBackWhatWasPaidAtMost(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.gets(refund("r0", ""), "PAYMENT_NOT_PAID")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.gets(refund("r1", "4"), "r1 requested")
	m.gets(refund("r1", "4"), "r1 requested existed")
	m.gets(refund("r1", "5"), "REFUND_EXISTS_DIFFERENT")
	m.gets(refund("r2", "6.01"), "REFUND_EXCEEDS_PAID")
	m.is("o paid, p1 succeeded, r1 requested; gw -10, user:3 10 held 4")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundPending)), "applied")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.says(notice("m3", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "known")
	m.is("o paid, p1 succeeded, r1 succeeded; gw -6, user:3 6")
	m.gets(refund("r3", ""), "r3 requested") // the rest: the order is refunding
	m.is("o refunding, p1 succeeded, r1 succeeded, r3 requested; gw -6, user:3 6 held 6")
	m.says(notice("m4", amountOf("6", "CNY"), ofRefund("r3", gateway.RefundFailed)), "applied")
	m.is("o paid, p1 succeeded, r1 succeeded, r3 failed; gw -6, user:3 6")
	m.gets(refund("r4", ""), "r4 requested")
	m.says(notice("m5", amountOf("6", "CNY"), ofRefund("r4", gateway.Refunded)), "applied")
	m.is("o refunded, p1 succeeded, r1 succeeded, r3 failed, r4 succeeded")
}

func TestRefundsWithoutARequestAreFlagged(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("", gateway.Refunded)), "flagged")
	m.gets(refund("r1", "4"), "r1 requested")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.is("o paid, p1 succeeded, r1 succeeded; unknown_refund 400; gw -6, user:3 6")
}

// resolve resolves the nth flag.
func (m *till) resolve(n int, c flow.ResolveFlag) flow.Command {
	m.Helper()
	c.Caller = caller
	if err := m.super.QueryRow(context.Background(), "select flag_id from payment_flags "+
		"order by flag_id offset $1 limit 1", n).Scan(&c.ID); err != nil {
		m.Fatal(err)
	}
	return &c
}

func TestAPersonResolvesFlags(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("9", "CNY")), "flagged")
	m.says(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged")
	m.says(notice("n3", amountOf("10", "CNY"), of("p1", "t3")), "flagged")
	accept := flow.ResolveFlag{Resolution: payment.Accept, Note: "close enough"}
	m.gets(m.resolve(0, accept), "wrong_amount accept")
	m.gets(m.resolve(0, accept), "wrong_amount accept existed")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "FLAG_RESOLVED")
	m.gets(m.resolve(1, accept), "ORDER_NOT_PAYABLE")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r2"}), "second_transaction refund")
	m.gets(m.resolve(2, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "sus"}), "FIELD_INVALID")
	m.gets(m.resolve(2, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "nowhere"}), "ACCOUNT_NOT_FOUND")
	m.gets(m.resolve(2, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "second_transaction write_off")
	m.says(notice("m1", amountOf("10", "CNY"), of("p1", "t2"), ofRefund("r2", gateway.Refunded)), "applied")
	m.is("o paid, p1 succeeded, r2 succeeded; wrong_amount 900 sus accept, second_transaction 1000 sus refund, " +
		"second_transaction 1000 sus write_off; gw -19, loss 10, user:3 9")
}

// Callbacks, their repeats, and the answer to a query arrive at the same time at two servers.
func TestManyNoticesAtOncePayOnce(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	const orders, notices = 8, 12
	for i := range orders {
		m.payableOrder(fmt.Sprint("o", i), outside)
		m.create(fmt.Sprint("o", i), fmt.Sprint("q", i))
	}
	var wait sync.WaitGroup
	var mu sync.Mutex
	ends := map[string]int{}
	for i := range orders {
		for n := range notices {
			wait.Go(func() {
				s := notice(fmt.Sprint("n", i, ".", n/3), amountOf("10", "CNY"),
					of(fmt.Sprint("q", i), fmt.Sprint("t", i)))
				end := m.hear(n%2, s)
				mu.Lock()
				defer mu.Unlock()
				ends[strings.TrimSuffix(end, " existed")]++
			})
		}
	}
	wait.Wait()
	if len(ends) != 2 || ends["applied"]+ends["known"] != orders*notices {
		t.Error(ends)
	}
	if got := m.text(`select format('%s %s %s', (select count(*) from ledger_transfers where type = 'payment'),
		(select count(*) from machine_instances where state = 'succeeded'), (select count(*)
		from payment_transactions))`); got != "8 8 8" {
		t.Errorf("transfers, payments, transactions: %s", got)
	}
}

// A payment and a cancellation race: either the order is paid, or the money is in suspense.
func TestAPaymentAndACancellationHaveOneWinner(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	const orders = 12
	var wait sync.WaitGroup
	for i := range orders {
		no, number := fmt.Sprint("o", i), fmt.Sprint("q", i)
		m.payableOrder(no, outside)
		m.create(no, number)
		wait.Go(func() { m.batch(0, cancelOrder(no)) })
		wait.Go(func() {
			m.hear(1, notice("n"+no, amountOf("10", "CNY"), of(number, "t"+no)))
		})
	}
	wait.Wait()
	if got := m.text(`select count(*)::text from order_orders o
		join machine_instances i on i.machine = 'order' and i.key = o.order_no
		join payment_payments p on p.order_no = o.order_no
		join machine_instances j on j.machine = 'payment' and j.key = p.out_trade_no
		join payment_transactions x on x.out_trade_no = p.out_trade_no
		where (i.state, j.state, x.account) in (('paid', 'succeeded', 'user:3'), ('cancelled', 'late',
		'sus'))`); got != fmt.Sprint(orders) {
		t.Errorf("%s of %d orders have one end", got, orders)
	}
}

func TestADeclineOpensTheSubmitTokenAgain(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	form := token.New()
	m.wants(flow.Token(&token.IssueCommand{Caller: caller, Tokens: []string{form}, Life: time.Minute}), "ok")
	submit := func(number string) string {
		return m.pay(0, &flow.GuardedCommand{
			Guards: []flow.Guard{&flow.SubmitToken{Spend: token.Spend{Caller: caller, Token: form,
				Operation: "payment.create_payment"},
				Made: func(flow.Result) map[string]string { return map[string]string{"resource": "payment"} }}},
			Command: &flow.CreatePayment{Caller: caller, OrderNo: "o", Gateway: "g", OutTradeNo: number,
				TokenHash: token.Hash(form)}})
	}
	if got := submit("p1"); !strings.Contains(got, "p1") {
		t.Fatal(got)
	}
	if got := submit("p1"); got != "TOKEN_SPENT" {
		t.Fatal(got)
	}
	m.clock.Set(t, 50*time.Second)
	m.says(notice("n1", kind(gateway.Declined)), "applied")
	m.clock.Set(t, 100*time.Second) // past its first life
	if got := submit("p1"); !strings.Contains(got, "p1") {
		t.Errorf("after a decline: %s", got)
	}
	if got := submit("p1"); got != "TOKEN_SPENT" {
		t.Error(got)
	}
	m.says(notice("n2", kind(gateway.Closed)), "applied")
	if got := submit("p2"); got != "TOKEN_SPENT" {
		t.Errorf("after another end: %s", got)
	}
}

// The order ends before the gateway knows its payment: the gateway has to close the payment.
func TestAPaymentThatTheGatewayLearnsOfTooLateIsClosedThere(t *testing.T) {
	t.Parallel()
	call := "select coalesce((select call || ' ' || (next_call_at <= now()) from payment_calls), 'none')"
	m := newTill(t)
	m.payableOrder("o")
	m.create("o", "p1")
	m.wants(cancelOrder("o"), "o cancelled")
	m.says(notice("n1", kind(gateway.Pending)), "applied")
	if got := m.text(call); got != "close true" {
		t.Errorf("of an order that is cancelled: %s", got)
	}
	m.says(notice("n2", kind(gateway.Closed)), "applied")
	if got := m.text(call); got != "none" {
		t.Errorf("of a closed payment: %s", got)
	}
	m.says(notice("n3", kind(gateway.Pending)), "known")
	if got := m.text(call); got != "close true" {
		t.Errorf("of a payment that is open at the gateway only: %s", got)
	}
	m.says(notice("n4", kind(gateway.Closed)), "known")
	if got := m.text(call); got != "none" {
		t.Errorf("of a payment that is closed again: %s", got)
	}
}

// Need names the order by the number of the payment, so all rows are known before the batch locks any.
func TestACallbackCommitsInOneAttempt(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	for i := range 3 { // after the first one, the server knows the gateway
		no := fmt.Sprint("o", i)
		m.payableOrder(no, outside)
		m.create(no, "q"+no)
		before := pgtest.Counter(t, m.counts[0], "ledgerd_commit_attempts_total")
		m.says(notice("n"+no, amountOf("10", "CNY"), of("q"+no, "t"+no)), "applied")
		if n := pgtest.Counter(t, m.counts[0], "ledgerd_commit_attempts_total") - before; i > 0 && n != 1 {
			t.Errorf("callback %d: %v attempts", i, n)
		}
	}
}

// storedTexts decodes stored messages: recipients, separated by spaces.
func storedTexts(c commit.Caller, stored []byte) (list []notify.SendCommand, err error) {
	for i, to := range strings.Fields(string(stored)) {
		list = append(list, notify.SendCommand{Caller: c,
			Params: notify.Params{Channel: send.Email, Recipient: to, BusinessType: "paid",
				BizNo: fmt.Sprint("paid/", i), Content: send.Content{Subject: "Paid", Text: "Thank you"},
				Priority: notify.Normal}})
	}
	return list, nil
}

func TestTheCommitThatPaysSendsTheMessages(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o")
	m.gets(&flow.CreatePayment{Caller: caller, OrderNo: "o", Gateway: "g", OutTradeNo: "p1",
		Messages: []notify.SendCommand{{Params: notify.Params{Channel: send.Email, Recipient: "ann@example.com"}}},
		Stored:   []byte("ann@example.com nobody")}, "p1 created")
	state := func() string {
		return m.text(`select format('%s %s %s', (select string_agg(biz_no, ' ') from notify_names), (select count(*)
			from payment_payments where messages is not null),
			(select max(detail) from payment_notices))`)
	}
	m.says(notice("n1", kind(gateway.Declined)), "applied")
	if got := state(); got != " 1 " {
		t.Errorf("before it is paid: %q", got)
	}
	m.says(notice("n2"), "applied")
	if got := state(); got != "paid/0 0 message 2 is not sent: FIELD_INVALID" {
		t.Errorf("paid: %q", got)
	}
	m.is("o paid, p1 succeeded; gw -6, user:3 10")
}

// fault runs a command, and returns its fault.
func (m *till) fault(c flow.Command) *fault.Fault {
	_, err := m.engines[0].Do(context.Background(),
		flow.Submission{Tenant: 1, RequestID: "r", Rows: 8, Bytes: 400, Command: c})
	return fault.Of(err)
}

// The time of a notice is not stored if it is outside the range of a Timestamp.
func TestTimesOfNoticesAreInTheRangeOfResponses(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	for i, at := range []time.Time{time.Date(0, 6, 1, 0, 0, 0, 0, time.UTC),
		time.Date(318857, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -24*3600+60))} {
		o, p := fmt.Sprint("o", i), fmt.Sprint("p", i)
		m.payableOrder(o, outside)
		m.create(o, p)
		m.says(notice(fmt.Sprint("n", i), amountOf("10", "CNY"), of(p, fmt.Sprint("t", i)),
			func(s *payment.Received) { s.At = at }), "applied")
	}
	if got := m.text("select count(*)::text from payment_notices, payment_payments where occurred_at is not null " +
		"or paid_at is not null"); got != "0" {
		t.Errorf("%s notices and payments have a time", got)
	}
}
