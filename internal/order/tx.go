package order

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/order/internal/db"
	"github.com/ledgerd/ledgerd/internal/pg"
)

// Tx holds the orders of one batch's transaction. Commands name orders with Want, read them, and Create new ones.
type Tx struct {
	orders
	ofPayments []ofPayment
}

// ofPayment looks for an order by the number of its payment.
type ofPayment struct {
	tenant     int32
	outTradeNo string
	found      func(*Order)
}

type orders = commit.Rows[Key, Order]

// Row is an order in a batch, and a command's handle of it.
type Row = commit.Row[Key, Order]

var (
	q     db.Queries
	table = commit.NewKeyOrder[Key, Order](compare)
)

var _ commit.Participant = (*Tx)(nil)

// NewTx returns an empty transaction.
func NewTx() *Tx { return &Tx{orders: table.Rows()} }

// NameConstraints returns the unique constraints on names that callers choose.
func NameConstraints() []string { return []string{"order_orders_pkey"} }

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.OrderNo, b.OrderNo))
}

// CanOverlap is true because commands see only the orders that they name, which never change. The unique constraint
// detects an order that another process inserts.
func (tx *Tx) CanOverlap() bool { return true }

// WantOfPayment names the order of a payment. If there is one, found is called with it before any row is locked, and
// may name further rows. An order that is committed later makes the command run again.
func (tx *Tx) WantOfPayment(tenant int32, outTradeNo string, found func(*Order)) {
	tx.ofPayments = append(tx.ofPayments, ofPayment{tenant, outTradeNo, found})
}

// Discover finds the orders of payments. Neither ever changes.
func (tx *Tx) Discover(p *commit.Pipe) {
	if len(tx.ofPayments) == 0 {
		return
	}
	var arg db.OrderOfPaymentParams
	for _, x := range tx.ofPayments {
		arg.Tenants, arg.OutTradeNos = append(arg.Tenants, x.tenant), append(arg.OutTradeNos, x.outTradeNo)
	}
	p.Queue(func(d commit.DB) error {
		rows, err := q.OrderOfPayment(p.Context(), d, arg)
		for i := range rows {
			f := &rows[i]
			x := tx.ofPayments[f.N-1]
			r := tx.Want(Key{x.tenant, f.OrderNo})
			if !r.Found {
				if err := tx.read(r, db.OrderLookupRow(*f)); err != nil {
					return err
				}
			}
			x.found(&r.Value)
		}
		return err
	})
}

// Lock locks nothing.
func (tx *Tx) Lock(*commit.Pipe) {}

// Lookup reads the named orders, but for those that Discover has found.
func (tx *Tx) Lookup(p *commit.Pipe) {
	rows := slices.DeleteFunc(tx.Sorted(), func(r *Row) bool { return r.Found })
	if len(rows) == 0 {
		return
	}
	var arg db.OrderLookupParams
	for _, r := range rows {
		arg.Tenants, arg.OrderNos = append(arg.Tenants, r.Key.Tenant), append(arg.OrderNos, r.Key.OrderNo)
	}
	p.Queue(func(d commit.DB) error {
		found, err := q.OrderLookup(p.Context(), d, arg)
		for i := range found {
			if err := tx.read(rows[found[i].N-1], found[i]); err != nil {
				return err
			}
		}
		return err
	})
}

func (tx *Tx) read(r *Row, f db.OrderLookupRow) error {
	o, err := read(r.Key, f)
	if err != nil {
		return err
	}
	tx.Load(r, o)
	return nil
}

// read converts a row to an order.
func read(k Key, r db.OrderLookupRow) (Order, error) {
	scale := uint8(r.Scale)
	o := Order{Key: k, ID: r.OrderID, Scale: scale, Life: pg.Milliseconds(pg.OrZero(r.LifeMs)), Principal: r.Principal,
		RequestID: r.RequestID, CreatedAt: r.CreatedAt,
		Facts: Facts{Machine: r.Machine, Subject: r.Subject, Asset: r.Asset,
			Amount: amount.NewDecimal(r.Amount, scale), Payee: pg.OrZero(r.Payee),
			PayWithin: pg.Milliseconds(pg.OrZero(r.PayWithinMs)), Reserve: r.Reserve, Coupon: pg.OrZero(r.Coupon)}}
	if r.Sale != nil {
		o.Sale = &Sale{*r.Sale, int32(pg.OrZero(r.SaleUnit)), r.Once}
	}
	if r.BalanceAccount != nil {
		o.Balance = &Balance{*r.BalanceAccount, amount.NewDecimal(*r.BalanceAmount, scale)}
	}
	if r.PurchaseLifeMs != nil {
		o.Purchase = &Purchase{Life: pg.Milliseconds(pg.OrZero(r.PurchaseLifeMs))}
		if err := pg.FromJSON(r.PurchaseParts, &o.Purchase.Parts); err != nil {
			return o, err
		}
	}
	if err := pg.FromJSON(r.Lines, &o.Lines); err != nil {
		return o, err
	}
	if err := pg.FromJSON(r.ExpiryMessages, &o.ExpiryMessages); err != nil {
		return o, err
	}
	return o, pg.FromJSON(r.Metadata, &o.Metadata)
}

