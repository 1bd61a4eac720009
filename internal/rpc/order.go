package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	machinev1 "github.com/ledgerd/ledgerd/gen/ledgerd/machine/v1"
	notifyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/notify/v1"
	pb "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/claim"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/order"
)

// Orders serves OrderService.
type Orders struct {
	*Mutations
	Reader   *order.Reader
	Machines *machine.Reader
}

func (s *Orders) CreateOrder(ctx context.Context, r *pb.CreateOrderRequest) (*pb.CreateOrderResponse, error) {
	return run(ctx, s.Mutations, createOrderOperation, r)
}

// orderRows is the estimated number of rows that a move of an order writes: the instance, the history, and a part that
// ends with it.
const orderRows = 3

var createOrderOperation = register("order.create_order",
	func(c *call, d *decoder, r *pb.CreateOrderRequest) mutation[*pb.CreateOrderResponse] {
		cmd := &flow.CreateOrder{Caller: c.caller(), OrderNo: d.bizNo("order_no", r.GetOrderNo()),
			Messages:       d.messages(c, "messages", r.GetMessages()),
			ExpiryMessages: d.expiryMessages(c, r.GetExpiryMessages()), SubmitToken: c.tokenHash()}
		cmd.Facts = d.order(r)
		if cmd.OrderNo == "" {
			cmd.Renumber = c.gate.NewOrderNo
			cmd.OrderNo, cmd.NumberErr = c.orderNo()
		}
		rows := cmd.Rows() + sendRows*(len(cmd.Messages)+len(cmd.ExpiryMessages))
		return newMutation(cmd, rows, func(v order.View, existed bool) *pb.CreateOrderResponse {
			return &pb.CreateOrderResponse{Order: renderOrder(&v), Existed: existed}
		})
	})

// orderNo makes a number for an order. With an error it returns a placeholder, so that Need can name rows; Apply then
// fails before anything is written.
func (c *call) orderNo() (string, error) {
	n := cmp.Or(c.numbers, new(numbers))
	no, err := n.next(c.gate.NewOrderNo)
	return cmp.Or(no, "-"), err
}

// numbers are those that the server generated for an operation of an Execute. An operation with references is decoded
// in every attempt, and must get the same numbers, so that it finds the same rows.
type numbers struct {
	made []string
	used int // by the present decoding
}

func (n *numbers) next(generate func() (string, error)) (string, error) {
	if n.used == len(n.made) {
		no, err := generate()
		if err != nil {
			return "", err
		}
		n.made = append(n.made, no)
	}
	n.used++
	return n.made[n.used-1], nil
}

// order decodes the facts of an order.
func (d *decoder) order(r *pb.CreateOrderRequest) order.Facts {
	f := order.Facts{Machine: cmp.Or(d.ownMachine("machine", r.GetMachine()), machine.OrderMachine),
		Subject: d.name("subject", r.GetSubject()), Asset: r.GetAsset(), Payee: r.GetPayee(),
		Amount: d.notNegative("amount", r.GetAmount()), PayWithin: durationOr(r.GetPayWithin(), 0),
		Reserve: r.GetReserve(), Coupon: d.bizNo("coupon", r.GetCoupon()),
		Metadata: d.metadata("metadata", r.GetMetadata())}
	if f.Payee != "" {
		d.code("payee", f.Payee)
	}
	if f.Lines = d.orderLines(r.GetLines(), f.Amount); f.Reserve && len(f.Lines) == 0 {
		d.bad("reserve", "must not be set on an order without lines")
	}
	f.Balance = d.balance(r, &f)
	if p := r.GetPurchase(); p != nil {
		f.Purchase = &order.Purchase{Parts: p.GetParts(), Refuse: p.GetRefuse(),
			Life: durationOr(p.GetLife(), claim.SamePurchase.Life)}
		for i, part := range p.GetParts() {
			d.name(fmt.Sprintf("purchase.parts[%d]", i), part)
		}
		if len(p.GetParts()) == 0 {
			f.Purchase.Parts = []string{f.Subject}
			for i := range f.Lines {
				f.Purchase.Parts = append(f.Purchase.Parts, f.Lines[i].Item)
			}
			slices.Sort(f.Purchase.Parts[1:])
			f.Purchase.Parts = slices.Compact(f.Purchase.Parts)
			if len(f.Lines) == 0 {
				d.bad("purchase.parts", "must be set on an order without lines")
			}
		}
	}
	return f
}

