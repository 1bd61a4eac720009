package flow_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/payment"
)

// ownOrders gives the tenant its own version of the order machine.
func (m *till) ownOrders(from, to string, change func(*machine.Allowed)) {
	m.Helper()
	d := *machine.Shipped[machine.OrderMachine]
	d.Moves = slices.Clone(d.Moves)
	for i := range d.Moves {
		if slices.Contains(d.Moves[i].From, from) && d.Moves[i].To == to {
			change(&d.Moves[i])
		}
	}
	if got := m.pay(0, flow.Machine(machine.NewDefine(caller, machine.OrderMachine, &d))); got == "" ||
		got == "FIELD_INVALID" {
		m.Fatal(got)
	}
}

// restrictions are restrictions by a tenant's own machine on a move, which flows do not meet.
var restrictions = map[string]func(*machine.Allowed){
	"an input":          func(a *machine.Allowed) { a.Require = []string{"reason"} },
	"a stay":            func(a *machine.Allowed) { a.StayMs = 3_600_000 },
	"another principal": func(a *machine.Allowed) { a.Principals = []string{"boss"} },
}

// Refunds succeed even if the tenant's own machine does not let the order move with them.
func TestAllIsRefundedThoughTheOrderStays(t *testing.T) {
	t.Parallel()
	for name, restriction := range restrictions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTill(t)
			m.ownOrders("paid", "refunding", restriction)
			m.payableOrder("o", outside)
			m.create("o", "p1")
			m.says(notice("n1", amountOf("10", "CNY")), "applied")
			m.gets(refund("r1", "9"), "r1 requested")
			m.gets(refund("r2", ""), "r2 requested")
			m.says(notice("m1", amountOf("9", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
			m.says(notice("m2", amountOf("1", "CNY"), ofRefund("r2", gateway.Refunded)), "applied")
			m.is("o paid, p1 succeeded, r1 succeeded, r2 succeeded")
			m.verify()
		})
	}
}

// An order whose machine requires an input for the move to paid cannot be paid through a gateway, which gives no
// inputs.
func TestAnOrderThatIsPaidWithAnInputIsNotPayable(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.ownOrders("awaiting_payment", "paid", restrictions["an input"])
	m.payableOrder("o", outside)
	m.gets(&flow.CreatePayment{Caller: caller, OrderNo: "o", Gateway: "g", OutTradeNo: "p1"}, "ORDER_NOT_PAYABLE")
}

// A gateway may report a payment as paid and given back in full, and then as paid: the money does not pay the order.
func TestAPaymentThatWasGivenBackPaysNoOrder(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	said := notice("query/closed/p1/t1", kind(gateway.Closed), amountOf("10", "CNY"))
	said.Code, said.Callback = gateway.CodeRefunded, false
	m.says(said, "applied")
	m.says(notice("n1", amountOf("10", "CNY")), "flagged")
	m.is("o awaiting_payment, p1 late; late 1000 sus; gw -10, sus 10")
	m.verify()
	for foreign, want := range map[string]string{"": "late late 1000 sus",
		"merchant m2": "suspended wrong_merchant 1000 sus"} {
		m = newTill(t)
		m.payableOrder("o", outside)
		m.create("o", "p1")
		m.says(notice("n0", kind(gateway.Closed)), "applied")
		m.says(said, "known") // it was closed before
		m.says(notice("n1", amountOf("10", "CNY"), func(s *payment.Received) { s.Foreign = foreign }), "flagged")
		state, flag, _ := strings.Cut(want, " ")
		m.is("o awaiting_payment, p1 " + state + "; " + flag + "; gw -10, sus 10")
		m.verify()
	}
}

