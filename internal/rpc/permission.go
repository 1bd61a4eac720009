package rpc

import (
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/ledgerd/ledgerd/gen/ledgerd/admin/v1/adminv1connect"
	"github.com/ledgerd/ledgerd/internal/access"
)

// permission is what a call needs: the name of its operation, for scopes, and the least role.
type permission struct {
	operation string
	role      access.Role
}

// permissions has every call, by service and name. Some requests need access.Admin besides: see needsAdmin.
var permissions = map[string]map[string]permission{
	adminService: {
		"CreateTenant": {"admin.create_tenant", access.Operator},
		"ListTenants":  {"admin.list_tenants", access.Operator},
		"CreateKey":    {"admin.create_key", access.Admin},
		"RotateKey":    {"admin.rotate_key", access.Admin},
		"RevokeKey":    {"admin.revoke_key", access.Admin},
		"ListKeys":     {"admin.list_keys", access.Admin},
		"PutPolicy":    {"admin.put_policy", access.Admin},
		"ListPolicies": {"admin.list_policies", access.Admin},
		"DeletePolicy": {"admin.delete_policy", access.Admin},
		"SetLimit":     {"admin.set_limit", access.Admin},
		"ListLimits":   {"admin.list_limits", access.Admin},
		"DeleteLimit":  {"admin.delete_limit", access.Admin},
	},
	"ledgerd.approval.v1.ApprovalService": {
		"RequestApproval": {"approval.request", access.Write},
		"Approve":         {"approval.approve", access.Write},
		"Reject":          {"approval.reject", access.Write},
		"GetApproval":     {"approval.get_approval", access.Read},
		"ListApprovals":   {"approval.list_approvals", access.Read},
	},
	"ledgerd.audit.v1.AuditService": {
		"ListEvents": {"audit.list_events", access.Admin},
	},
	"ledgerd.batch.v1.BatchService": {
		"Execute": {"batch.execute", access.Write},
	},
	"ledgerd.id.v1.IdService": {
		"Generate": {"id.generate", access.Write},
		"Parse":    {"id.parse", access.Read},
	},
	"ledgerd.idempotency.v1.IdempotencyService": {
		"IssueTokens":   {"idempotency.issue_tokens", access.Write},
		"SpendToken":    {"idempotency.spend_token", access.Write},
		"ClaimKey":      {"idempotency.claim_key", access.Write},
		"ClaimKeys":     {"idempotency.claim_keys", access.Write},
		"GetClaim":      {"idempotency.get_claim", access.Read},
		"DropClaim":     {"idempotency.drop_claim", access.Write},
		"Begin":         {"work.begin", access.Write},
		"Extend":        {"work.extend", access.Write},
		"Complete":      {"work.complete", access.Write},
		"Abandon":       {"work.abandon", access.Write},
		"GetRecord":     {"work.get_record", access.Read},
		"ListRecords":   {"work.list_records", access.Read},
		"ResolveRecord": {"work.resolve", access.Write},
	},
	"ledgerd.inbox.v1.InboxService": {
		"Receive":  {"inbox.receive", access.Write},
		"Begin":    {"inbox.begin", access.Write},
		"Complete": {"inbox.complete", access.Write},
		"Fail":     {"inbox.fail", access.Write},
		"Extend":   {"inbox.extend", access.Write},
		"Requeue":  {"inbox.requeue", access.Write},
		"Get":      {"inbox.get", access.Read},
		"List":     {"inbox.list", access.Read},
	},
	"ledgerd.ledger.v1.LedgerService": {
		"CreateAssets":    {"ledger.create_assets", access.Write},
		"ListAssets":      {"ledger.list_assets", access.Read},
		"CreateAccounts":  {"ledger.create_accounts", access.Write},
		"GetAccount":      {"ledger.get_account", access.Read},
		"ListAccounts":    {"ledger.list_accounts", access.Read},
		"UpdateAccount":   {"ledger.update_account", access.Write},
		"FreezeAccount":   {"ledger.freeze_account", access.Admin},
		"UnfreezeAccount": {"ledger.unfreeze_account", access.Admin},
		"CloseAccount":    {"ledger.close_account", access.Admin},
		"Transfer":        {"ledger.transfer", access.Write},
		"TransferBatch":   {"ledger.transfer_batch", access.Write},
		"Reverse":         {"ledger.reverse", access.Write},
		"Hold":            {"ledger.hold", access.Write},
		"Capture":         {"ledger.capture", access.Write},
		"Release":         {"ledger.release", access.Write},
		"GetHold":         {"ledger.get_hold", access.Read},
		"ListHolds":       {"ledger.list_holds", access.Read},
		"GetTransfer":     {"ledger.get_transfer", access.Read},
		"ListTransfers":   {"ledger.list_transfers", access.Read},
		"ListEntries":     {"ledger.list_entries", access.Read},
		"GetBalance":      {"ledger.get_balance", access.Read},
		"ListBalances":    {"ledger.list_balances", access.Read},
		"TrialBalance":    {"ledger.trial_balance", access.Read},
		"WatchEntries":    {"ledger.watch_entries", access.Read},
	},
	"ledgerd.lock.v1.LockService": {
		"Acquire": {"lock.acquire", access.Write},
		"Renew":   {"lock.renew", access.Write},
		"Release": {"lock.release", access.Write},
		"Get":     {"lock.get", access.Read},
		"List":    {"lock.list", access.Read},
		"Hold":    {"lock.hold", access.Write},
	},
	"ledgerd.machine.v1.MachineService": {
		"DefineMachine":  {"machine.define", access.Admin},
		"GetMachine":     {"machine.get_machine", access.Read},
		"ListMachines":   {"machine.list_machines", access.Read},
		"GetDiagram":     {"machine.get_diagram", access.Read},
		"CreateInstance": {"machine.create_instance", access.Write},
		"Move":           {"machine.move", access.Write},
		"GetInstance":    {"machine.get_instance", access.Read},
		"ListInstances":  {"machine.list_instances", access.Read},
		"ListHistory":    {"machine.list_history", access.Read},
	},
	"ledgerd.notify.v1.NotifyService": {
		"Send":            {"notify.send", access.Write},
		"SendBatch":       {"notify.send_batch", access.Write},
		"CancelMessage":   {"notify.cancel_message", access.Write},
		"RequeueMessages": {"notify.requeue_messages", access.Write},
		"ReportDelivery":  {"notify.report_delivery", access.Write},
		"GetMessage":      {"notify.get_message", access.Read},
		"ListMessages":    {"notify.list_messages", access.Read},
		"ListDeadLetters": {"notify.list_dead_letters", access.Read},
		"PutTemplate":     {"notify.put_template", access.Admin},
		"DeleteTemplate":  {"notify.delete_template", access.Admin},
		"GetTemplate":     {"notify.get_template", access.Read},
		"ListTemplates":   {"notify.list_templates", access.Read},
		"PreviewTemplate": {"notify.preview_template", access.Read},
		"SendCode":        {"notify.send_code", access.Write},
		"VerifyCode":      {"notify.verify_code", access.Write},
	},
	"ledgerd.notify.v1.WebhookService": {
		"CreateEndpoint": {"webhook.create", access.Admin},
		"UpdateEndpoint": {"webhook.update", access.Admin},
		"RotateSecret":   {"webhook.rotate", access.Admin},
		"DeleteEndpoint": {"webhook.delete", access.Admin},
		"GetSecret":      {"webhook.get_secret", access.Admin},
		"Publish":        {"webhook.publish", access.Write},
		"GetEndpoint":    {"webhook.get_endpoint", access.Read},
		"ListEndpoints":  {"webhook.list_endpoints", access.Read},
	},
	"ledgerd.order.v1.OrderService": {
		"CreateOrder":      {"order.create", access.Write},
		"MoveOrder":        {"order.move", access.Write},
		"CancelOrder":      {"order.cancel", access.Write},
		"GetOrder":         {"order.get_order", access.Read},
		"ListOrders":       {"order.list_orders", access.Read},
		"ListOrderHistory": {"order.list_order_history", access.Read},
	},
	"ledgerd.payment.v1.PaymentService": {
		"PutGateway":       {"payment.put_gateway", access.Admin},
		"ListGateways":     {"payment.list_gateways", access.Read},
		"CreatePayment":    {"payment.create", access.Write},
		"GetPayment":       {"payment.get_payment", access.Read},
		"ListPayments":     {"payment.list_payments", access.Read},
		"AskGateway":       {"payment.ask_gateway", access.Write},
		"HandleCallback":   {"payment.handle_callback", access.Write},
		"ListNotices":      {"payment.list_notices", access.Read},
		"RefundPayment":    {"payment.refund", access.Write},
		"GetRefund":        {"payment.get_refund", access.Read},
		"ListTransactions": {"payment.list_transactions", access.Read},
		"ListRefunds":      {"payment.list_refunds", access.Read},
		"ListFlags":        {"payment.list_flags", access.Read},
		"ResolveFlag":      {"payment.resolve_flag", access.Write},
	},
	"ledgerd.sale.v1.SaleService": {
		"PutSale":      {"sale.put", access.Admin},
		"GetSale":      {"sale.get_sale", access.Read},
		"ListSales":    {"sale.list_sales", access.Read},
		"Grab":         {"sale.grab", access.Write},
		"GrabMany":     {"sale.grab_many", access.Write},
		"IssueCoupons": {"coupon.issue", access.Write},
		"ClaimCoupon":  {"coupon.claim", access.Write},
		"RedeemCoupon": {"coupon.redeem", access.Write},
		"GetCoupon":    {"coupon.get_coupon", access.Read},
		"ListCoupons":  {"coupon.list_coupons", access.Read},
	},
	"ledgerd.stock.v1.StockService": {
		"PutItem":          {"stock.put_item", access.Write},
		"GetItem":          {"stock.get_item", access.Read},
		"ListItems":        {"stock.list_items", access.Read},
		"Restock":          {"stock.restock", access.Write},
		"AdjustStock":      {"stock.adjust_stock", access.Write},
		"Unsell":           {"stock.unsell", access.Write},
		"Reserve":          {"stock.reserve", access.Write},
		"Deduct":           {"stock.deduct", access.Write},
		"Confirm":          {"stock.confirm", access.Write},
		"Cancel":           {"stock.cancel", access.Write},
		"GetReservation":   {"stock.get_reservation", access.Read},
		"ListReservations": {"stock.list_reservations", access.Read},
	},
}

// adminService is the service whose calls an operator may make, and no others.
const adminService = adminv1connect.AdminServiceName

// byRequest has the permissions by the full name of the request: Execute and batches contain requests.
var byRequest = func() map[protoreflect.FullName]permission {
	all := map[protoreflect.FullName]permission{}
	for service, calls := range permissions {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			panic(err) // a test would have found it
		}
		for name, p := range calls {
			all[d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name)).Input().FullName()] = p
		}
	}
	return all
}()

// allows reports whether a role is enough. Operators may also make those calls of AdminService that need less.
func (p permission) allows(r access.Role) bool {
	return r.Includes(p.role) || r == access.Operator && strings.HasPrefix(p.operation, "admin.")
}

// permissionOf returns what a procedure needs. Reflection describes the API to every caller. Whatever is not listed
// needs access.Admin.
func permissionOf(procedure string) permission {
	service, name, _ := strings.Cut(strings.TrimPrefix(procedure, "/"), "/")
	if strings.HasPrefix(service, "grpc.reflection.") {
		return permission{operation: "reflection", role: access.Read}
	}
	if p, ok := permissions[service][name]; ok {
		return p
	}
	return permission{role: access.Admin}
}
