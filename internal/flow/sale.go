package flow

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/audit"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/order"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// PutSale creates or changes a sale. Its answer is a sale.Named, or a commit.Repeat of it.
type PutSale struct {
	commit.Caller
	sale.Named

	row     *sale.Row
	item    *stock.Look
	machine *machine.Look
}

// Need names the sale, its item, and the asset and machine of its orders.
func (c *PutSale) Need(tx *Tx) {
	audits.of(tx)
	c.row = tx.Sales().WantPut(c.Key)
	c.item = tx.Stock().Look(c.Key.Tenant, c.Item)
	if c.Order != nil {
		tx.Ledger().SeeAsset(c.Key.Tenant, c.Order.Asset)
		if c.Order.Payee != "" {
			tx.Ledger().SeeAccount(c.Key.Tenant, c.Order.Payee, c.Order.Asset)
		}
		c.machine = tx.Machines().Look(machine.Name{Tenant: c.Key.Tenant, Machine: c.Order.Machine})
	}
}

// Apply stores the sale. Returns faults ITEM_NOT_FOUND, ASSET_NOT_FOUND, ACCOUNT_NOT_FOUND, MACHINE_NOT_FOUND,
// FIELD_INVALID.
func (c *PutSale) Apply(tx *Tx) (any, error) {
	if err := c.item.Exists(); err != nil {
		return nil, fault.In("sale.", err)
	}
	if o := c.Order; o != nil {
		scale, err := tx.Ledger().Decimals(c.Key.Tenant, o.Asset)
		if err != nil {
			return nil, fault.In("sale.order.", err)
		}
		f := factsOf(o)
		if err = f.CheckDecimals(scale); err == nil && o.Payee != "" {
			err = tx.Ledger().MustExist(c.Key.Tenant, o.Payee, o.Asset, "payee")
		}
		if err == nil {
			err = c.checkMachine(tx, &f)
		}
		if err != nil {
			return nil, fault.In("sale.order.", err)
		}
		if o.Amount, err = atScale(f.Amount, scale); err != nil {
			return nil, err
		}
	}
	if c.row.Exists && (c.Order == nil) != (c.row.Value.Order == nil) {
		return nil, fault.InvalidField("sale.sale", "must not change from orders to coupons, or back: "+
			"create a sale with another name")
	}
	change := audit.Change{Kind: audit.Sale, Name: c.Key.Sale, After: c.Sale.Settings()}
	if c.row.Exists {
		change.Before = c.row.Value.Settings()
	}
	if !tx.Sales().Put(c.row, c.Caller, c.Sale) {
		return commit.Repeat{First: c.Named}, nil
	}
	return c.Named, audits.of(tx).Add(c.Caller, change)
}

// atScale writes an amount with the decimals of its asset.
func atScale(d amount.Decimal, scale uint8) (string, error) {
	minor, err := d.Minor(scale)
	return amount.Format(minor, scale), err
}

// checkMachine checks that orders of the sale can be created, as the machine is now.
func (c *PutSale) checkMachine(tx *Tx, f *order.Facts) error {
	first, err := c.machine.First(tx.Machines())
	switch {
	case err != nil:
		return err
	case f.PayWithin > 0 && first.Timer == 0:
		return fault.InvalidField("pay_within", "must not be set: the machine's first state has no timer")
	case f.PaidAtOnce():
		return paidAtOnce(first.Confirms)
	}
	return reservable(cmp.Or(f.PayWithin, first.Timer), first.TimerTo == machine.CancelParts)
}

// factsOf are the facts of the orders that a sale gives.
func factsOf(o *sale.Order) order.Facts {
	n, _ := amount.ParseDecimal(o.Amount) // was parsed before it was stored
	return order.Facts{Machine: o.Machine, Asset: o.Asset, Amount: n, Payee: o.Payee, PayWithin: o.PayWithin}
}

