// Package payment keeps payments of orders through gateways, and what the gateways said. It owns the tables payment_*.
//
// The state of a payment or a refund is that of an instance of the machine "payment" or "refund" with its number. That
// instance is also its lock; the instance of the order guards rows that all payments of an order share. internal/flow
// moves the order and the money. internal/payment/dispatch calls the gateways, from the table payment_calls.
package payment
