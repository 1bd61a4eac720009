package sale

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/sale/internal/db"
)

// Tx holds the sales of one batch's transaction. Grabs only read them, as they are committed.
type Tx struct {
	sales
	*Memory
	puts map[Key]bool // sales to change: locked
}

type sales = commit.Rows[Key, Sale]

// Row is a sale in a batch, and a command's handle of it.
type Row = commit.Row[Key, Sale]

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, Sale](compare)
)

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction, which uses and corrects a memory.
func NewTx(m *Memory) *Tx { return &Tx{sales: table.Rows(), Memory: m, puts: map[Key]bool{}} }

// NameConstraints returns the unique constraints on names that callers choose.
func NameConstraints() []string { return []string{"sale_sales_pkey"} }

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Sale, b.Sale))
}

// Latch owns the sales that are changed. Those of grabs are not latched: all grabs of a sale would wait for each other.
func (tx *Tx) Latch(l *commit.LatchKeys) {
	for k := range tx.puts {
		l.Own(table.Hash(k))
	}
}

// CanOverlap is true for batches that only read sales.
func (tx *Tx) CanOverlap() bool { return len(tx.puts) == 0 }

// Lock locks the sales that are changed.
func (tx *Tx) Lock(p *commit.Pipe) {
	rows, arg := tx.chosen(true)
	if len(rows) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.SaleLock(p.Context(), d, db.SaleLockParams(arg))
		for i := range found {
			if err := tx.load(rows, db.SaleLookupRow(found[i])); err != nil {
				return err
			}
		}
		return err
	})
}

// Lookup reads the others.
func (tx *Tx) Lookup(p *commit.Pipe) {
	rows, arg := tx.chosen(false)
	if len(rows) == 0 {
		return
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.SaleLookup(p.Context(), d, arg)
		for i := range found {
			if err := tx.load(rows, found[i]); err != nil {
				return err
			}
		}
		return err
	})
}

// chosen returns the sales that are changed, or those that are not.
func (tx *Tx) chosen(changed bool) (rows []*Row, arg db.SaleLookupParams) {
	for _, r := range tx.Sorted() {
		if tx.puts[r.Key] == changed {
			rows = append(rows, r)
			arg.Tenants, arg.Sales = append(arg.Tenants, r.Key.Tenant), append(arg.Sales, r.Key.Sale)
		}
	}
	return rows, arg
}

func (tx *Tx) load(rows []*Row, f db.SaleLookupRow) error {
	s, err := saleOf(db.SalePageRow{Item: f.Item, Asset: f.Asset, Amount: f.Amount, Payee: f.Payee,
		PayWithinMs: f.PayWithinMs, Machine: f.Machine, Campaign: f.Campaign, CouponLifeMs: f.CouponLifeMs,
		Metadata: f.Metadata, PerBuyer: f.PerBuyer, Once: f.Once, OpensAt: f.OpensAt, ClosesAt: f.ClosesAt})
	if err != nil {
		return err
	}
	r := rows[f.N-1]
	tx.Load(r, s)
	tx.learn(r.Key, s)
	return nil
}

// saleOf converts a row to a sale.
func saleOf(r db.SalePageRow) (Sale, error) {
	s := Sale{Item: r.Item, PerBuyer: int32(r.PerBuyer), Once: r.Once, OpensAt: pg.OrZero(r.OpensAt),
		ClosesAt: pg.OrZero(r.ClosesAt)}
	if r.Campaign == nil {
		s.Order = &Order{Asset: pg.OrZero(r.Asset), Amount: pg.OrZero(r.Amount), Payee: pg.OrZero(r.Payee),
			PayWithin: pg.Milliseconds(pg.OrZero(r.PayWithinMs)), Machine: pg.OrZero(r.Machine)}
		return s, nil
	}
	s.Coupon = &Coupon{Campaign: *r.Campaign, Life: pg.Milliseconds(pg.OrZero(r.CouponLifeMs))}
	if r.Metadata != nil {
		if err := json.Unmarshal(r.Metadata, &s.Coupon.Metadata); err != nil {
			return s, fmt.Errorf("read a sale: %w", err)
		}
	}
	return s, nil
}

// Flush writes the changed sales.
func (tx *Tx) Flush(p *commit.Pipe) {
	for _, rows := range [][]*Row{tx.Fresh(), tx.Changed()} {
		for _, r := range rows {
			s := &r.Value
			arg := db.SalePutParams{TenantID: r.Key.Tenant, Sale: r.Key.Sale, Item: s.Item, PerBuyer: int16(s.PerBuyer),
				Once: s.Once, OpensAt: s.OpensAt, ClosesAt: s.ClosesAt, Principal: s.caller.Principal,
				RequestID: s.caller.RequestID, Now: tx.Now}
			if o := s.Order; o != nil {
				arg.Asset, arg.Amount, arg.Payee, arg.Machine = o.Asset, o.Amount, o.Payee, o.Machine
				arg.PayWithinMs = o.PayWithin.Milliseconds()
			}
			if c := s.Coupon; c != nil {
				arg.Campaign, arg.CouponLifeMs, arg.Metadata = c.Campaign, c.Life.Milliseconds(), pg.JSON(c.Metadata)
			}
			p.Queue(func(d commit.DB) error { return q.SalePut(p.Context(), d, arg) })
		}
	}
}

// MustExist returns the sale of a row. Returns fault SALE_NOT_FOUND.
func MustExist(r *Row) (*Sale, error) {
	if !r.Exists {
		return nil, notFound(r.Key)
	}
	return &r.Value, nil
}

// WantPut names a sale to change.
func (tx *Tx) WantPut(k Key) *Row {
	tx.puts[k] = true
	return tx.Want(k)
}

// Put creates or changes a sale named with WantPut. It returns false if that changes nothing.
func (tx *Tx) Put(r *Row, c commit.Caller, s Sale) bool {
	if r.Exists && r.Value.Equal(&s) {
		return false
	}
	s.caller = c
	*tx.Change(r) = s
	return true
}
