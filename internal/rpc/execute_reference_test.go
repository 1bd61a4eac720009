package rpc_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
)

// payableSite has a payable order due-a and the template paid.
func payableSite(t *testing.T) *caller {
	t.Helper()
	c := orderSite(t)
	c.preparePayments("q")
	ok(c, "Notify.PutTemplate", putTemplate("paid", "Paid by {{.name}}"), new(notifyv1.PutTemplateResponse))
	ok(c, "Order.CreateOrder", &orderv1.CreateOrderRequest{OrderNo: "due-a", Subject: "u", Asset: "COIN", Amount: "1"},
		new(orderv1.CreateOrderResponse))
	return c
}

func byTemplate() []*notifyv1.SendRequest {
	return []*notifyv1.SendRequest{{Channel: notifyv1.Channel_CHANNEL_SMS, Recipient: "+8613800000003",
		Says: &notifyv1.SendRequest_Template{Template: &notifyv1.TemplateUse{Name: "paid",
			Variables: &structpb.Struct{}}}}}
}

func succeeds(t *testing.T, what string, a answer) {
	t.Helper()
	if a.Code != "" {
		t.Errorf("%s: %s %s", what, a.Reason(t), a.Message)
	}
}

const nameOf = "messages[0].template.variables.name="

// An Execute is decoded again in each attempt: the number that the server makes for a payment stays the same.
func TestReferencesInAPaymentWithoutNumber(t *testing.T) {
	t.Parallel()
	c := payableSite(t)
	p := createPayment("due-a", "")
	p.Messages = byTemplate()
	succeeds(t, "a variable from a transfer's biz_no", c.call(connectJSON, "Batch.Execute",
		execute(operation("t", pay("d1", "world", "u:a", "1")), operation("", p, nameOf+"t:transfer.biz_no"))))
	p.OrderNo = ""
	succeeds(t, "an order and its payment, with the order's id in the message", c.call(connectJSON, "Batch.Execute",
		execute(operation("o", &orderv1.CreateOrderRequest{Subject: "u", Asset: "COIN", Amount: "1"}),
			operation("", p, "order_no=o:order.order_no", nameOf+"o:order.id"))))
}

// A grab that won nothing has no order_no.
func TestReferenceToTheOrderOfALostGrab(t *testing.T) {
	t.Parallel()
	c := payableSite(t)
	c.executed(execute(operation("", putItem("tv", "TV")), operation("", restock("tv", "first", 1))))
	c.putSale(saleOf("report-lost", "tv", "COIN"))
	c.wantGrab("report-lost", "first", won)
	if a := c.call(connectJSON, "Batch.Execute", execute(
		operation("t", pay("d2", "world", "u:a", "1")), operation("g", grab("report-lost", "late")),
		operation("", &orderv1.CreateOrderRequest{Subject: "s", Asset: "COIN", Amount: "1", Messages: byTemplate()},
			"order_no=g:order_no", nameOf+"t:transfer.id"))); a.Reason(t) != "REFERENCE_UNRESOLVED" {
		t.Errorf("%s %s", a.Reason(t), a.Message)
	}
}

// A field accepts only the id of the kind of resource that it names.
func TestReferenceToTheIDOfAnotherThing(t *testing.T) {
	t.Parallel()
	c := payableSite(t)
	for field, r := range map[string]proto.Message{"flag_id": &paymentv1.ResolveFlagRequest{
		Resolution: paymentv1.Resolution_RESOLUTION_ACCEPT, Note: "n"}, "hold_id": new(ledgerv1.ReleaseRequest),
		"message_id": new(notifyv1.CancelMessageRequest)} {
		a := c.call(connectJSON, "Batch.Execute", execute(operation("t", pay("d3", "world", "u:a", "1")),
			operation("", r, field+"=t:transfer.id")))
		if want := "operations[1].references[0].result: transfer.id is no " + map[string]string{"flag_id": "flagId",
			"hold_id": "holdId", "message_id": "messageId"}[field]; a.Reason(t) != "FIELD_INVALID" ||
			a.Message != want {
			t.Errorf("%s %s, want %s", a.Reason(t), a.Message, want)
		}
	}
}

// The rows of an open payment are found, although the ids in the request differ between attempts.
func TestReferenceInARepeatOfAnOpenPayment(t *testing.T) {
	t.Parallel()
	c := payableSite(t)
	ok(c, "Payment.CreatePayment", createPayment("due-a", "due-001"), new(paymentv1.CreatePaymentResponse))
	p := createPayment("due-a", "due-001")
	p.Messages = byTemplate()
	succeeds(t, "a repeat of an open payment", c.call(connectJSON, "Batch.Execute",
		execute(operation("t", pay("d4", "world", "u:a", "1")), operation("", p, nameOf+"t:transfer.id"))))
}

// An amount is compared with others once it is filled in.
func TestReferencedAmountsFitTheOthers(t *testing.T) {
	t.Parallel()
	c := payableSite(t)
	o := &orderv1.CreateOrderRequest{OrderNo: "r-1", Subject: "s", Asset: "COIN", Payee: "world",
		Balance: &orderv1.BalancePart{Account: "u:a", Amount: "2"}}
	succeeds(t, "a balance pays 2 of 5", c.call(connectJSON, "Batch.Execute", execute(
		operation("t", pay("d6", "world", "u:a", "5")), operation("", o, "amount=t:transfer.entries[1].amount"))))
	o = proto.Clone(o).(*orderv1.CreateOrderRequest)
	o.OrderNo, o.Balance.Amount = "r-0", "6"
	if a := c.call(connectJSON, "Batch.Execute", execute(operation("t", pay("d6", "world", "u:a", "5")),
		operation("", o, "amount=t:transfer.entries[1].amount"))); a.Reason(t) != "FIELD_INVALID" {
		t.Errorf("a balance pays 6 of 5: %s %s", a.Reason(t), a.Message)
	}
	o = &orderv1.CreateOrderRequest{OrderNo: "r-2", Subject: "s", Asset: "COIN", Amount: "5",
		Lines: []*orderv1.OrderLine{{Item: "x", Quantity: 1}}}
	succeeds(t, "a line of 5", c.call(connectJSON, "Batch.Execute", execute(
		operation("t", pay("d6", "world", "u:a", "5")),
		operation("", o, "lines[0].amount=t:transfer.entries[1].amount"))))
}
