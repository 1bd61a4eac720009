package payment

import (
	"cmp"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/payment/internal/db"
)

// flushCalls schedules the close of payments of ended orders, and writes the last call that the batch schedules about
// each payment and refund. A scheduled close remains, unless the batch decides the payment.
func (tx *Tx) flushCalls(p *commit.Pipe) {
	tx.flushCloses(p)
	calls := slices.Clone(tx.calls)
	slices.SortStableFunc(calls, func(a, b dueCall) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.subject, b.subject),
			cmp.Compare(a.number, b.number))
	})
	var puts db.CallPutParams
	var ends db.CallDeleteParams
	for i, c := range calls {
		if i+1 < len(calls) && c.sameSubject(calls[i+1]) {
			continue // the batch's last call wins
		}
		if c.kind == "" {
			ends.Tenants, ends.Subjects = append(ends.Tenants, c.tenant), append(ends.Subjects, string(c.subject))
			ends.Numbers, ends.Calls = append(ends.Numbers, c.number), append(ends.Calls, string(c.only))
			continue
		}
		if c.kind != FlagUnknown && tx.ended(c) {
			c.kind, c.at, c.nonce, c.until = Close, tx.Now, 0, time.Time{}
		}
		puts.Tenants, puts.Subjects = append(puts.Tenants, c.tenant), append(puts.Subjects, string(c.subject))
		puts.Numbers, puts.Gateways = append(puts.Numbers, c.number), append(puts.Gateways, c.gateway)
		puts.Calls, puts.NextCallAt = append(puts.Calls, string(c.kind)), append(puts.NextCallAt, c.at)
		puts.LeaseNonces, puts.LeaseExpiresAt = append(puts.LeaseNonces, c.nonce), append(puts.LeaseExpiresAt, c.until)
	}
	if len(puts.Numbers) > 0 {
		p.Queue(func(d commit.DB) error { return q.CallPut(p.Context(), d, puts) })
	}
	if len(ends.Numbers) > 0 {
		p.Queue(func(d commit.DB) error {
			_, err := q.CallLock(p.Context(), d, db.CallLockParams{Tenants: ends.Tenants, Subjects: ends.Subjects,
				Numbers: ends.Numbers})
			return err
		})
		p.Queue(func(d commit.DB) error {
			_, err := q.CallDelete(p.Context(), d, ends)
			return err
		})
	}
}

// ended reports whether a call is about a payment that the batch has created, and whose order has ended since.
func (tx *Tx) ended(c dueCall) bool {
	k := Key{c.tenant, c.number}
	if c.subject != OfPayment {
		return false
	}
	r := tx.Payments.Wanted(k)
	return r != nil && r.Exists && !r.Found &&
		slices.Contains(tx.closes[tx.born[k]:], OrderKey{c.tenant, r.Value.OrderNo})
}

// flushCloses schedules the close of payments that existed before the batch.
func (tx *Tx) flushCloses(p *commit.Pipe) {
	if len(tx.closes) == 0 {
		return
	}
	arg := db.CallCloseParams{Now: tx.Now}
	for _, c := range tx.closes {
		arg.Tenants, arg.OrderNos = append(arg.Tenants, c.Tenant), append(arg.OrderNos, c.OrderNo)
	}
	p.Queue(func(d commit.DB) error {
		_, err := q.CallLockOfOrder(p.Context(), d,
			db.CallLockOfOrderParams{Tenants: arg.Tenants, OrderNos: arg.OrderNos})
		return err
	})
	p.Queue(func(d commit.DB) error {
		_, err := q.CallClose(p.Context(), d, arg)
		return err
	})
}
