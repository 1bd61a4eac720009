package machine

import "time"

// Names of the shipped machines.
const (
	OrderMachine       = "order"
	SimpleOrderMachine = "simple_order"
	// CouponMachine is the machine of coupons. Only flows move its instances, and tenants cannot define it.
	CouponMachine = "coupon"
	// PaymentMachine and RefundMachine are the machines of payments through gateways and of their refunds. Only flows
	// move their instances, and tenants cannot define them.
	PaymentMachine = "payment"
	RefundMachine  = "refund"
)

// Own reports whether only flows create and move the instances of a machine.
func Own(name string) bool {
	return name == CouponMachine || name == PaymentMachine || name == RefundMachine
}

// Shipped are the machines that come with the service. A tenant gets one when it first creates an instance of it, and
// may define other versions.
var Shipped = map[string]*Definition{
	OrderMachine: {
		States: []State{
			{Name: "awaiting_payment", Label: "awaiting payment", Initial: true, Timer: unpaid("cancelled")},
			{Name: "paid", Parts: ConfirmParts},
			{Name: "cancelled", Parts: CancelParts},
			{Name: "awaiting_shipment", Label: "awaiting shipment"},
			{Name: "shipped"},
			{Name: "completed"},
			{Name: "reviewed"},
			{Name: "refunding"},
			{Name: "refunded"},
		},
		Moves: []Allowed{
			{From: []string{"awaiting_payment"}, To: "paid", Publish: "order.paid"},
			{From: []string{"awaiting_payment"}, To: "cancelled", By: []Actor{ByCaller, ByTimer},
				Publish: "order.cancelled"},
			{From: []string{"paid"}, To: "awaiting_shipment"},
			{From: []string{"awaiting_shipment"}, To: "shipped", Publish: "order.shipped"},
			{From: []string{"shipped"}, To: "completed", Publish: "order.completed"},
			{From: []string{"completed"}, To: "reviewed"},
			{From: []string{"paid", "awaiting_shipment", "shipped", "completed"}, To: "refunding",
				Publish: "order.refunding"},
			{From: []string{"refunding"}, To: "refunded", Publish: "order.refunded"},
			{From: []string{"refunding"}, Back: true},
		},
	},
	SimpleOrderMachine: {
		States: []State{
			{Name: "pending", Initial: true, Timer: unpaid("expired")},
			{Name: "paid", Parts: ConfirmParts},
			{Name: "expired", Parts: CancelParts},
			{Name: "cancelled", Parts: CancelParts},
		},
		Moves: []Allowed{
			{From: []string{"pending"}, To: "paid", Publish: "order.paid"},
			{From: []string{"pending"}, To: "expired", By: []Actor{ByTimer}, Publish: "order.expired"},
			{From: []string{"pending"}, To: "cancelled", Publish: "order.cancelled"},
		},
	},
	CouponMachine: {
		States: []State{
			{Name: CouponUnclaimed, Initial: true, Timer: unused()},
			{Name: CouponClaimed, Timer: unused()},
			{Name: CouponLocked},
			{Name: CouponUsed},
			{Name: CouponExpired},
		},
		Moves: []Allowed{
			{From: []string{CouponUnclaimed, CouponLocked}, To: CouponClaimed, By: []Actor{ByFlow}},
			{From: []string{CouponClaimed}, To: CouponLocked, By: []Actor{ByFlow}},
			{From: []string{CouponClaimed, CouponLocked}, To: CouponUsed, By: []Actor{ByFlow}},
			{From: []string{CouponUnclaimed, CouponClaimed}, To: CouponExpired, By: []Actor{ByTimer}},
		},
	},
	// PaymentDeclined is not final: the payer may try again. Nor is PaymentClosed: money may still arrive, late if the
	// order has ended.
	PaymentMachine: {
		States: []State{
			{Name: PaymentCreated, Initial: true},
			{Name: PaymentSubmitted},
			{Name: PaymentDeclined},
			{Name: PaymentSucceeded},
			{Name: PaymentClosed},
			{Name: PaymentLate},
			{Name: PaymentSuspended},
			{Name: PaymentUnexpected},
		},
		Moves: []Allowed{
			{From: []string{PaymentCreated, PaymentDeclined}, To: PaymentSubmitted, By: []Actor{ByFlow}},
			{From: []string{PaymentCreated, PaymentSubmitted}, To: PaymentDeclined, By: []Actor{ByFlow},
				Publish: "payment.declined"},
			{From: []string{PaymentCreated, PaymentSubmitted, PaymentDeclined, PaymentSuspended, PaymentClosed},
				To: PaymentSucceeded, By: []Actor{ByFlow}, Publish: "payment.succeeded"},
			{From: []string{PaymentCreated, PaymentSubmitted, PaymentDeclined}, To: PaymentClosed,
				By: []Actor{ByFlow}},
			{From: []string{PaymentCreated, PaymentSubmitted, PaymentDeclined, PaymentClosed,
				PaymentUnexpected}, To: PaymentLate, By: []Actor{ByFlow}, Publish: "payment.late"},
			{From: []string{PaymentCreated, PaymentSubmitted, PaymentDeclined, PaymentClosed},
				To: PaymentSuspended, By: []Actor{ByFlow}, Publish: "payment.suspended"},
			{From: []string{PaymentCreated}, To: PaymentUnexpected, By: []Actor{ByFlow}},
			{From: []string{PaymentUnexpected}, To: PaymentCreated, By: []Actor{ByFlow}},
		},
	},
	RefundMachine: {
		States: []State{
			{Name: RefundRequested, Initial: true},
			{Name: RefundSubmitted},
			{Name: RefundSucceeded},
			{Name: RefundFailed},
			{Name: RefundAbnormal},
		},
		Moves: []Allowed{
			{From: []string{RefundRequested}, To: RefundSubmitted, By: []Actor{ByFlow}},
			{From: []string{RefundRequested, RefundSubmitted, RefundAbnormal}, To: RefundSucceeded, By: []Actor{ByFlow},
				Publish: "refund.succeeded"},
			{From: []string{RefundRequested, RefundSubmitted, RefundAbnormal}, To: RefundFailed, By: []Actor{ByFlow},
				Publish: "refund.failed"},
			{From: []string{RefundRequested, RefundSubmitted}, To: RefundAbnormal, By: []Actor{ByFlow},
				Publish: "refund.abnormal"},
		},
	},
}

