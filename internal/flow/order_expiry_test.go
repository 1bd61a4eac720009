package flow_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
)

// remind gives an order a message for the end of its time to pay.
func remind(c *flow.CreateOrder) {
	c.ExpiryMessages = []notify.SendCommand{reminder(c.OrderNo)}
}

func reminder(about string) notify.SendCommand {
	m := letter(caller, about, "")
	m.RepeatWindow = new(time.Duration)
	return m
}

// queued returns the messages: their numbers, and whether they are cancelled, wait for the end of the time to pay, or
// are due.
func (m *market) queued() string {
	m.Helper()
	return m.text(`select coalesce(string_agg(concat_ws(' ', n.biz_no, case when n.state = 'queued'
		and n.due_at > now() then
			case when n.due_at = i.timer_at and n.not_before = i.timer_at then 'waits' else 'waits wrongly' end
			else n.state end), ', ' order by n.biz_no), '')
		from audit.notifications n left join machine_instances i on i.key = split_part(n.biz_no, '/', 1)
		and i.machine <> 'coupon'`)
}

// A message for the end of the time to pay is accepted with the order, and becomes due when the order counts as
// cancelled. If the order is paid or cancelled before, that commit also cancels the message, whichever call makes the
// move.
func TestExpiryMessagesEndWithTheOrder(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	for _, no := range []string{"cancelled", "late", "moved", "paid"} {
		m.wants(newOrder(no, plain, remind), no+" awaiting_payment")
	}
	m.wants(newOrder("late", plain, remind), "late awaiting_payment existed")
	m.equal("created", m.queued(), "cancelled/message/1 waits, late/message/1 waits, moved/message/1 waits, "+
		"paid/message/1 waits")
	m.wants(pay("paid"), "paid paid")
	m.wants(pay("paid"), "paid paid existed")
	byHand := cancelOrder("cancelled")
	byHand.Params.Cause = machine.CauseTimer // nevertheless the move is the caller's
	m.wants(byHand, "cancelled cancelled")
	m.wants(flow.Machine(&machine.MoveCommand{Caller: caller,
		MoveParams: machine.MoveParams{Machine: machine.OrderMachine, Key: "moved",
			To: "paid", Cause: "till"}}), "ok")
	m.equal("ended", m.queued(),
		"cancelled/message/1 cancelled, late/message/1 waits, moved/message/1 cancelled, paid/message/1 cancelled")
	m.clock.Set(t, 29*time.Minute)
	m.equal("before the end", m.queued(),
		"cancelled/message/1 cancelled, late/message/1 waits, moved/message/1 cancelled, paid/message/1 cancelled")
	m.clock.Set(t, 31*time.Minute)
	m.wants(pay("late"), "MOVE_NOT_ALLOWED")
	m.wants(fire("late", "order"), "true")
	m.equal("after the end", m.queued(),
		"cancelled/message/1 cancelled, late/message/1 queued, moved/message/1 cancelled, paid/message/1 cancelled")
	m.wantStory("late", `
move|awaiting_payment|creation: 10.00 CNY|test|r
message|late/message/1|email late a***@example.com|test|r
move|cancelled|timer: timeout|-|r`)
	m.equal("story", m.text(`select string_agg(what || ' ' || detail, ', ' order by at, n) from audit.order_story
		where order_no = 'paid'`),
		"move creation: 10.00 CNY, message email paid a***@example.com, move pay, message event cancelled")
}

// Expiry messages are not sent if an order is paid by the commit that creates it, or if the same Execute or batch pays
// or cancels it.
func TestExpiryMessagesOfOrdersThatEndAtOnce(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.wants(newOrder("whole", paidAtOnce, remind), "whole paid")
	m.equal("paid at once", m.queued(), "")
	m.equal("one Execute", m.batch(0, together{newOrder("a", remind), pay("a")})[0], "a awaiting_payment; a paid")
	m.equal("one batch", strings.Join(m.batch(0, newOrder("b", remind), cancelOrder("b"), newOrder("c", plain, remind)),
		", "),
		"b awaiting_payment, b cancelled, c awaiting_payment")
	m.equal("messages", m.queued(), "a/message/1 cancelled, b/message/1 cancelled, c/message/1 waits")
	m.equal("refused", m.batch(0, together{newOrder("d", remind), pay("d"), newOrder("poor", plain, at("none"))})[0],
		"MACHINE_NOT_FOUND")
	m.equal("undone", m.queued(), "a/message/1 cancelled, b/message/1 cancelled, c/message/1 waits")
	m.equal("refused after", strings.Join(m.batch(0, newOrder("d", remind),
		together{pay("d"), newOrder("poor", plain, at("none"))}), ", "),
		"d awaiting_payment, MACHINE_NOT_FOUND")
	m.equal("undone", m.queued(), "a/message/1 cancelled, b/message/1 cancelled, c/message/1 waits, d/message/1 waits")
	m.equal("queue", m.text(`select count(*)::text from notify_queue`), "2")
}

