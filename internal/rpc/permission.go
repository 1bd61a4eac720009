package rpc

import (
	"strings"
	"unicode"

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

// leastRoles has every call, by service and name. Some requests need access.Admin besides: see needsAdmin.
var leastRoles = map[string]map[string]access.Role{
	adminService: {
		"CreateTenant": access.Operator,
		"ListTenants":  access.Operator,
		"CreateKey":    access.Admin,
		"RotateKey":    access.Admin,
		"RevokeKey":    access.Admin,
		"ListKeys":     access.Admin,
		"PutPolicy":    access.Admin,
		"ListPolicies": access.Admin,
		"DeletePolicy": access.Admin,
		"PutLimit":     access.Admin,
		"ListLimits":   access.Admin,
		"DeleteLimit":  access.Admin,
	},
	"ledgerd.approval.v1.ApprovalService": {
		"RequestApproval": access.Write,
		"Approve":         access.Write,
		"Reject":          access.Write,
		"GetApproval":     access.Read,
		"ListApprovals":   access.Read,
	},
	"ledgerd.audit.v1.AuditService": {
		"ListEvents": access.Admin,
	},
	"ledgerd.batch.v1.BatchService": {
		"Execute": access.Write,
	},
	"ledgerd.id.v1.IdService": {
		"Generate": access.Write,
		"Parse":    access.Read,
	},
	"ledgerd.idempotency.v1.IdempotencyService": {
		"IssueTokens": access.Write,
		"SpendToken":  access.Write,
		"ClaimKey":    access.Write,
		"ClaimKeys":   access.Write,
		"GetClaim":    access.Read,
		"DropClaim":   access.Write,
		"Begin":       access.Write,
		"Extend":      access.Write,
		"Complete":    access.Write,
		"Abandon":     access.Write,
		"GetWork":     access.Read,
		"ListWorks":   access.Read,
		"ResolveWork": access.Write,
	},
	"ledgerd.inbox.v1.InboxService": {
		"Receive":         access.Write,
		"Begin":           access.Write,
		"Complete":        access.Write,
		"Fail":            access.Write,
		"Extend":          access.Write,
		"RequeueMessages": access.Write,
		"GetMessage":      access.Read,
		"ListMessages":    access.Read,
	},
	"ledgerd.ledger.v1.LedgerService": {
		"CreateAssets":    access.Write,
		"ListAssets":      access.Read,
		"CreateAccounts":  access.Write,
		"GetAccount":      access.Read,
		"ListAccounts":    access.Read,
		"UpdateAccount":   access.Write,
		"FreezeAccount":   access.Admin,
		"UnfreezeAccount": access.Admin,
		"CloseAccount":    access.Admin,
		"Transfer":        access.Write,
		"TransferBatch":   access.Write,
		"Reverse":         access.Write,
		"Hold":            access.Write,
		"Capture":         access.Write,
		"Release":         access.Write,
		"GetHold":         access.Read,
		"ListHolds":       access.Read,
		"GetTransfer":     access.Read,
		"ListTransfers":   access.Read,
		"ListEntries":     access.Read,
		"GetBalance":      access.Read,
		"ListBalances":    access.Read,
		"TrialBalance":    access.Read,
		"WatchEntries":    access.Read,
	},
	"ledgerd.lock.v1.LockService": {
		"Acquire":   access.Write,
		"Renew":     access.Write,
		"Release":   access.Write,
		"GetLock":   access.Read,
		"ListLocks": access.Read,
		"Hold":      access.Write,
	},
	"ledgerd.machine.v1.MachineService": {
		"DefineMachine":  access.Admin,
		"GetMachine":     access.Read,
		"ListMachines":   access.Read,
		"GetDiagram":     access.Read,
		"CreateInstance": access.Write,
		"Move":           access.Write,
		"GetInstance":    access.Read,
		"ListInstances":  access.Read,
		"ListHistory":    access.Read,
	},
	"ledgerd.notify.v1.NotifyService": {
		"Send":            access.Write,
		"SendBatch":       access.Write,
		"CancelMessage":   access.Write,
		"RequeueMessages": access.Write,
		"ReportDelivery":  access.Write,
		"GetMessage":      access.Read,
		"ListMessages":    access.Read,
		"ListDeadLetters": access.Read,
		"PutTemplate":     access.Admin,
		"DeleteTemplate":  access.Admin,
		"GetTemplate":     access.Read,
		"ListTemplates":   access.Read,
		"PreviewTemplate": access.Read,
		"SendCode":        access.Write,
		"VerifyCode":      access.Write,
	},
	"ledgerd.notify.v1.WebhookService": {
		"CreateEndpoint": access.Admin,
		"UpdateEndpoint": access.Admin,
		"RotateSecret":   access.Admin,
		"DeleteEndpoint": access.Admin,
		"GetSecret":      access.Admin,
		"Publish":        access.Write,
		"GetEndpoint":    access.Read,
		"ListEndpoints":  access.Read,
	},
	"ledgerd.order.v1.OrderService": {
		"CreateOrder":      access.Write,
		"MoveOrder":        access.Write,
		"CancelOrder":      access.Write,
		"GetOrder":         access.Read,
		"ListOrders":       access.Read,
		"ListOrderHistory": access.Read,
	},
	"ledgerd.payment.v1.PaymentService": {
		"PutGateway":       access.Admin,
		"ListGateways":     access.Read,
		"CreatePayment":    access.Write,
		"GetPayment":       access.Read,
		"ListPayments":     access.Read,
		"AskGateway":       access.Write,
		"HandleCallback":   access.Write,
		"ListNotices":      access.Read,
		"RefundPayment":    access.Write,
		"GetRefund":        access.Read,
		"ListTransactions": access.Read,
		"ListRefunds":      access.Read,
		"ListFlags":        access.Read,
		"ResolveFlag":      access.Write,
	},
	"ledgerd.sale.v1.SaleService": {
		"PutSale":      access.Admin,
		"GetSale":      access.Read,
		"ListSales":    access.Read,
		"Grab":         access.Write,
		"GrabMany":     access.Write,
		"IssueCoupons": access.Write,
		"ClaimCoupon":  access.Write,
		"RedeemCoupon": access.Write,
		"GetCoupon":    access.Read,
		"ListCoupons":  access.Read,
	},
	"ledgerd.stock.v1.StockService": {
		"PutItem":          access.Write,
		"GetItem":          access.Read,
		"ListItems":        access.Read,
		"Restock":          access.Write,
		"AdjustStock":      access.Write,
		"Unsell":           access.Write,
		"Reserve":          access.Write,
		"Deduct":           access.Write,
		"Confirm":          access.Write,
		"Cancel":           access.Write,
		"GetReservation":   access.Read,
		"ListReservations": access.Read,
	},
}

// adminService is the service whose calls an operator may make, and no others.
const adminService = adminv1connect.AdminServiceName

// byRequest has the permissions by the full name of the request: Execute and batches contain requests.
var byRequest = func() map[protoreflect.FullName]permission {
	all := map[protoreflect.FullName]permission{}
	for service, calls := range leastRoles {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
		if err != nil {
			panic(err) // a test would have found it
		}
		for name, role := range calls {
			request := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(name)).Input().FullName()
			all[request] = permission{operationName(service, name), role}
		}
	}
	return all
}()

// operationName is the name of the operation of a call: ledgerd.order.v1.OrderService/CreateOrder is
// order.create_order.
func operationName(service, call string) string {
	var b strings.Builder
	b.WriteString(strings.Split(service, ".")[1] + ".")
	for i, r := range call {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

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
	if role, ok := leastRoles[service][name]; ok {
		return permission{operationName(service, name), role}
	}
	return permission{role: access.Admin}
}
