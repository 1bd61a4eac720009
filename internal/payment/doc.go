// Package payment keeps payments of orders through gateways, and what the gateways said. It owns the tables payment_*.
//
// The state of a payment or a refund is that of an instance of the machine "payment" or "refund" with its number; that
// instance is its lock too, and the instance of the order guards what concerns all payments of one order. What a payment
// does to its order and to the ledger is the work of internal/flow; calls to gateways are made by
// internal/payment/dispatch, from the table payment_calls.
package payment
