package flow_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/notify/send"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// letter returns an e-mail with a repeat window of an hour. no: its biz_no; empty: none.
func letter(c commit.Caller, about, no string) notify.SendCommand {
	window := time.Hour
	return notify.SendCommand{Caller: c, Params: notify.Params{Channel: send.Email, Recipient: "ann@example.com",
		BizNo:   no,
		Content: send.Content{Subject: about, Text: about}, BusinessType: about, Priority: notify.Normal,
		RepeatWindow: &window}}
}

func asked(request string) commit.Caller {
	return commit.Caller{Tenant: 1, Principal: "test", RequestID: request}
}

// story returns the rows of audit.order_story for an order, one per line, with ID instead of numeric ids.
func (m *market) story(no string) string {
	m.Helper()
	return m.text(`select string_agg(concat_ws('|', what, regexp_replace(name, '^\d{6,}$', 'ID'), regexp_replace(detail,
		'\d{6,}', 'ID'), coalesce(principal, '-'), coalesce(request_id, '-')), E'\n' order by at, n, name, detail)
		from audit.order_story where order_no = $1`, no)
}

func (m *market) wantStory(no, want string) {
	m.Helper()
	if got, want := m.story(no), strings.TrimSpace(want); got != want {
		m.Errorf("%s\n got:\n%s\nwant:\n%s", no, got, want)
	}
}

// The story of an order has everything that happened to it, causes before effects, and nothing of other orders that
// the same calls made or moved.
func TestTheStoryOfAnOrderIsComplete(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.wants(flow.Webhook(&webhook.CreateCommand{Caller: caller, Name: "shop", URL: "https://example.com"}), "ok")
	m.wants(&flow.IssueCoupons{Caller: caller, Campaign: "spring", Codes: []string{"ten"}}, "issued ten")
	m.wants(&flow.ClaimCoupon{Caller: caller, Code: "ten", Owner: "ann"}, "ten claimed ann claim")
	by := func(request string, letters ...notify.SendCommand) func(*flow.CreateOrder) {
		return func(c *flow.CreateOrder) { c.Caller, c.Messages = asked(request), letters }
	}
	withCoupon := func(c *flow.CreateOrder) { c.Coupon = "ten" }

	m.wants(newOrder("early", plain, by("q0", letter(asked("q0"), "welcome", ""))), "early awaiting_payment")
	ends := m.batch(0,
		newOrder("a", withCoupon, by("q1", letter(asked("q1"), "welcome", ""), letter(asked("q1"), "made", "own-1"))),
		newOrder("b", plain, by("q1", letter(asked("q1"), "other", ""))))
	m.equal("created", strings.Join(ends, ", "), "a awaiting_payment, b awaiting_payment")
	m.wants(moveOrder("a", "paid", "pay-1", func(c *flow.MoveOrder) {
		c.Caller, c.Messages = asked("q2"), []notify.SendCommand{letter(asked("q2"), "thanks", "")}
		c.Params.Inputs = map[string]string{"tracking": "T1"}
	}), "a paid")
	m.wants(item(&stock.ChangeCommand{Caller: asked("q3"), Item: "tea", ChangeNo: "return-1", Kind: stock.Unsell,
		Quantity:      2,
		ReservationNo: "a/1", Reason: "broken"}), "ok")
	m.wants(flow.Ledger(&ledger.ReverseCommand{Caller: asked("q4"),
		ReverseParams: ledger.ReverseParams{BizNo: "back-1", TransferBizNo: "a/pay"}}), "ok")
	if _, err := m.super.Exec(t.Context(), `insert into notify_events (tenant_id, message_id, month, event_id, kind,
		attempt, provider, at, instance)
		select tenant_id, message_id, month, 1, 'sent', 1, 'file', clock_timestamp(), 'test' from notify_messages
		where biz_no = 'own-1' or business_type = 'welcome'`); err != nil {
		t.Fatal(err)
	}
	m.wantStory("a", `
move|awaiting_payment|creation: 10.00 CNY|test|q1
reservation|tea a/1|3 reserved|test|q1
coupon|ten|locked|test|q1
hold|a/hold|4.00 CNY held|test|q1
message repeated|a/message/1|email welcome a***@example.com: repeat of early/message/1|test|q1
message|own-1|email made a***@example.com|test|q1
move|paid|pay-1 {"tracking": "T1"}|test|q2
reservation ended|tea a/1|3 sold|test|q2
coupon|ten|used|test|q2
hold ended|a/hold|4.00 CNY captured|test|q2
transfer|a/pay|order: user:0 to world 4.00 CNY|test|q2
message|ID|webhook order.paid shop|test|q2
message|ID|email thanks a***@example.com|test|q2
unsell|tea a/1|2 return-1: broken|test|q3
transfer|back-1|reversal: world to user:0 4.00 CNY|test|q4
message event|own-1|sent file|-|-`)
	m.wantStory("early", `
move|awaiting_payment|creation: 10.00 CNY|test|q0
message|early/message/1|email welcome a***@example.com|test|q0
message event|early/message/1|sent file|-|-`)
	m.wantStory("b", `
move|awaiting_payment|creation: 10.00 CNY|test|q1
message|b/message/1|email other a***@example.com|test|q1
message|own-1|email made a***@example.com|test|q1
message event|own-1|sent file|-|-`)
}