// encode is the stored form of a list or a map. Empty is null.
func encode[T any](n int, v T) []byte {
	if n == 0 {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // texts and numbers always encode
	}
	return text
}

// Create makes an order, in a row that does not exist. Its amounts have at most the decimals of its scale.
func (tx *Tx) Create(r *Row, o Order) *Order {
	o.Key, o.CreatedAt = r.Key, tx.Now
	*tx.Change(r) = o
	return &r.Value
}

// Flush inserts the new orders.
func (tx *Tx) Flush(p *commit.Pipe) {
	rows := tx.Fresh()
	if len(rows) == 0 {
		return
	}
	arg := db.OrderInsertParams{Now: tx.Now}
	for _, r := range rows {
		o := &r.Value
		minor := func(d amount.Decimal) amount.Int {
			n, err := d.Minor(o.Scale)
			if err != nil {
				panic(err) // checked by the command that made the order
			}
			return n
		}
		account, paid := "", amount.Int{}
		if o.Balance != nil {
			account, paid = o.Balance.Account, minor(o.Balance.Amount)
		}
		var parts []byte
		life := int64(0)
		if x := o.Purchase; x != nil {
			parts, life = encode(len(x.Parts), x.Parts), x.Life.Milliseconds()
		}
		arg.Tenants, arg.OrderNos = append(arg.Tenants, r.Key.Tenant), append(arg.OrderNos, r.Key.OrderNo)
		arg.OrderIds, arg.Machines = append(arg.OrderIds, o.ID), append(arg.Machines, o.Machine)
		arg.Subjects, arg.Assets = append(arg.Subjects, o.Subject), append(arg.Assets, o.Asset)
		arg.Scales, arg.Amounts = append(arg.Scales, int16(o.Scale)), append(arg.Amounts, minor(o.Amount))
		arg.Lines, arg.Payees = append(arg.Lines, encode(len(o.Lines), o.Lines)), append(arg.Payees, o.Payee)
		arg.PayWithinMs = append(arg.PayWithinMs, o.PayWithin.Milliseconds())
		arg.LifeMs, arg.Reserve = append(arg.LifeMs, o.Life.Milliseconds()), append(arg.Reserve, o.Reserve)
		arg.BalanceAccounts, arg.BalanceAmounts = append(arg.BalanceAccounts, account), append(arg.BalanceAmounts, paid)
		arg.PurchaseParts, arg.PurchaseLifeMs = append(arg.PurchaseParts, parts), append(arg.PurchaseLifeMs, life)
		arg.Metadata = append(arg.Metadata, encode(len(o.Metadata), o.Metadata))
		won := pg.OrZero(o.Sale)
		arg.Coupons, arg.Sales = append(arg.Coupons, o.Coupon), append(arg.Sales, won.Sale)
		arg.SaleUnits, arg.Once = append(arg.SaleUnits, int16(won.Unit)), append(arg.Once, won.Once)
		arg.ExpiryMessages = append(arg.ExpiryMessages, encode(len(o.ExpiryMessages), o.ExpiryMessages))
		arg.SubmitTokens = append(arg.SubmitTokens, o.SubmitToken)
		arg.Principals, arg.RequestIds = append(arg.Principals, o.Principal), append(arg.RequestIds, o.RequestID)
	}
	p.Queue(func(d commit.DB) error { return q.OrderInsert(p.Context(), d, arg) })
}

// MustExist returns the order of a row. Returns fault ORDER_NOT_FOUND.
func MustExist(r *Row) (*Order, error) {
	if !r.Exists {
		return nil, notFound(r.Key)
	}
	return &r.Value, nil
}
