package rpc

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/coupon"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/sale"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// Sales serves SaleService.
type Sales struct {
	*Mutations
	Reader  *sale.Reader
	Stock   *stock.Reader
	Coupons *coupon.Reader
}

func (s *Sales) PutSale(ctx context.Context, r *pb.PutSaleRequest) (*pb.PutSaleResponse, error) {
	return run(ctx, s.Mutations, putSaleOperation, r)
}

var putSaleOperation = register("sale.put_sale",
	func(c *call, d *decoder, r *pb.PutSaleRequest) mutation[*pb.PutSaleResponse] {
		cmd := &flow.PutSale{Caller: c.caller(), Named: sale.Named{
			Key:  sale.Key{Tenant: c.identity.Tenant, Sale: r.GetSale().GetSale()},
			Sale: d.sale(r.GetSale())}}
		return newMutation(cmd, 1, func(s sale.Named, existed bool) *pb.PutSaleResponse {
			return &pb.PutSaleResponse{Sale: renderSale(&s), Existed: existed}
		})
	})

// sale decodes a sale.
func (d *decoder) sale(r *pb.Sale) sale.Sale {
	s := sale.Sale{Item: d.bizNo("sale.item", r.GetItem()), PerBuyer: max(r.GetPerBuyer(), 1), Once: r.GetOnce(),
		OpensAt: d.time("sale.open_time", r.GetOpenTime()), ClosesAt: d.time("sale.close_time", r.GetCloseTime())}
	if !s.ClosesAt.IsZero() && !s.ClosesAt.After(s.OpensAt) {
		d.bad("sale.close_time", "must be after open_time")
	}
	if o := r.GetOrder(); o != nil {
		s.Order = &sale.Order{Asset: o.GetAsset(), Amount: d.notNegative("sale.order.amount", o.GetAmount()).String(),
			Payee: o.GetPayee(), PayWithin: durationOr(o.GetPayWithin(), 0),
			Machine: cmp.Or(d.ownMachine("sale.order.machine", o.GetMachine()), machine.OrderMachine)}
		if o.GetPayee() != "" {
			d.code("sale.order.payee", o.GetPayee())
		}
	}
	if x := r.GetCoupon(); x != nil {
		s.Coupon = &sale.Coupon{Campaign: x.GetCampaign(), Life: durationOr(x.GetLife(), 0),
			Metadata: d.metadata("sale.coupon.metadata", x.GetMetadata())}
		if s.PerBuyer > 1 {
			d.bad("sale.per_buyer", "must be 1 for a sale of coupons: each owner can have one of a campaign")
		}
	}
	return s
}

// grabRows is the number of rows that a grab probably writes.
func (c *call) grabRows(name string) int {
	if _, empty, _ := c.gate.Memory.Sales.Last(sale.Key{Tenant: c.identity.Tenant, Sale: name}); empty {
		return 1 // nothing is left to win
	}
	return 6 // claim, order, instance, move, reservation, item
}

func (s *Sales) Grab(ctx context.Context, r *pb.GrabRequest) (*pb.GrabResponse, error) {
	return run(ctx, s.Mutations, grabOperation, r)
}

const grabName = "sale.grab"

var grabOperation = register(grabName, func(c *call, d *decoder, r *pb.GrabRequest) mutation[*pb.GrabResponse] {
	return newMutation(grabCommand(c, d, r.GetSale(), "grab.", r.GetGrab()), c.grabRows(r.GetSale()), renderGrab)
})

func grabCommand(c *call, d *decoder, name, path string, g *pb.Grab) *flow.Grab {
	cmd := &flow.Grab{Caller: c.caller(), Sale: name, Buyer: d.name(path+"buyer", g.GetBuyer()),
		Unit: max(g.GetUnit(), 1), Renumber: c.gate.NewOrderNo, SubmitToken: c.tokenHash()}
	cmd.OrderNo, cmd.NumberErr = c.orderNo()
	cmd.Code = c.couponCode()
	return cmd
}

func renderGrab(g flow.Grabbed, _ bool) *pb.GrabResponse {
	return &pb.GrabResponse{Outcome: outcomes[g.Outcome], OrderNo: g.OrderNo, OrderState: g.State,
		PayBeforeTime: timestamp(g.PayBefore), Coupon: g.Coupon}
}

var outcomes = map[sale.Outcome]pb.Outcome{sale.Won: pb.Outcome_OUTCOME_WON, sale.Already: pb.Outcome_OUTCOME_ALREADY,
	sale.SoldOut: pb.Outcome_OUTCOME_SOLD_OUT, sale.NotOpen: pb.Outcome_OUTCOME_NOT_OPEN,
	sale.Over: pb.Outcome_OUTCOME_OVER}

const (
	grabManyName     = "sale.grab_many"
	grabManyItemName = "sale.grab_many_item"
)

