// Package payment keeps payments of orders through gateways, and the gateways' notices. It owns the tables payment_*.
//
// A payment or refund has an instance of the machine "payment" or "refund", which has its number, its state and its
// lock. The instance of the order guards rows that all payments of an order share. internal/flow moves the order and
// the money. internal/payment/dispatch calls the gateways, from the table payment_calls.
package payment
