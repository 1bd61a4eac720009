package rpc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// An error that only the database can detect names the field too, with the index of its element.
func TestErrorsNameTheFieldAndItsElement(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepare("a")
	ok(c, "Notify.PutTemplate", putTemplate("paid", "Paid by {{.name}}"), new(notifyv1.PutTemplateResponse))
	ok(c, "Notify.Send", byText("+8613800000000", "one", "first"), new(notifyv1.SendResponse))
	ok(c, "Stock.PutItem", &stockv1.PutItemRequest{Item: "tea"}, new(stockv1.PutItemResponse))
	ok(c, "Stock.Restock", &stockv1.RestockRequest{Item: "tea", ChangeNo: "delivery", Quantity: 9},
		new(stockv1.RestockResponse))
	ok(c, "Stock.Deduct", &stockv1.DeductRequest{Item: "tea", ReservationNo: "sold", Quantity: 1},
		new(stockv1.DeductResponse))
	few, none := proto.String("0.001"), proto.String("1")
	accounts := func(more ...*ledgerv1.NewAccount) *ledgerv1.CreateAccountsRequest {
		return &ledgerv1.CreateAccountsRequest{Accounts: append([]*ledgerv1.NewAccount{{Code: "new", Asset: "COIN"}},
			more...)}
	}
	transfer := func(from, to, n string) *ledgerv1.TransferRequest {
		return &ledgerv1.TransferRequest{BizNo: from + to + n, Postings: posting(from, to, "COIN", n)}
	}
	all := func(r *ledgerv1.TransferRequest) *ledgerv1.TransferBatchRequest {
		return &ledgerv1.TransferBatchRequest{AllOrNothing: true, Items: []*ledgerv1.TransferBatchItem{
			{Transfer: transfer("world", "u:a", "1")}, {Transfer: r}}}
	}
	both := func(r *notifyv1.SendRequest) *notifyv1.SendBatchRequest {
		return &notifyv1.SendBatchRequest{AllOrNothing: true,
			Items: []*notifyv1.SendRequest{byText("+8613800000001", "x", "x"), r}}
	}
	from := func(name string) *notifyv1.SendRequest {
		return &notifyv1.SendRequest{Channel: bySMS, Recipient: "+8613800000002",
			Says: &notifyv1.SendRequest_Template{Template: &notifyv1.TemplateUse{Name: name}}}
	}
	late, mail, other := byText("+8613800000003", "y", "y"), byText("a@example.com", "z", "z"),
		byText("+8613800000000", "two", "first")
	late.NotBefore = timestamppb.New(time.Now().Add(60 * 24 * time.Hour).Truncate(time.Second))
	mail.Channel, mail.GetContent().Subject = notifyv1.Channel_CHANNEL_EMAIL, "a\r\nb"
	ordered := func(account, payee string) *orderv1.CreateOrderRequest {
		return &orderv1.CreateOrderRequest{OrderNo: "o", Subject: "u", Asset: "COIN", Amount: "5", Payee: payee,
			Balance: &orderv1.BalancePart{Account: account}}
	}
	withParts := func(r *orderv1.CreateOrderRequest) *orderv1.CreateOrderRequest {
		r.Subject, r.Asset, r.Amount = "u", "COIN", "5"
		return r
	}
	unset := saleOf("lot", "tea", "COIN")
	unset.CloseTime = timestamppb.New(time.Time{})
	ok(c, "Transfer", &ledgerv1.TransferRequest{BizNo: "two", Postings: append(posting("world", "u:a", "COIN", "1"),
		posting("world", "u:a", "COIN", "2")...)}, new(ledgerv1.TransferResponse))
	for _, x := range []struct {
		call, reason, field string
		r                   proto.Message
	}{
		{"CreateAssets", "ASSET_EXISTS_DIFFERENT", "assets[1].scale", &ledgerv1.CreateAssetsRequest{
			Assets: []*ledgerv1.Asset{{Code: "NEW", Scale: 1}, {Code: "COIN", Scale: 3}}}},
		{"CreateAccounts", "AMOUNT_TOO_PRECISE", "accounts[1].min_balance",
			accounts(&ledgerv1.NewAccount{Code: "n", Asset: "COIN", MinBalance: few})},
		{"CreateAccounts", "AMOUNT_TOO_PRECISE", "accounts[1].max_balance",
			accounts(&ledgerv1.NewAccount{Code: "n", Asset: "COIN", MaxBalance: few})},
		{"CreateAccounts", "ACCOUNT_LIMIT_VIOLATED", "accounts[1].min_balance",
			accounts(&ledgerv1.NewAccount{Code: "n", Asset: "COIN", MinBalance: none})},
		{"CreateAccounts", "ASSET_NOT_FOUND", "accounts[1].asset",
			accounts(&ledgerv1.NewAccount{Code: "n", Asset: "NONE"})},
		{"CreateAccounts", "ACCOUNT_EXISTS_DIFFERENT", "accounts[1].kind",
			accounts(&ledgerv1.NewAccount{Code: "u:a", Asset: "COIN",
				Kind: ledgerv1.AccountKind_ACCOUNT_KIND_ASSET})},
		{"Transfer", "ACCOUNT_NOT_FOUND", "postings[0].from", transfer("nowhere", "u:a", "1")},
		{"Transfer", "ACCOUNT_NOT_FOUND", "conditions[0].account",
			&ledgerv1.TransferRequest{BizNo: "c", Postings: posting("world", "u:a", "COIN", "1"),
				Conditions: []*ledgerv1.Condition{{Account: ref("nowhere", "COIN"), Version: proto.Int64(1)}}}},
		{"TransferBatch", "ACCOUNT_NOT_FOUND", "items[1].transfer.postings[0].to",
			all(transfer("world", "nowhere", "1"))},
		{"TransferBatch", "AMOUNT_TOO_PRECISE", "items[1].transfer.postings[0].amount",
			all(transfer("world", "u:a", "0.001"))},
		{"Hold", "ACCOUNT_NOT_FOUND", "to", &ledgerv1.HoldRequest{BizNo: "h", From: "u:a", To: "nowhere", Asset: "COIN",
			Amount: "1"}},
		{"FreezeAccount", "ACCOUNT_NOT_FOUND", "account",
			&ledgerv1.FreezeAccountRequest{Account: ref("nowhere", "COIN")}},
		{"GetAccount", "ACCOUNT_NOT_FOUND", "account", &ledgerv1.GetAccountRequest{Account: ref("nowhere", "COIN")}},
		{"Notify.SendBatch", "FIELD_INVALID", "items[1].recipient", both(byText("no number", "y", "y"))},
		{"Notify.SendBatch", "FIELD_INVALID", "items[1].not_before", both(late)},
		{"Notify.SendBatch", "FIELD_INVALID", "items[1].content.subject", both(mail)},
		{"Notify.SendBatch", "TEMPLATE_NOT_FOUND", "items[1].template", both(from("none"))},
		{"Notify.SendBatch", "TEMPLATE_VARIABLES_INVALID", "items[1].template.variables.name", both(from("paid"))},
		{"Notify.Send", "NOTIFY_BIZ_NO_EXISTS_DIFFERENT", "content", other},
		{"Order.CreateOrder", "ACCOUNT_NOT_FOUND", "balance.account", ordered("nowhere", "u:a")},
		{"Order.CreateOrder", "ACCOUNT_NOT_FOUND", "payee", ordered("u:a", "nowhere")},
		{"Order.CreateOrder", "AMOUNT_TOO_PRECISE", "amount",
			&orderv1.CreateOrderRequest{Subject: "u", Asset: "COIN", Amount: "0.001"}},
		{"Order.CreateOrder", "FIELD_INVALID", "amount",
			&orderv1.CreateOrderRequest{Subject: "u", Asset: "COIN", Amount: "5",
				Lines: []*orderv1.OrderLine{{Item: "tea", Quantity: 1, Amount: "6"}, {Item: "tea", Quantity: 1}}}},
		{"Sale.PutSale", "ASSET_NOT_FOUND", "sale.order.asset", putSale(saleOf("lot", "tea", "NONE"))},
		{"ListTransfers", "FIELD_INVALID", "end_time",
			&ledgerv1.ListTransfersRequest{StartTime: late.NotBefore, EndTime: timestamppb.New(time.Unix(1, 0))}},
		{"Stock.Reserve", "RESERVATION_EXISTS_DIFFERENT", "reservation_no",
			&stockv1.ReserveRequest{Item: "tea", ReservationNo: "sold", Quantity: 1}},
		{"Transfer", "BIZ_NO_EXISTS_DIFFERENT", "postings[1].to",
			&ledgerv1.TransferRequest{BizNo: "two", Postings: append(
				posting("world", "u:a", "COIN", "1"), posting("world", "world:out", "COIN", "2")...)}},
		{"Sale.PutSale", "ITEM_NOT_FOUND", "sale.item", putSale(saleOf("lot", "nothing", "COIN"))},
		{"Sale.PutSale", "FIELD_INVALID", "sale.close_time", putSale(unset)},
		{"ListTransfers", "FIELD_INVALID", "end_time",
			&ledgerv1.ListTransfersRequest{EndTime: timestamppb.New(time.Time{})}},
		{"Order.CreateOrder", "ITEM_NOT_FOUND", "lines[1].item",
			withParts(&orderv1.CreateOrderRequest{Lines: []*orderv1.OrderLine{
				{Item: "tea", Quantity: 1}, {Item: "nothing", Quantity: 1}}, Reserve: true})},
		{"Order.CreateOrder", "COUPON_NOT_FOUND", "coupon", withParts(&orderv1.CreateOrderRequest{Coupon: "NONE"})},
		{"Order.CreateOrder", "MACHINE_NOT_FOUND", "machine", withParts(&orderv1.CreateOrderRequest{Machine: "none"})},
	} {
		a := c.call(connectProto, x.call, x.r)
		if f := a.Fields(t); a.Reason(t) != x.reason || !slices.Equal(f, []string{x.field}) {
			t.Errorf("%s: %s %q, %v, want %s of %s", x.call, a.Reason(t), a.Message, f, x.reason, x.field)
		}
		if strings.HasSuffix(x.reason, "_INVALID") && !strings.HasPrefix(a.Message, x.field+": ") {
			t.Errorf("%s: the message %q does not name the field", x.call, a.Message)
		}
	}
	c.wantFieldsOfItems(t)
}