// GrabMany submits each grab independently. Its key is derived from the call's key and the index of the grab, so that a
// retry of an interrupted call continues where it ended.
func (s *Sales) GrabMany(ctx context.Context, r *pb.GrabManyRequest) (*pb.GrabManyResponse, error) {
	c := callOf(ctx)
	policy := c.policy(grabManyName, grabName)
	var d decoder
	switch {
	case c.guarded():
		d.bad("grabs", "must be calls of Grab: GrabMany accepts no submit token and no claim, which guard one mutation")
	case policy.TokenRequired:
		d.bad("grabs", "must be calls of Grab: a policy requires a submit token for each grab, "+
			"which GrabMany does not accept")
	}
	if c.key == "" && policy.KeyRequired {
		return nil, keyMissing(grabManyName)
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	var fingerprint []byte
	if c.key != "" {
		fingerprint = s.fingerprint(r)
	}
	b := newItems[*pb.GrabResponse](len(r.GetGrabs()))
	for i, g := range r.GetGrabs() {
		var own decoder
		cmd := grabCommand(c, &own, r.GetSale(), "grab.", g)
		if err := own.err(); err != nil {
			b.fail(i, err)
			continue
		}
		var key *commit.Key
		if c.key != "" {
			key = &commit.Key{Principal: c.identity.Principal, Operation: grabManyItemName,
				Key: fmt.Sprintf("%s#%d", c.key, i), Fingerprint: fingerprint, Life: s.life(c, policy)}
		}
		b.add(c, i, key, g, newMutation(cmd, c.grabRows(r.GetSale()), renderGrab))
	}
	replayed, err := b.run(ctx, s.Mutations, "grabs")
	if err != nil {
		return nil, err
	}
	res := &pb.GrabManyResponse{Results: make([]*pb.GrabResult, len(b))}
	for i, x := range b {
		res.Results[i] = &pb.GrabResult{Grab: x.response, Error: c.itemError(ctx, x.err)}
	}
	return result[*pb.GrabManyResponse]{response: res, replayed: replayed}.reply(ctx, nil)
}

// In an Execute, the grabs commit together with the other operations.
var _ = register(grabManyName, func(c *call, d *decoder, r *pb.GrabManyRequest) mutation[*pb.GrabManyResponse] {
	g := &grabs{list: make([]*flow.Grab, len(r.GetGrabs()))}
	for i, x := range r.GetGrabs() {
		g.list[i] = grabCommand(c, d, r.GetSale(), fmt.Sprintf("grabs[%d].", i), x)
	}
	m := newMutation(g, len(g.list)*c.grabRows(r.GetSale()), func(all []flow.Grabbed, _ bool) *pb.GrabManyResponse {
		return &pb.GrabManyResponse{Results: eachOf(all, func(x *flow.Grabbed) *pb.GrabResult {
			return &pb.GrabResult{Grab: renderGrab(*x, false)}
		})}
	})
	m.inner = []string{grabName}
	return m
})

// grabs is a command composed of grabs. Its answer is a flow.Grabbed for each.
type grabs struct{ list []*flow.Grab }

// Need names the rows of all grabs.
func (g *grabs) Need(tx *flow.Tx) {
	for _, x := range g.list {
		x.Need(tx)
	}
}

// Apply makes the grabs in order. The first error fails all.
func (g *grabs) Apply(tx *flow.Tx) (any, error) {
	all := make([]flow.Grabbed, len(g.list))
	var rows lacking
	for i, x := range g.list {
		var answer any
		err := rows.try(func() (err error) { answer, err = x.Apply(tx); return err })
		if rows.note(err) {
			continue
		}
		if err != nil {
			return nil, fault.Rename(err, func(path string) string {
				if own, of := strings.CutPrefix(path, "grab."); of {
					return fmt.Sprintf("grabs[%d].%s", i, own)
				}
				return path
			})
		}
		all[i] = answer.(flow.Grabbed)
	}
	return all, rows.err
}

func (s *Sales) GetSale(ctx context.Context, r *pb.GetSaleRequest) (*pb.GetSaleResponse, error) {
	tenant := callOf(ctx).identity.Tenant
	x, open, err := s.Reader.Sale(ctx, sale.Key{Tenant: tenant, Sale: r.GetSale()})
	if err != nil {
		return nil, err
	}
	i, err := s.Stock.Item(ctx, stock.ItemKey{Tenant: tenant, Item: x.Item})
	if err != nil {
		return nil, err
	}
	return &pb.GetSaleResponse{Sale: renderSale(&x), Available: i.Available, Reserved: i.Reserved, Sold: i.Sold,
		Open: open}, nil
}

func (s *Sales) ListSales(ctx context.Context, r *pb.ListSalesRequest) (*pb.ListSalesResponse, error) {
	list, next, err := s.Reader.Sales(ctx, callOf(ctx).identity.Tenant, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListSalesResponse{Sales: eachOf(list, renderSale), NextPageToken: next}, err
}

func renderSale(s *sale.Named) *pb.Sale {
	x := &pb.Sale{Sale: s.Key.Sale, Item: s.Item, PerBuyer: s.PerBuyer, Once: s.Once, OpenTime: timestamp(s.OpensAt),
		CloseTime: timestamp(s.ClosesAt)}
	if o := s.Order; o != nil {
		x.Gives = &pb.Sale_Order{Order: &pb.SaleOrder{Asset: o.Asset, Amount: o.Amount, Payee: o.Payee,
			PayWithin: duration(o.PayWithin.Milliseconds()), Machine: o.Machine}}
	} else {
		x.Gives = &pb.Sale_Coupon{Coupon: &pb.SaleCoupon{Campaign: s.Coupon.Campaign,
			Life: duration(s.Coupon.Life.Milliseconds()), Metadata: s.Coupon.Metadata}}
	}
	return x
}