// Grab gives a buyer a unit of a sale. Its answer is a Grabbed.
type Grab struct {
	commit.Caller
	Sale  string
	Buyer string
	Unit  int32 // of the buyer, from 1
	// OrderNo is a number for the order, and Renumber makes another if it is taken.
	OrderNo   string
	Renumber  func() (string, error)
	NumberErr error // why no number could be made; nil: one was
	// SubmitToken is the SHA-256 of the submit token of the call. Nil: none.
	SubmitToken []byte
	Code        string // for the coupon

	consequences
	row  *sale.Row
	sale sale.Sale // as Need expected it
	// found is the sale as an earlier attempt found it: perhaps changed by another command of the batch.
	found *sale.Sale
	item  *stock.Look
	// mayWin: the rows that a winner needs are named. Grabs of an item that was last seen without units skip them.
	mayWin   bool
	order    *CreateOrder
	coupon   *coupon.Row
	instance machine.CreateCommand
	deduct   *stock.ReserveCommand
	claimed  claim.Params
	owned    *claim.Row // the claim of this buyer on this unit, or on a coupon of the campaign
	same     orderRef   // the order that the buyer has won before
}

// Grabbed is the outcome of a grab.
type Grabbed struct {
	Outcome   sale.Outcome
	OrderNo   string
	State     string // of the order
	PayBefore time.Time
	Coupon    string
}

// Need names the sale, and the rows that the grab needs if the sale is as this server last read it.
func (c *Grab) Need(tx *Tx) {
	k := sale.Key{Tenant: c.Tenant, Sale: c.Sale}
	c.row = tx.Sales().Want(k)
	known, empty, ok := tx.Sales().Last(k)
	if c.found != nil {
		known, ok = *c.found, true
	}
	if !ok {
		c.item = nil
		return
	}
	c.sale, c.item = known, tx.Stock().Look(c.Tenant, known.Item)
	c.mayWin = c.mayWin || !empty
	facts := c.facts()
	if known.Order != nil {
		c.claimed = purchase(&order.Order{Key: order.Key{Tenant: c.Tenant, OrderNo: c.OrderNo}, Facts: facts})
	} else {
		c.claimed = campaignClaim(known.Coupon.Campaign, c.Buyer, c.Code)
	}
	c.owned = tx.Claims().WantRechecked(c.claimed.At(c.Tenant))
	c.same.need(tx)
	c.consequences.need(tx)
	switch {
	case !c.mayWin:
	case known.Order != nil:
		c.needOrder(tx, facts)
	default:
		c.needCoupon(tx)
	}
}

// facts are those of the order that the buyer may win.
func (c *Grab) facts() (f order.Facts) {
	if c.sale.Order != nil {
		f = factsOf(c.sale.Order)
	}
	f.Subject, f.Reserve = c.Buyer, true
	f.Lines = []order.Line{{Item: c.sale.Item, Quantity: 1}}
	f.Sale = &order.Sale{Sale: c.Sale, Unit: c.Unit, Once: c.sale.Once}
	return f
}

func (c *Grab) needOrder(tx *Tx, f order.Facts) {
	if c.order == nil {
		c.order = &CreateOrder{Caller: c.Caller, OrderNo: c.OrderNo, Renumber: c.Renumber, NumberErr: c.NumberErr,
			SubmitToken: c.SubmitToken}
	}
	c.order.Facts = f
	c.order.Need(tx)
}

func (c *Grab) needCoupon(tx *Tx) {
	c.coupon = tx.Coupons().Want(coupon.Key{Tenant: c.Tenant, Code: c.Code})
	c.instance.Caller = c.Caller
	c.instance.CreateParams = machine.CreateParams{Machine: machine.CouponMachine, Key: c.Code}
	c.instance.Need(tx.Machines())
	c.deduct = &stock.ReserveCommand{Caller: c.Caller, Item: c.sale.Item, ReservationNo: c.Code, Quantity: 1,
		Ref: c.Sale}
	c.deduct.Need(tx.Stock())
}