// Errors of items of a batch that is not all or nothing name the fields of the item, and its key if it has one.
func (c *caller) wantFieldsOfItems(t *testing.T) {
	t.Helper()
	moved := &ledgerv1.TransferRequest{BizNo: "i", Postings: posting("world", "u:a", "COIN", "0.001")}
	res := ok(c, "TransferBatch", &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{{Transfer: moved},
		{Transfer: moved, IdempotencyKey: `"k`}, {Transfer: moved, IdempotencyKey: " "}}},
		new(ledgerv1.TransferBatchResponse))
	for i, want := range []string{"AMOUNT_TOO_PRECISE postings[0].amount", "IDEMPOTENCY_KEY_INVALID idempotency_key",
		"IDEMPOTENCY_KEY_INVALID idempotency_key"} {
		e := res.GetResults()[i].GetError()
		if got := fmt.Sprint(e.GetReason(), " ", e.GetFieldViolations()[0].GetField()); got != want {
			t.Errorf("item %d: %s, want %s", i, got, want)
		}
	}
	a := c.call(connectProto, "Transfer", moved, "Idempotency-Key", `"k`)
	if f := a.Fields(t); a.Reason(t) != "IDEMPOTENCY_KEY_INVALID" || !slices.Equal(f, []string{"Idempotency-Key"}) {
		t.Errorf("header: %s %v", a.Message, f)
	}
}