// The notice of a failure adds no alias to one of our refunds. A success under the gateway's id alone counts. A failure
// under that id alone changes nothing while the refund is undecided.
func TestFailuresNameNoRefund(t *testing.T) {
	t.Parallel()
	m := refunding(t, "4")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundFailed), refundID("re_1")), "applied")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("", gateway.Refunded), refundID("re_1")), "flagged")
	m.refuses(refund("r2", "7"), "6.00")
	m.verify()
	m = refunding(t, "4")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.RefundPending), refundID("re_1")), "applied")
	m.says(notice("m2", amountOf("4", "CNY"), ofRefund("", gateway.RefundFailed), refundID("re_1")), "known")
	m.is("o paid, p1 succeeded, r1 submitted; gw -10, user:3 10 held 4")
	m.verify()
}

// An answer of the gateway may equal an earlier one that changed nothing, or had no credential: it counts nevertheless.
func TestAnswersLikeEarlierOnesCount(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	create := func(foreign string, c gateway.Credential) {
		t.Helper()
		s := notice("create/pending/p1", kind(gateway.Pending), amountOf("10", "CNY"))
		s.Callback, s.Foreign = false, foreign
		if _, err := flow.CommitNotice(context.Background(), m.engines[0], payment.GatewayKey{Tenant: 1, Gateway: "g"},
			s, c, "r"); err != nil {
			t.Fatal(err)
		}
	}
	create("merchant m2", gateway.Credential{"url": "theirs"})
	m.is("o awaiting_payment, p1 created")
	create("", nil)
	m.is("o awaiting_payment, p1 submitted")
	create("", gateway.Credential{"url": "ours"})
	if got := m.text("select credential->>'url' from payment_payments"); got != "ours" {
		t.Errorf("the credential is of %q", got)
	}
	declined := notice("n1", kind(gateway.Declined))
	m.says(declined, "applied")
	m.is("o awaiting_payment, p1 declined")
	create("", nil) // the payer tries again
	m.is("o awaiting_payment, p1 submitted")
	if got := m.text("select credential->>'url' from payment_payments"); got != "ours" {
		t.Errorf("then the credential is of %q", got)
	}
	m.verify()
}

// The same answer about a refund of an unknown payment's money counts again after another notice.
func TestAnswersAboutRefundsOfUnknownMoneyCountAgain(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.hear(0, notice("n1", amountOf("10", "CNY"), of("p9", "t9")))
	m.gets(flagUnknown("p9"), "true")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.GiveBack, RefundNo: "r1"}), "unknown_number refund")
	answer := notice("answer", amountOf("10", "CNY"), ofRefund("r1", gateway.Refunded), of("p9", "t9"))
	answer.Callback = false
	m.says(answer, "applied")
	m.says(notice("m1", amountOf("10", "CNY"), ofRefund("r1", gateway.RefundFailed), of("p9", "t9")), "flagged")
	m.says(answer, "applied existed")
	if got := m.text("select string_agg(kind || ' ' || coalesce(resolution, 'open'), ', ' order by flag_id) " +
		"from payment_flags"); got != "unknown_number refund, refund_returned withdrawn" {
		t.Error(got)
	}
	m.verify()
}

// Flagged money is on the suspense account. To write a flag off to that account would take the money of other flags.
func TestNoFlagIsWrittenOffToSuspense(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("12", "CNY")), "flagged")
	m.says(console("m1", "4"), "flagged")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "sus"}), "FIELD_INVALID")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "unknown_refund write_off")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "wrong_amount write_off")
	m.is("o awaiting_payment, p1 suspended; wrong_amount 1200 sus write_off, unknown_refund 400 write_off; " +
		"gw -8, loss 8")
	m.verify()
}

// The first notice of a console refund, which precedes the money, may be in another currency: a later notice counts.
func TestALaterCorrectNoticeOfAConsoleRefundCountsBeforeItsMoney(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	first := console("m1", "4", amountOf("4", "USD"))
	first.GatewayRefundID = "re_1"
	m.says(first, "flagged")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	for id, want := range map[string]string{"m2": "flagged"} {
		right := console(id, "4")
		right.GatewayRefundID = "re_1"
		m.says(right, want)
	}
	m.refuses(refund("r2", "7"), "6.00")
	m.verify()
}