// Apply gives the unit, or returns an outcome other than Won. Returns faults SALE_NOT_FOUND, ITEM_NOT_FOUND,
// FIELD_INVALID, and those of the order.
func (c *Grab) Apply(tx *Tx) (any, error) {
	s, err := sale.MustExist(c.row)
	if err != nil {
		return nil, err
	}
	if c.item == nil || !s.Equal(&c.sale) {
		found := *s
		c.found = &found
		return nil, commit.ErrMoreRows
	}
	if won, err := c.already(tx); won != nil || err != nil {
		return won, err
	}
	if c.Unit > s.PerBuyer {
		return nil, fault.InvalidField("grab.unit", "must be at most %d, the sale's per_buyer", s.PerBuyer)
	}
	if o := s.Opening(tx.Claims().Now); o != 0 {
		return Grabbed{Outcome: o}, nil
	}
	empty, err := c.item.Empty()
	if err != nil {
		return nil, err
	}
	if tx.Sales().LearnEmpty(c.row.Key, empty); empty {
		return Grabbed{Outcome: sale.SoldOut}, nil
	}
	if !c.mayWin { // the item has units, unlike when it was last read
		c.mayWin = true
		return nil, commit.ErrMoreRows
	}
	if s.Order == nil {
		return c.winCoupon(tx)
	}
	answer, err := c.order.Apply(tx)
	if err != nil {
		return nil, inSale(err)
	}
	return grabbed(sale.Won, answer.(order.View)), nil
}

// inSale reports a fault about machine or pay_within, which Grab does not have, as a fault of the sale: the machine has
// changed since PutSale checked it.
func inSale(err error) error {
	f := fault.Of(err)
	if f == nil || len(f.Fields) == 0 || !slices.Contains([]string{"machine", "pay_within"}, f.Fields[0].Path) {
		return err
	}
	own := *f
	problem := "its orders cannot be created: " + f.Message
	own.Message, own.Fields = "sale: "+problem, []fault.Field{{Path: "sale", Description: problem}}
	return &own
}

// already returns the buyer's earlier win, or nil.
func (c *Grab) already(tx *Tx) (any, error) {
	if tx.Claims().ClaimedSince(c.owned) {
		return nil, commit.ErrLater
	}
	if !tx.Claims().Live(c.owned) {
		return nil, nil
	}
	if c.sale.Coupon != nil {
		return Grabbed{Outcome: sale.Already, Coupon: c.owned.Value.Result}, nil
	}
	k := order.Key{Tenant: c.Tenant, OrderNo: c.owned.Value.Result}
	if c.same.machine == "" {
		c.same.machine = c.sale.Order.Machine
	}
	v, err := c.same.view(tx, &c.consequences, k, c.Caller)
	if errors.Is(err, commit.ErrMoreRows) {
		return nil, commit.ErrLater // ErrMoreRows would rerun the whole batch
	}
	if err != nil || !tx.Claims().Live(c.owned) { // its time was over: the unit is free again
		return nil, err
	}
	return grabbed(sale.Already, v), nil
}

func grabbed(o sale.Outcome, v order.View) Grabbed {
	return Grabbed{Outcome: o, OrderNo: v.OrderNo, State: v.State.State, PayBefore: v.PayBefore()}
}

// winCoupon sells a unit, and gives the buyer a coupon for it.
func (c *Grab) winCoupon(tx *Tx) (any, error) {
	if _, err := c.deduct.Apply(tx.Stock()); err != nil {
		return nil, err
	}
	gives := c.sale.Coupon
	life := gives.Life
	if life == 0 {
		life = coupon.MaxLife
	}
	x := coupon.Coupon{Campaign: gives.Campaign, ExpiresAt: tx.Machines().Now.Add(life), Metadata: gives.Metadata}
	if err := tx.issueCoupon(c.coupon, &c.instance, x); err != nil {
		return nil, err
	}
	if _, err := tx.giveCoupon(c.coupon, c.owned, c.Caller, c.claimed); err != nil {
		return nil, err
	}
	return Grabbed{Outcome: sale.Won, Coupon: c.Code}, nil
}