func byText(to, text, bizNo string) *notifyv1.SendRequest {
	return &notifyv1.SendRequest{Channel: bySMS, Recipient: to, BizNo: bizNo,
		Says: &notifyv1.SendRequest_Content{Content: &notifyv1.Content{Text: text}}}
}

// Errors to JSON callers have field names in JSON spelling, and values as they were sent.
func TestValuesInErrorsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	c := orderSite(t)
	for call, x := range map[string]struct {
		request proto.Message
		want    string
	}{
		"Order.GetOrder": {&orderv1.GetOrderRequest{OrderNo: "order_no"}, "there is no order order_no"},
		"GetAccount": {&ledgerv1.GetAccountRequest{Account: ref("user:biz_no", "COIN")},
			"there is no account user:biz_no in asset COIN"},
		"Stock.GetItem": {&stockv1.GetItemRequest{Item: "first_only"}, "there is no item first_only"},
	} {
		if a := c.call(connectJSON, call, x.request); a.Message != x.want {
			t.Errorf("%s: %q, want %q", call, a.Message, x.want)
		}
	}
	a := c.call(connectJSON, "Transfer", pay("t", "world", "u:a", "1"), "Claim-Key", `"a"; first_only`)
	if !strings.Contains(a.Message, `unknown parameter, "first_only"`) {
		t.Error(a.Message)
	}
}