// One batch creates and pays an order, and is split because of another command. The payment runs in the second part,
// and knows the message only from an attempt that was rolled back.
func TestExpiryMessageOfAnAttemptThatWasRolledBack(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.culprits = 1
	if _, err := m.super.Exec(t.Context(), `create function fail() returns trigger language plpgsql as $$
		begin raise exception 'broken' using errcode = '22000'; end $$;
		create trigger fail before insert on order_orders for each row when (new.order_no = 'bad')
		execute function fail()`); err != nil {
		t.Fatal(err)
	}
	m.equal("ends", strings.Join(m.batch(0, newOrder("a", remind), pay("a"), newOrder("bad", plain)), ", "),
		"a awaiting_payment, a paid, INTERNAL")
	m.equal("messages", m.queued(), "a/message/1 cancelled")
}

// Expiry messages are numbered after those of the creation. A caller may cancel one, or use its number before.
func TestExpiryMessagesAreNumberedAfterTheOthers(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.wants(newOrder("a", plain, remind, func(c *flow.CreateOrder) {
		c.Messages = []notify.SendCommand{letter(caller, "made", ""), letter(caller, "thanks", "own-1")}
		c.ExpiryMessages = append(c.ExpiryMessages, reminder("again"))
	}), "a awaiting_payment")
	m.equal("numbers", m.queued(), "a/message/1 queued, a/message/3 waits, a/message/4 waits, own-1 queued")
	var id int64
	if err := m.super.QueryRow(t.Context(), "select message_id from notify_names where biz_no = 'a/message/3'").
		Scan(&id); err != nil {
		t.Fatal(err)
	}
	m.wants(flow.Notify(&notify.CancelCommand{Caller: caller, ID: id}), "ok")
	m.wants(pay("a"), "a paid")
	m.equal("paid", m.queued(), "a/message/1 queued, a/message/3 cancelled, a/message/4 cancelled, own-1 queued")
	own := newOrder("own", plain, remind)
	own.Messages = []notify.SendCommand{reminder("own")}
	own.Messages[0].BizNo = "own/message/2"
	m.wants(own, "FIELD_INVALID")

	taken := reminder("b")
	taken.BizNo = "b/message/1"
	m.wants(flow.Notify(&taken), "ok")
	m.wants(newOrder("b", plain, remind), "ORDER_PART_EXISTS")
	taken = reminder("other")
	taken.BizNo = "c/message/1"
	m.wants(flow.Notify(&taken), "ok")
	m.wants(newOrder("c", plain, remind), "NOTIFY_BIZ_NO_EXISTS_DIFFERENT")
}

// Expiry messages need a timer that cancels the order within 30 days. The order may leave its first state only to be
// confirmed or cancelled, may not return to that state, and may not be paid after a cancellation.
func TestExpiryMessagesNeedATimeToPay(t *testing.T) {
	t.Parallel()
	m := newMarket(t)
	m.define("endless", "")
	m.define("sleepy", "asleep")
	m.define("own", "cancelled")
	m.define("strict", "cancelled", withoutSleep)
	for name, back := range map[string][2]string{"revived": {"cancelled", "paid"}, "reopened": {"cancelled", "pending"},
		"revived-late": {"asleep", "paid"}, "unpaid": {"paid", "pending"}} {
		m.define(name, "cancelled", withoutSleep, func(d *machine.Definition) {
			d.Moves = append(d.Moves, machine.Allowed{From: []string{back[0]}, To: back[1]})
		})
		m.wants(newOrder("a", plain, remind, at(name)), "FIELD_INVALID")
	}
	m.wants(newOrder("a", plain, remind, at("own")), "FIELD_INVALID")
	m.wants(newOrder("a", plain, remind, at("endless")), "FIELD_INVALID")
	m.wants(newOrder("a", plain, remind, at("sleepy")), "FIELD_INVALID")
	m.wants(newOrder("a", plain, remind, func(c *flow.CreateOrder) { c.PayWithin = 31 * 24 * time.Hour }),
		"FIELD_INVALID")
	m.wants(newOrder("a", plain, remind, func(c *flow.CreateOrder) { c.PayWithin = 30 * 24 * time.Hour }),
		"a awaiting_payment")
	m.wants(newOrder("b", plain, remind, at("strict")), "b pending")
	m.equal("messages", m.queued(), "a/message/1 waits, b/message/1 waits")
	m.wants(moveOrder("b", "cancelled", "no"), "b cancelled")
	m.equal("ended", m.queued(), "a/message/1 waits, b/message/1 cancelled")
	m.wants(newOrder("c", paidAtOnce, remind, at("own")), "c paid") // its message is not sent

	m.define("archive", "cancelled", withoutSleep,
		func(d *machine.Definition) { d.States[3].Parts = machine.CancelParts })
	m.wants(newOrder("d", plain, remind, at("archive")), "d pending")
	m.clock.Set(t, 2*time.Hour)
	m.wants(moveOrder("d", "asleep", "tidy"), "d asleep") // after the message was due
	m.equal("expired", m.queued(), "a/message/1 waits, b/message/1 cancelled, d/message/1 queued")
}

// withoutSleep lets an order leave its first state only to be paid or cancelled, and sleep only when it is cancelled.
func withoutSleep(d *machine.Definition) {
	d.Moves[0].From, d.Moves[1].From, d.Moves[2].From = []string{"pending"}, []string{"pending"}, []string{"cancelled"}
}