// orderLines decodes lines. If each has an amount, they must add up; the amounts of some are at most the total.
func (d *decoder) orderLines(lines []*pb.OrderLine, total amount.Decimal) (list []order.Line) {
	sum, priced, fits, readable := amount.Int{}, 0, true, d.valid("amount")
	for i, l := range lines {
		at := fmt.Sprintf("lines[%d].", i)
		x := order.Line{Item: d.bizNo(at+"item", l.GetItem()), Quantity: l.GetQuantity(),
			Description: d.printable(at+"description", l.GetDescription())}
		if l.GetAmount() != "" {
			n := d.notNegative(at+"amount", l.GetAmount())
			x.Amount, readable = n.String(), readable && d.valid(at+"amount")
			minor, err := n.Minor(maxDecimals)
			if err == nil {
				sum, fits = sum.Add(minor)
			}
			if priced++; err != nil || !fits {
				d.bad(at+"amount", "is too large")
				return list
			}
		}
		list = append(list, x)
	}
	if priced == 0 || !readable {
		return list
	}
	switch whole, err := total.Minor(maxDecimals); {
	case d.sample: // some amounts may be placeholders
	case priced == len(lines) && (err != nil || whole != sum):
		d.bad("amount", "must be the sum of the amounts of the lines, "+amount.NewDecimal(sum, maxDecimals).String())
	case err == nil && whole.Cmp(sum) < 0:
		d.bad("amount", "must be at least the sum of the amounts of the lines, "+
			amount.NewDecimal(sum, maxDecimals).String())
	}
	return list
}

// maxDecimals is the largest number of decimals of an asset.
const maxDecimals = 18

// balance decodes the part of an order that an account pays.
func (d *decoder) balance(r *pb.CreateOrderRequest, f *order.Facts) *order.Balance {
	b := r.GetBalance()
	if b == nil {
		return nil
	}
	x := &order.Balance{Account: d.code("balance.account", b.GetAccount()), Amount: f.Amount}
	if b.GetAmount() != "" {
		x.Amount = d.positive("balance.amount", b.GetAmount(), ledger.Exact)
	}
	if f.Amount.Coef.IsZero() && d.valid("amount") {
		d.bad("balance", "must not be set on an order of which nothing is to be paid")
	}
	if total, err := f.Amount.Minor(maxDecimals); err == nil && !d.sample && d.valid("amount") &&
		d.valid("balance.amount") {
		if n, err := x.Amount.Minor(maxDecimals); err != nil || n.Cmp(total) > 0 {
			d.bad("balance.amount", "must be at most the amount of the order")
		}
	}
	switch f.Payee {
	case "":
		d.bad("payee", "must be set with balance: the account that is paid")
	case x.Account:
		d.bad("payee", "must not be the account that pays")
	}
	return x
}

// notNegative parses an amount of zero or more.
func (d *decoder) notNegative(path, s string) amount.Decimal {
	n, err := amount.ParseDecimal(s)
	if err != nil {
		d.bad(path, decimalProblem(err))
	} else if n.Coef.Sign() < 0 {
		d.bad(path, "must not be negative")
	}
	return n
}

// messages decodes messages that a command sends.
func (d *decoder) messages(c *call, path string, list []*notifyv1.SendRequest) []notify.SendCommand {
	commands := make([]notify.SendCommand, len(list))
	for i, m := range list {
		at, inner := fmt.Sprintf("%s[%d].", path, i), decoder{}
		commands[i] = *ownMessage(c.caller(), &inner, m)
		if err := inner.err(); err != nil {
			d.addProblems(at, err)
		}
	}
	return commands
}

// ownMessage decodes a message of an order or a payment. The number of that order or payment finds repeats, not the
// content: without a repeat window, equal messages of two orders are both sent.
func ownMessage(c commit.Caller, d *decoder, m *notifyv1.SendRequest) *notify.SendCommand {
	s := sendCommand(c, d, m)
	if s.RepeatWindow == nil {
		s.RepeatWindow = new(time.Duration)
	}
	return s
}

// expiryMessages decodes messages that are sent at the end of the time to pay.
func (d *decoder) expiryMessages(c *call, list []*notifyv1.SendRequest) []notify.SendCommand {
	const path = "expiry_messages"
	commands := d.messages(c, path, list)
	for i, m := range list {
		for _, field := range []struct {
			name string
			set  bool
		}{{"biz_no", m.GetBizNo() != ""}, {"not_before", m.GetNotBefore() != nil},
			{"repeat_window", m.GetRepeatWindow() != nil}} {
			if field.set {
				d.bad(fmt.Sprintf("%s[%d].%s", path, i, field.name), "must not be set: the order decides it")
			}
		}
		commands[i].RepeatWindow = new(time.Duration)
	}
	return commands
}

func (s *Orders) MoveOrder(ctx context.Context, r *pb.MoveOrderRequest) (*pb.MoveOrderResponse, error) {
	return run(ctx, s.Mutations, moveOrderOperation, r)
}

var moveOrderOperation = register("order.move_order",
	func(c *call, d *decoder, r *pb.MoveOrderRequest) mutation[*pb.MoveOrderResponse] {
		cmd := &flow.MoveOrder{Caller: c.caller(), OrderNo: d.bizNo("order_no", r.GetOrderNo()),
			Messages: d.messages(c, "messages", r.GetMessages()),
			Params: machine.MoveParams{To: r.GetTo(), From: r.GetFrom(), Revision: r.GetRevision(),
				Cause: d.name("cause", r.GetCause()), Reason: r.GetReason(),
				Inputs: d.metadata("inputs", r.GetInputs())}}
		return newMutation(cmd, orderRows+sendRows*len(cmd.Messages),
			func(v order.View, existed bool) *pb.MoveOrderResponse {
				return &pb.MoveOrderResponse{Order: renderOrder(&v), Existed: existed}
			})
	})

