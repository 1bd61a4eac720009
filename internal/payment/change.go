package payment

import (
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
)

// Put creates or changes a gateway named with WantPut. It returns false if nothing changes.
func (tx *Tx) Put(r *GatewayRow, c commit.Caller, g Gateway) bool {
	if r.Exists && r.Value == g {
		return false
	}
	*tx.Gateways.Change(r) = g
	tx.writer[r.Key] = c
	return true
}

// Create makes a payment, in a row that does not exist.
func (tx *Tx) Create(r *Row, p Payment) *Payment {
	p.Key, p.CreatedAt = r.Key, tx.Now
	tx.born[r.Key] = len(tx.closes)
	v := tx.Payments.Change(r)
	*v = p
	return v
}

// Change returns the mutable fields of a payment, for modification.
func (tx *Tx) Change(r *Row) *Progress { return &tx.Payments.Change(r).Progress }

// Record stores a notice with its effect, under a new id.
func (tx *Tx) Record(r *NoticeRow, s *Received, v Effect, detail, requestID string) (id int64) {
	id = tx.ID()
	*tx.Notices.Change(r) = Recorded{id, v, s.Report(), s, detail, requestID}
	return id
}

// AddName records another name of a notice, which this batch or an earlier one has recorded. The row must not exist.
func (tx *Tx) AddName(r *NoticeRow, id int64) { *tx.Notices.Change(r) = Recorded{ID: id} }

// RecordTransaction records a transaction. Later commands of the batch see no ExtraRefunded from before: it is loaded
// only with stored transactions.
func (tx *Tx) RecordTransaction(r *TransactionRow, t Transaction) { *tx.Transactions.Change(r) = t }

// CreateRefund records a refund, in a row that does not exist.
func (tx *Tx) CreateRefund(r *RefundRow, x Refund) *Refund {
	x.RefundKey, x.CreatedAt = r.Key, tx.Now
	v := tx.Refunds.Change(r)
	*v = x
	return v
}

// Raise raises a flag, and returns its id.
func (tx *Tx) Raise(tenant int32, f Flag) int64 {
	id := tx.ID()
	f.CreatedAt = tx.Now
	tx.Flags.Add(FlagKey{tenant, id}, f)
	return id
}

// ResolveFlag resolves an open flag.
func (tx *Tx) ResolveFlag(r *FlagRow, x Resolved) *Flag {
	x.At = tx.Now
	v := tx.Flags.Change(r)
	v.Resolved = x
	return v
}

// ReopenFlag opens a resolved flag again.
func (tx *Tx) ReopenFlag(r *FlagRow) { tx.Flags.Change(r).Resolved = Resolved{} }

// CallPayment schedules a call about a payment, after a time.
func (tx *Tx) CallPayment(k Key, gateway string, kind CallKind, after time.Duration) {
	tx.calls = append(tx.calls, dueCall{tenant: k.Tenant, subject: OfPayment, number: k.OutTradeNo, gateway: gateway,
		kind: kind, at: tx.Now.Add(after)})
}

// CallRefund schedules a call about a refund, after a time.
func (tx *Tx) CallRefund(k RefundKey, gateway string, kind CallKind, after time.Duration) {
	tx.calls = append(tx.calls, dueCall{tenant: k.Tenant, subject: OfRefund, number: k.RefundNo, gateway: gateway,
		kind: kind, at: tx.Now.Add(after)})
}

// Lease leases the call that was scheduled last to the caller of the command, which makes the call after the commit.
// With a lease of 0 a worker makes the call, and Lease returns nil.
func (tx *Tx) Lease(d time.Duration) *Leased {
	if d == 0 {
		return nil
	}
	c := &tx.calls[len(tx.calls)-1]
	c.nonce, c.until = newNonce(), tx.Now.Add(d)
	return &Leased{Subject: c.subject, Number: c.number, Kind: c.kind, Attempts: 1, tenant: c.tenant, nonce: c.nonce}
}

// EndCalls deletes the scheduled calls about a payment that has ended.
func (tx *Tx) EndCalls(k Key) {
	tx.calls = append(tx.calls, dueCall{tenant: k.Tenant, subject: OfPayment, number: k.OutTradeNo})
}

// EndFlagUnknown deletes the scheduled FlagUnknown of a payment, unless this batch records another notice without a
// payment. A call that this batch has scheduled remains.
func (tx *Tx) EndFlagUnknown(k Key) {
	c := dueCall{tenant: k.Tenant, subject: OfPayment, number: k.OutTradeNo, only: FlagUnknown}
	more := slices.ContainsFunc(tx.Notices.Fresh(), func(r *NoticeRow) bool {
		v := &r.Value
		return r.Key.Tenant == k.Tenant && v.Effect == EffectUnmatched && v.received != nil &&
			v.received.OutTradeNo == k.OutTradeNo
	})
	if !more && !slices.ContainsFunc(tx.calls, c.sameSubject) {
		tx.calls = append(tx.calls, c)
	}
}

// EndRefundCalls ends the calls about a refund.
func (tx *Tx) EndRefundCalls(k RefundKey) {
	tx.calls = append(tx.calls, dueCall{tenant: k.Tenant, subject: OfRefund, number: k.RefundNo})
}

// CloseAll schedules calls that close the open payments of an ended order. The command holds the instance of the order.
// It closes no payment that the batch decides, and none that a later command creates after reopening the order.
func (tx *Tx) CloseAll(k OrderKey) { tx.closes = append(tx.closes, k) }
