package payment

import (
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reasons of payments.
var (
	NotFound = fault.Register(fault.Reason{Name: "PAYMENT_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no payment with this out_trade_no."})
	ExistsDifferent = fault.Register(fault.Reason{Name: "PAYMENT_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The order has an open payment with this gateway and pay type, under another out_trade_no: " +
			"the metadata has it. Close that payment first, or use it."})
	NumberTaken = fault.Register(fault.Reason{Name: "OUT_TRADE_NO_TAKEN", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "Another payment has this out_trade_no. Choose another one."})
	NotPayable = fault.Register(fault.Reason{Name: "ORDER_NOT_PAYABLE", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The order is in a state in which it cannot be paid, such as cancelled, or nothing remains to be paid: " +
			"the metadata has its state."})
	GatewayNotFound = fault.Register(fault.Reason{Name: "GATEWAY_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such gateway: create it with PutGateway."})
	GatewayNotConfigured = fault.Register(fault.Reason{Name: "GATEWAY_NOT_CONFIGURED", Class: fault.BadRequest,
		Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "This server has no settings of the gateway for this tenant: start it with --pay."})
	GatewayUnavailable = fault.Register(fault.Reason{Name: "GATEWAY_UNAVAILABLE", Class: fault.System,
		Code: fault.Unavailable, Step: fault.RetrySameKey,
		Doc: "The gateway did not answer in time, or refused the call: the metadata has the code. " +
			"The state of the payment is unchanged."})
	Forged = fault.Register(fault.Reason{Name: "CALLBACK_FORGED", Class: fault.BadRequest, Code: fault.PermissionDenied,
		Step: fault.Fix,
		Doc:  "The callback has no valid signature of the gateway, or is too old. It was not stored."})
	Unreadable = fault.Register(fault.Reason{Name: "CALLBACK_UNREADABLE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The callback is signed by the gateway, but not in the gateway's format."})
	RefundNotFound = fault.Register(fault.Reason{Name: "REFUND_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no refund with this refund_no."})
	NotPaid = fault.Register(fault.Reason{Name: "PAYMENT_NOT_PAID", Class: fault.Refusal,
		Code: fault.FailedPrecondition,
		Step: fault.NewKey,
		Doc:  "The payment is not paid, so nothing can be refunded: the metadata has its state."})
	RefundExistsDifferent = fault.Register(fault.Reason{Name: "REFUND_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The refund_no is already used with other content: the metadata lists the fields that differ. " +
			"Or a refund made in the gateway's console uses this number: audit.console_refunds has it."})
	RefundExceedsPaid = fault.Register(fault.Reason{Name: "REFUND_EXCEEDS_PAID", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The amount exceeds the paid amount less its succeeded and pending refunds: the metadata has the " +
			"remaining amount. Refunds made in the gateway's console are subtracted too (FLAG_KIND_UNKNOWN_REFUND)."})
	FlagNotFound = fault.Register(fault.Reason{Name: "FLAG_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no such flag."})
	FlagResolved = fault.Register(fault.Reason{Name: "FLAG_RESOLVED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The flag was already resolved, with another resolution, account or refund_no: " +
			"the metadata has the resolution, its principal and its time. Nothing was written."})
)

// MustExist returns the payment of a row. Returns fault PAYMENT_NOT_FOUND.
func MustExist(r *Row) (*Payment, error) {
	if !r.Exists {
		return nil, notFound(r.Key)
	}
	return &r.Value, nil
}

func notFound(k Key) error {
	return NotFound.New("there is no payment %s", k.OutTradeNo).With("out_trade_no", k.OutTradeNo).
		WithField("out_trade_no", "must be the number of a payment that exists")
}

// GatewayMustExist returns the gateway of a row. Returns fault GATEWAY_NOT_FOUND.
func GatewayMustExist(r *GatewayRow) (*Gateway, error) {
	if !r.Exists {
		return nil, GatewayNotFound.New("there is no gateway %s", r.Key.Gateway).With("gateway", r.Key.Gateway).
			WithField("gateway", "must be a gateway that exists")
	}
	return &r.Value, nil
}

// Differs is the fault for a number that is used with other content.
func (r *Refund) Differs(fields []string) error {
	return RefundExistsDifferent.New("the refund_no %s is already used", r.RefundNo).Differing(fields, "refund_no").
		With("refund_no", r.RefundNo).With("first_id", r.ID)
}

// IsConsoleRefund is the fault for the number of a console refund: its gateway would not give money back again.
func IsConsoleRefund(number string) error {
	const problem = "is used by a refund made in the gateway's console (audit.console_refunds): choose another number"
	return RefundExistsDifferent.New("refund_no: %s", problem).With("refund_no", number).With("differs", "refund_no").
		WithField("refund_no", problem)
}