// States of payments.
const (
	PaymentCreated    = "created"
	PaymentSubmitted  = "submitted"
	PaymentDeclined   = "declined"
	PaymentSucceeded  = "succeeded"
	PaymentClosed     = "closed"
	PaymentLate       = "late"
	PaymentSuspended  = "suspended"
	PaymentUnexpected = "unexpected"
)

// States of refunds.
const (
	RefundRequested = "requested"
	RefundSubmitted = "submitted"
	RefundSucceeded = "succeeded"
	RefundFailed    = "failed"
	RefundAbnormal  = "abnormal"
)

// States of coupons.
const (
	CouponUnclaimed = "unclaimed"
	CouponClaimed   = "claimed"
	CouponLocked    = "locked"
	CouponUsed      = "used"
	CouponExpired   = "expired"
)

// UnpaidFor is how long an order of a shipped machine may stay unpaid, unless its creator says otherwise.
const UnpaidFor = 30 * time.Minute

func unpaid(to string) *Timer {
	return &Timer{AfterMs: UnpaidFor.Milliseconds(), To: to, Reason: "timeout"}
}

// unused is the timer of an unused coupon. Its issuer sets the time; it is MaxTime at most.
func unused() *Timer {
	return &Timer{AfterMs: MaxTime.Milliseconds(), To: CouponExpired, Reason: "timeout"}
}