func (s *Orders) CancelOrder(ctx context.Context, r *pb.CancelOrderRequest) (*pb.CancelOrderResponse, error) {
	return run(ctx, s.Mutations, cancelOrderOperation, r)
}

var cancelOrderOperation = register("order.cancel_order",
	func(c *call, d *decoder, r *pb.CancelOrderRequest) mutation[*pb.CancelOrderResponse] {
		cmd := &flow.MoveOrder{Caller: c.caller(), OrderNo: d.bizNo("order_no", r.GetOrderNo()), Cancel: true,
			Messages: d.messages(c, "messages", r.GetMessages()),
			Params: machine.MoveParams{Cause: cmp.Or(d.name("cause", r.GetCause()), flow.CauseCancel),
				Reason: r.GetReason()}}
		return newMutation(cmd, orderRows+sendRows*len(cmd.Messages),
			func(v order.View, existed bool) *pb.CancelOrderResponse {
				return &pb.CancelOrderResponse{Order: renderOrder(&v), Existed: existed}
			})
	})

func (s *Orders) GetOrder(ctx context.Context, r *pb.GetOrderRequest) (*pb.GetOrderResponse, error) {
	v, err := s.Reader.Order(ctx, orderKey(ctx, r.GetOrderNo()))
	if err != nil {
		return nil, err
	}
	return &pb.GetOrderResponse{Order: renderOrder(&v)}, nil
}

func (s *Orders) ListOrders(ctx context.Context, r *pb.ListOrdersRequest) (*pb.ListOrdersResponse, error) {
	var d decoder
	f := order.Filter{Subject: r.GetSubject(), Machine: r.GetMachine(), State: r.GetState()}
	f.From, f.Before = d.period(r.GetStartTime(), r.GetEndTime())
	if f.State != "" && f.Machine == "" {
		d.bad("machine", "must be set with state")
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	list, next, err := s.Reader.Orders(ctx, callOf(ctx).identity.Tenant, f,
		order.Page{Size: int(r.GetPageSize()), Token: r.GetPageToken()})
	return &pb.ListOrdersResponse{Orders: eachOf(list, renderOrder), NextPageToken: next}, err
}

func (s *Orders) ListOrderHistory(ctx context.Context,
	r *pb.ListOrderHistoryRequest) (*pb.ListOrderHistoryResponse, error) {
	v, err := s.Reader.Order(ctx, orderKey(ctx, r.GetOrderNo()))
	if err != nil {
		return nil, err
	}
	k := machine.Key{Tenant: v.Tenant, Machine: v.Machine, Key: v.OrderNo}
	list, next, err := s.Machines.History(ctx, k, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListOrderHistoryResponse{Entries: each(list, renderMove), NextPageToken: next}, err
}

func orderKey(ctx context.Context, no string) order.Key {
	return order.Key{Tenant: callOf(ctx).identity.Tenant, OrderNo: no}
}

func renderOrder(v *order.View) *pb.Order {
	format := func(d amount.Decimal) string {
		n, err := d.Minor(v.Scale)
		if err != nil {
			return d.String() // not written by ledgerd
		}
		return amount.Format(n, v.Scale)
	}
	o := &pb.Order{Coupon: v.Coupon, Id: v.ID, OrderNo: v.OrderNo, Subject: v.Subject, Machine: v.Machine,
		State:    v.State.State,
		Revision: v.Revision, Cause: v.Cause, Asset: v.Asset, Amount: format(v.Amount), Payee: v.Payee,
		Reserve: v.Reserve, Metadata: v.Metadata, TimerTime: timestamp(v.TimerAt), TimerTo: v.TimerTo,
		CreateTime: timestamp(v.CreatedAt), UpdateTime: timestamp(v.ChangedAt), Principal: v.Principal,
		RequestId: v.RequestID}
	for _, l := range v.Lines {
		x := &pb.OrderLine{Item: l.Item, Quantity: l.Quantity, Description: l.Description}
		if n, err := amount.ParseDecimal(l.Amount); err == nil {
			x.Amount = format(n)
		}
		o.Lines = append(o.Lines, x)
	}
	if b := v.Balance; b != nil {
		o.Balance = &pb.BalancePart{Account: b.Account, Amount: format(b.Amount)}
	}
	if p := v.Purchase; p != nil {
		o.Purchase = &pb.PurchaseKey{Parts: p.Parts, Life: durationpb.New(p.Life)}
	}
	if v.Sale != nil {
		o.Sale = v.Sale.Sale
	}
	if v.Life > 0 {
		o.PayWithin = durationpb.New(v.Life)
	}
	return o
}

var orderParts = map[machinev1.OrderParts]machine.Parts{
	machinev1.OrderParts_ORDER_PARTS_CONFIRM: machine.ConfirmParts,
	machinev1.OrderParts_ORDER_PARTS_CANCEL:  machine.CancelParts,
}

var orderPartNames = inverse(orderParts)
