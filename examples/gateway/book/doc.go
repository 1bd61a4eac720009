// Package book is what a payment gateway remembers: payments, transactions, refunds, and the notices that it owes its
// merchants. It knows nothing of any vendor's protocol: a Dialect writes and signs the notices.
//
// Promises: a change is in the journal before any caller learns of it, so that a kill of the process loses none; a
// payment is made once per key, a refund once per number; never is more given back than a transaction brought.
//
// Fate is part of the book: a Plan says how the payer acts, how notices go astray, and how calls of the API fail.
package book