// A call about another order may record that the time to pay is over. Of that call's messages, the story has only the
// event of the order.
func TestTheStoryOfAnOrderThatExpired(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.wants(flow.Webhook(&webhook.CreateCommand{Caller: caller, Name: "shop", URL: "https://example.com"}), "ok")
	m.wants(&flow.IssueCoupons{Caller: caller, Campaign: "spring", Codes: []string{"ten"}}, "issued ten")
	m.wants(&flow.ClaimCoupon{Caller: caller, Code: "ten", Owner: "ann"}, "ten claimed ann claim")
	by := func(request string) func(*flow.CreateOrder) {
		return func(c *flow.CreateOrder) { c.Caller = asked(request) }
	}
	m.wants(newOrder("a", sameAs("a"), by("q1"), func(c *flow.CreateOrder) { c.Coupon = "ten" }), "a awaiting_payment")
	m.clock.Set(t, 31*time.Minute)
	m.wants(newOrder("b", sameAs("a"), paidAtOnce, by("q2"), func(c *flow.CreateOrder) {
		c.Messages = []notify.SendCommand{letter(c.Caller, "made", "own-1")}
	}), "b paid")
	m.wantStory("a", `
move|awaiting_payment|creation: 10.00 CNY|test|q1
reservation|tea a/1|3 reserved|test|q1
coupon|ten|locked|test|q1
hold|a/hold|4.00 CNY held|test|q1
purchase|["a"]|claimed for 01:00:00|test|q1
reservation ended|tea a/1|3 expired|-|-
move|cancelled|timer: timeout|-|q2
coupon|ten|claimed|test|q2
hold ended|a/hold|4.00 CNY expired|-|-
purchase ended|["a"]|given back|-|q2
message|ID|webhook order.cancelled shop|test|q2`)
	m.wantStory("b", `
move|awaiting_payment|creation: 10.00 CNY|test|q2
reservation|tea b/1|3 reserved|test|q2
transfer|b/pay|order: user:0 to world 10.00 CNY|test|q2
purchase|["a"]|claimed for 01:00:00|test|q2
move|paid|balance|test|q2
reservation ended|tea b/1|3 sold|test|q2
message|ID|webhook order.cancelled shop|test|q2
message|ID|webhook order.paid shop|test|q2
message|own-1|email made a***@example.com|test|q2`)
}

// The money of payments, refunds and flags is in the story too.
func TestTheStoryOfAnOrderHasItsMoney(t *testing.T) {
	t.Parallel()
	m := newTill(t)
	m.payableOrder("o", outside)
	m.create("o", "p1")
	m.says(notice("n1", amountOf("10", "CNY")), "applied")
	m.says(notice("n2", amountOf("10", "CNY"), of("p1", "t2")), "flagged")
	m.gets(refund("r1", "4"), "r1 requested")
	m.says(notice("m1", amountOf("4", "CNY"), ofRefund("r1", gateway.Refunded)), "applied")
	m.gets(refund("r2", ""), "r2 requested") // the order is refunding
	m.says(notice("m2", amountOf("6", "CNY"), ofRefund("r2", gateway.Refunded)), "applied")
	m.gets(m.resolve(0, flow.ResolveFlag{Resolution: payment.WriteOff, Target: "loss"}), "second_transaction write_off")
	m.payableOrder("late", outside)
	m.create("late", "p2")
	m.says(notice("n3", amountOf("9", "CNY"), of("p2", "t3")), "flagged")
	m.gets(m.resolve(1, flow.ResolveFlag{Resolution: payment.Accept}), "wrong_amount accept") // moves the order
	money := func(no string) string {
		return m.text(`select string_agg(concat_ws('|', what, regexp_replace(name, '\d{6,}', 'ID'), detail), E'\n'
			order by at, n, name, detail) from audit.order_story
			where order_no = $1 and what in ('transfer', 'hold', 'hold ended')`, no)
	}
	if got := money("late"); got != "transfer|pay/g/t3|payment: gw to sus 9.00 CNY\n"+
		"transfer|flag/ID|payment: sus to user:3 9.00 CNY" {
		t.Errorf("late: %s", got)
	}
	got := money("o")
	if want := strings.TrimSpace(`
transfer|pay/g/t1|payment: gw to user:3 10.00 CNY
transfer|pay/g/t2|payment: gw to sus 10.00 CNY
hold|refund/r1|4.00 CNY held
hold ended|refund/r1|4.00 CNY captured
transfer|refund/r1/paid|refund: user:3 to gw 4.00 CNY
hold|refund/r2|6.00 CNY held
hold ended|refund/r2|6.00 CNY captured
transfer|refund/r2/paid|refund: user:3 to gw 6.00 CNY
transfer|flag/ID|payment: sus to loss 10.00 CNY`); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
