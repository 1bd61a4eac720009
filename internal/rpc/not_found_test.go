package rpc_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	approvalv1 "github.com/ledgerd/ledgerd/gen/ledgerd/approval/v1"
	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	inboxv1 "github.com/ledgerd/ledgerd/gen/ledgerd/inbox/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/internal/access"
)

// A call that names what does not exist gets the name of its field.
func TestNotFoundNamesTheField(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	ok(c, "Machine.DefineMachine", ticket("ticket", ""), new(machinev1.DefineMachineResponse))
	ok(c, "Stock.PutItem", &stockv1.PutItemRequest{Item: "tea"}, new(stockv1.PutItemResponse))
	message := &inboxv1.MessageKey{ConsumerGroup: "mail", MessageId: "none"}
	for _, x := range []struct {
		call, reason, field string
		r                   proto.Message
	}{
		{"Order.GetOrder", "ORDER_NOT_FOUND", "order_no", &orderv1.GetOrderRequest{OrderNo: "none"}},
		{"Order.MoveOrder", "ORDER_NOT_FOUND", "order_no",
			&orderv1.MoveOrderRequest{OrderNo: "none", To: "shipped", Cause: "c"}},
		{"Payment.GetPayment", "PAYMENT_NOT_FOUND", "out_trade_no",
			&paymentv1.GetPaymentRequest{OutTradeNo: "no-such-payment"}},
		{"Payment.RefundPayment", "PAYMENT_NOT_FOUND", "out_trade_no", &paymentv1.RefundPaymentRequest{
			RefundNo: "refund-1", OutTradeNo: "no-such-payment", Amount: proto.String("1")}},
		{"Payment.GetRefund", "REFUND_NOT_FOUND", "refund_no", &paymentv1.GetRefundRequest{RefundNo: "no-such-refund"}},
		{"Payment.ResolveFlag", "FLAG_NOT_FOUND", "flag_id", &paymentv1.ResolveFlagRequest{FlagId: 7,
			Resolution: paymentv1.Resolution_RESOLUTION_ACCEPT}},
		{"Hold", "ACCOUNT_NOT_FOUND", "from", &ledgerv1.HoldRequest{BizNo: "h", From: "none", Asset: "COIN",
			Amount: "1"}},
		{"Capture", "HOLD_NOT_FOUND", "hold_id", &ledgerv1.CaptureRequest{BizNo: "c",
			Hold: &ledgerv1.CaptureRequest_HoldId{HoldId: 7}}},
		{"Release", "HOLD_NOT_FOUND", "hold_biz_no", &ledgerv1.ReleaseRequest{
			Hold: &ledgerv1.ReleaseRequest_HoldBizNo{HoldBizNo: "none"}}},
		{"GetHold", "HOLD_NOT_FOUND", "hold_biz_no", &ledgerv1.GetHoldRequest{
			Hold: &ledgerv1.GetHoldRequest_HoldBizNo{HoldBizNo: "none"}}},
		{"GetTransfer", "TRANSFER_NOT_FOUND", "transfer_id", &ledgerv1.GetTransferRequest{
			Target: &ledgerv1.GetTransferRequest_TransferId{TransferId: 7}}},
		{"Reverse", "TRANSFER_NOT_FOUND", "transfer_biz_no", &ledgerv1.ReverseRequest{BizNo: "r",
			Target: &ledgerv1.ReverseRequest_TransferBizNo{TransferBizNo: "none"}}},
		{"Approval.GetApproval", "APPROVAL_NOT_FOUND", "approval_id", &approvalv1.GetApprovalRequest{ApprovalId: 7}},
		{"Sale.GetSale", "SALE_NOT_FOUND", "sale", &salev1.GetSaleRequest{Sale: "none"}},
		{"Machine.GetInstance", "INSTANCE_NOT_FOUND", "key",
			&machinev1.GetInstanceRequest{Machine: "ticket", Key: "none"}},
		{"Machine.GetMachine", "MACHINE_NOT_FOUND", "version",
			&machinev1.GetMachineRequest{Machine: "ticket", Version: 7}},
		{"Stock.Confirm", "RESERVATION_NOT_FOUND", "reservation_no",
			&stockv1.ConfirmRequest{Item: "tea", ReservationNo: "none"}},
		{"Notify.CancelMessage", "NOTIFY_NOT_FOUND", "message_id", &notifyv1.CancelMessageRequest{MessageId: 7}},
		{"Notify.GetMessage", "NOTIFY_NOT_FOUND", "message_biz_no", &notifyv1.GetMessageRequest{
			Target: &notifyv1.GetMessageRequest_MessageBizNo{MessageBizNo: "none"}}},
		{"Notify.GetTemplate", "TEMPLATE_NOT_FOUND", "name", &notifyv1.GetTemplateRequest{Name: "none",
			Channel: bySMS}},
		{"Notify.DeleteTemplate", "TEMPLATE_NOT_FOUND", "name",
			&notifyv1.DeleteTemplateRequest{Name: "none", Channel: bySMS}},
		{"Webhook.GetEndpoint", "WEBHOOK_ENDPOINT_NOT_FOUND", "name", &notifyv1.GetEndpointRequest{Name: "none"}},
		{"Idempotency.GetClaim", "CLAIM_NOT_FOUND", "key", &idempotencyv1.GetClaimRequest{Scope: "s", Key: "none"}},
		{"Idempotency.GetWork", "WORK_NOT_FOUND", "key", &idempotencyv1.GetWorkRequest{Scope: "s", Key: "none"}},
		{"Idempotency.ResolveWork", "WORK_NOT_FOUND", "key", &idempotencyv1.ResolveWorkRequest{Scope: "s", Key: "none",
			Fence: 7, Resolution: idempotencyv1.WorkResolution_WORK_RESOLUTION_FREE}},
		{"Inbox.GetMessage", "MESSAGE_NOT_FOUND", "key.message_id", &inboxv1.GetMessageRequest{Key: message}},
	} {
		a := c.call(connectProto, x.call, x.r)
		if f := a.Fields(t); a.Reason(t) != x.reason || !slices.Equal(f, []string{x.field}) {
			t.Errorf("%s: %s %q, %v, want %s of %s", x.call, a.Reason(t), a.Message, f, x.reason, x.field)
		}
		if !hasField(x.r.ProtoReflect().Descriptor(), x.field) {
			t.Errorf("%s has no field %s", x.call, x.field)
		}
	}
}

func hasField(m protoreflect.MessageDescriptor, path string) bool {
	name, rest, nested := strings.Cut(path, ".")
	f := m.Fields().ByName(protoreflect.Name(name))
	return f != nil && (!nested || hasField(f.Message(), rest))
}
