// Package book is the state of the simulated payment gateways: payments, transactions, refunds, and notices to
// merchants. It is independent of the vendors' protocols: a Dialect writes and signs the notices.
//
// Guarantees: a change is in the journal before any caller sees it, so that a kill of the process loses no change; a
// key has one payment or refund; the refunds of a transaction never exceed its amount.
//
// A Plan defines how the payer acts, how notices are lost, delayed, repeated or forged, and how calls of the API fail.
package book
