package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/machine"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/payment/dispatch"
	"github.com/ledgerd/ledgerd/internal/token"
)

// Payments serves PaymentService.
type Payments struct {
	*Mutations
	Reader     *payment.Reader
	Dispatcher *dispatch.Dispatcher
	// Take commits a callback, as the route of callbacks does.
	Take func(ctx context.Context, requestID string, g *gateway.Configured, n *gateway.Notice,
		raw gateway.Raw) (ok bool, err error)
}

func (s *Payments) PutGateway(ctx context.Context, r *pb.PutGatewayRequest) (*pb.PutGatewayResponse, error) {
	return run(ctx, s.Mutations, putGatewayOperation, r)
}

var putGatewayOperation = register("payment.put_gateway",
	func(c *call, d *decoder, r *pb.PutGatewayRequest) mutation[*pb.PutGatewayResponse] {
		x := r.GetGateway()
		g := payment.Gateway{Clearing: d.code("gateway.clearing", x.GetClearing()), Suspense: x.GetSuspense(),
			Payee: x.GetPayee()}
		for _, x := range []struct{ path, code string }{{"gateway.suspense", g.Suspense}, {"gateway.payee", g.Payee}} {
			if x.code != "" {
				d.code(x.path, x.code)
			}
			if x.code == g.Clearing {
				d.bad(x.path, "must not be the clearing account")
			}
		}
		if g.Suspense != "" && g.Suspense == g.Payee {
			d.bad("gateway.suspense", "must not be the payee: money that pays no order would be booked to the payee")
		}
		return newMutation(&flow.PutGateway{Caller: c.caller(), Name: x.GetGateway(), Gateway: g}, 1,
			func(g payment.Gateway, existed bool) *pb.PutGatewayResponse {
				return &pb.PutGatewayResponse{Gateway: renderGateway(&payment.NamedGateway{Name: x.GetGateway(),
					Gateway: g}), Existed: existed}
			})
	})

func (s *Payments) ListGateways(ctx context.Context, r *pb.ListGatewaysRequest) (*pb.ListGatewaysResponse, error) {
	list, next, err := s.Reader.Gateways(ctx, callOf(ctx).identity.Tenant, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListGatewaysResponse{Gateways: eachOf(list, renderGateway), NextPageToken: next}, err
}

// CreatePayment creates the payment, and waits until the gateway has answered or its timeout has passed.
func (s *Payments) CreatePayment(ctx context.Context, r *pb.CreatePaymentRequest) (*pb.CreatePaymentResponse, error) {
	noStore(ctx)
	ctx = submitting(ctx)
	made, err := mutate(ctx, s.Mutations, createPaymentOperation, r)
	res, err := made.reply(ctx, err)
	if err != nil || res.GetPayment().GetState() != pb.PaymentState_PAYMENT_STATE_CREATED {
		return res, err
	}
	p := res.GetPayment()
	k := payment.Key{Tenant: callOf(ctx).identity.Tenant, OutTradeNo: p.GetOutTradeNo()}
	name := payment.GatewayKey{Tenant: k.Tenant, Gateway: p.GetGateway()}
	if created, ok := made.answer.(payment.View); ok && created.Lease != nil {
		if v := s.Dispatcher.RunLeased(ctx, name, *created.Lease, &created); v != nil {
			return &pb.CreatePaymentResponse{Payment: renderPayment(v)}, nil
		}
	}
	var v payment.View
	err = s.awaitGateway(ctx, name, payment.OfPayment, k.OutTradeNo, func() (bool, error) {
		v, err = s.Reader.Payment(ctx, k)
		return v.State.State != machine.PaymentCreated, err
	})
	if err != nil {
		return res, nil
	}
	return &pb.CreatePaymentResponse{Payment: renderPayment(&v), Existed: res.GetExisted()}, nil
}

// awaitWithin bounds how long a caller waits for a call at a gateway that a worker makes.
const awaitWithin = 15 * time.Second

// awaitGateway makes the first call about a payment or refund if it is due. If a worker makes that call, awaitGateway
// polls until read reports an answer. It does not return failures at the gateway: the call is made again.
func (s *Payments) awaitGateway(ctx context.Context, k payment.GatewayKey, about payment.Subject, number string,
	read func() (bool, error)) error {
	wait, cancel := context.WithTimeout(ctx, awaitWithin)
	defer cancel()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if answered, err := read(); answered || err != nil {
			return err
		}
		if c, err := s.Dispatcher.RunDue(wait, k, about, number, false); err != nil || c != dispatch.Running {
			_, err := read()
			return err
		}
		select {
		case <-wait.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// submitting returns a context whose call submits the payment or refund that it creates to the gateway.
func submitting(ctx context.Context) context.Context {
	c := *callOf(ctx)
	c.submits = true
	return c.within(ctx)
}

// firstLease returns the lease of the first call at a gateway by its name, 0 if this server has no settings of it. Nil:
// a worker makes the call.
func (c *call) firstLease() func(name string) time.Duration {
	if !c.submits {
		return nil
	}
	return func(name string) time.Duration {
		if g := c.gate.Gateway(payment.GatewayKey{Tenant: c.identity.Tenant, Gateway: name}); g != nil {
			return dispatch.FirstLease(g)
		}
		return 0
	}
}

// paymentRows is the number of rows that a payment writes: its own, its instance, the history, and the call.
const paymentRows = 4

var createPaymentOperation = register("payment.create_payment",
	func(c *call, d *decoder, r *pb.CreatePaymentRequest) mutation[*pb.CreatePaymentResponse] {
		cmd := &flow.CreatePayment{Caller: c.caller(), OrderNo: d.bizNo("order_no", r.GetOrderNo()),
			Gateway: r.GetGateway(), PayType: r.GetPayType(), OutTradeNo: r.GetOutTradeNo(),
			Details: payment.Details{Description: d.printable("description", r.GetDescription()),
				Payer: d.printable("payer", r.GetPayer()), PayerIP: d.address("payer_ip", r.GetPayerIp()),
				ReturnURL: d.webAddress("return_url", r.GetReturnUrl())}}
		cmd.Messages, cmd.Stored = d.storedMessages(c, r)
		cmd.Lease = c.firstLease()
		if c.token != nil {
			cmd.TokenHash = token.Hash(c.token.Token)
		}
		if cmd.OutTradeNo == "" {
			cmd.Renumber = c.gate.NewOrderNo
			cmd.OutTradeNo, cmd.NumberErr = c.orderNo()
		}
		if g := c.gate.Gateway(payment.GatewayKey{Tenant: cmd.Tenant, Gateway: cmd.Gateway}); g != nil {
			cmd.Check = func(p *payment.Payment) error { return dispatch.Check(g, p) }
		}
		return newMutation(cmd, paymentRows, func(v payment.View, existed bool) *pb.CreatePaymentResponse {
			res := &pb.CreatePaymentResponse{Payment: renderPayment(&v), Existed: existed}
			if !c.submits {
				res.Payment.Credential = nil // the answer of an Execute, or of an approved request, is recorded
			}
			return res
		})
	})

// address reads an IP address, which may be empty.
func (d *decoder) address(field, text string) string {
	if _, err := netip.ParseAddr(text); text != "" && err != nil {
		d.bad(field, "must be an IP address")
	}
	return text
}

// webAddress reads the URL of a page, which may be empty.
func (d *decoder) webAddress(field, text string) string {
	u, err := url.Parse(text)
	if text != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "") {
		d.bad(field, "must be a URL that begins with https:// or http://")
	}
	return d.printable(field, text)
}

// maxStored bounds the messages of a payment.
const maxStored = 64 << 10

// storedMessages returns messages that are sent later, and their encoding.
func (d *decoder) storedMessages(c *call, r *pb.CreatePaymentRequest) ([]notify.SendCommand, []byte) {
	if len(r.GetMessages()) == 0 {
		return nil, nil
	}
	messages := d.messages(c, "messages", r.GetMessages())
	stored := &pb.CreatePaymentRequest{Messages: proto.CloneOf(r).GetMessages()}
	for n, m := range stored.GetMessages() {
		m.BizNo = cmp.Or(m.GetBizNo(), fmt.Sprint(r.GetOrderNo(), "/paid/", n+1))
	}
	b, err := marshal.Marshal(stored)
	if err != nil || len(b) > maxStored {
		d.bad("messages", "must be at most 64 KiB in all")
	}
	return messages, b
}

// StoredMessages reads messages that storedMessages has encoded.
func StoredMessages(caller commit.Caller, stored []byte) ([]notify.SendCommand, error) {
	var r pb.CreatePaymentRequest
	if err := proto.Unmarshal(stored, &r); err != nil {
		return nil, fmt.Errorf("read the messages of a payment: %w", err)
	}
	var d decoder
	list := make([]notify.SendCommand, len(r.GetMessages()))
	for i, m := range r.GetMessages() {
		list[i] = *ownMessage(caller, &d, m)
	}
	return list, d.err()
}

func (s *Payments) GetPayment(ctx context.Context, r *pb.GetPaymentRequest) (*pb.GetPaymentResponse, error) {
	noStore(ctx)
	v, err := s.Reader.Payment(ctx, paymentKey(ctx, r.GetOutTradeNo()))
	if err != nil {
		return nil, err
	}
	return &pb.GetPaymentResponse{Payment: renderPayment(&v)}, nil
}

func paymentKey(ctx context.Context, no string) payment.Key {
	return payment.Key{Tenant: callOf(ctx).identity.Tenant, OutTradeNo: no}
}

func (s *Payments) ListPayments(ctx context.Context, r *pb.ListPaymentsRequest) (*pb.ListPaymentsResponse, error) {
	noStore(ctx)
	list, next, err := s.Reader.Payments(ctx, callOf(ctx).identity.Tenant, r.GetOrderNo(), int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListPaymentsResponse{Payments: eachOf(list, renderPayment), NextPageToken: next}, err
}

// AskGateway queries the gateway, and returns the payment as it is afterwards.
func (s *Payments) AskGateway(ctx context.Context, r *pb.AskGatewayRequest) (*pb.AskGatewayResponse, error) {
	if err := callOf(ctx).rejectKeyAndGuards(); err != nil {
		return nil, err
	}
	noStore(ctx)
	k := paymentKey(ctx, r.GetOutTradeNo())
	v, err := s.Reader.Payment(ctx, k)
	if err != nil {
		return nil, err
	}
	if err := s.Dispatcher.Ask(ctx, &v); err != nil {
		return nil, gatewayFault(err, v.Gateway)
	}
	if v, err = s.Reader.Payment(ctx, k); err != nil {
		return nil, err
	}
	return &pb.AskGatewayResponse{Payment: renderPayment(&v)}, nil
}

// gatewayFault returns the fault for a failed call at a gateway.
func gatewayFault(err error, name string) error {
	if errors.Is(err, dispatch.ErrNotConfigured) {
		return notConfigured(name)
	}
	var failed *gateway.CallError
	if errors.As(err, &failed) {
		return payment.GatewayUnavailable.New("gateway %s: %s", name, failed.Text).With("gateway", name).
			With("code", failed.Code)
	}
	return err
}

func notConfigured(name string) error {
	return payment.GatewayNotConfigured.New("this server has no settings of gateway %s", name).With("gateway", name)
}

// HandleCallback processes a callback that another server has received.
func (s *Payments) HandleCallback(ctx context.Context, r *pb.HandleCallbackRequest) (*pb.HandleCallbackResponse,
	error) {
	c := callOf(ctx)
	if err := c.rejectKeyAndGuards(); err != nil {
		return nil, err
	}
	g := s.Dispatcher.Gateway(payment.GatewayKey{Tenant: c.identity.Tenant, Gateway: r.GetGateway()})
	if g == nil {
		return nil, notConfigured(r.GetGateway())
	}
	raw := gateway.Raw{Header: http.Header{}, Body: r.GetBody(), At: time.Now()}
	for name, value := range r.GetHeaders() {
		raw.Header.Set(name, value)
	}
	raw.Header = gateway.Archived(raw.Header)
	n, unread := g.Notice(raw.Header, raw.Body, raw.At)
	if unread != nil && n.Kind != gateway.Unreadable {
		return nil, payment.Forged.New("the callback is not signed by gateway %s", r.GetGateway())
	}
	ok, err := s.Take(ctx, c.requestID, g, &n, raw)
	switch {
	case err != nil:
		return nil, err
	case unread != nil:
		return nil, payment.Unreadable.New("the callback is not in the format of gateway %s", r.GetGateway())
	}
	a := g.Acknowledge(ok)
	return &pb.HandleCallbackResponse{Status: int32(a.Status), ContentType: a.ContentType, Body: a.Body}, nil
}

func (s *Payments) ListNotices(ctx context.Context, r *pb.ListNoticesRequest) (*pb.ListNoticesResponse, error) {
	list, next, err := s.Reader.Notices(ctx, callOf(ctx).identity.Tenant, r.GetOutTradeNo(), int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListNoticesResponse{Notices: eachOf(list, renderNotice), NextPageToken: next}, err
}

// RefundPayment requests the refund, and waits for the gateway as CreatePayment does.
func (s *Payments) RefundPayment(ctx context.Context, r *pb.RefundPaymentRequest) (*pb.RefundPaymentResponse, error) {
	ctx = submitting(ctx)
	made, err := mutate(ctx, s.Mutations, refundPaymentOperation, r)
	res, err := made.reply(ctx, err)
	if err != nil || res.GetRefund().GetState() != pb.RefundState_REFUND_STATE_REQUESTED {
		return res, err
	}
	x := res.GetRefund()
	k := payment.RefundKey{Tenant: callOf(ctx).identity.Tenant, RefundNo: x.GetRefundNo()}
	name := payment.GatewayKey{Tenant: k.Tenant, Gateway: x.GetGateway()}
	if asked, ok := made.answer.(payment.RefundView); ok && asked.Lease != nil {
		s.Dispatcher.RunLeased(ctx, name, *asked.Lease, nil)
	}
	var v payment.RefundView
	err = s.awaitGateway(ctx, name, payment.OfRefund, k.RefundNo, func() (bool, error) {
		v, err = s.Reader.Refund(ctx, k)
		return v.State.State != machine.RefundRequested, err
	})
	if err != nil {
		return res, nil
	}
	return &pb.RefundPaymentResponse{Refund: renderRefund(&v), Existed: res.GetExisted()}, nil
}

var refundPaymentOperation = register("payment.refund_payment",
	func(c *call, d *decoder, r *pb.RefundPaymentRequest) mutation[*pb.RefundPaymentResponse] {
		cmd := &flow.RefundPayment{Caller: c.caller(), RefundKey: payment.RefundKey{RefundNo: r.GetRefundNo()},
			OutTradeNo: d.bizNo("out_trade_no", r.GetOutTradeNo()), Reason: d.printable("reason", r.GetReason()),
			Lease: c.firstLease()}
		if r.Amount != nil { // nil: all that is left; an empty text is invalid
			n := d.positive("amount", r.GetAmount(), ledger.Exact)
			cmd.Amount = &n
		}
		return newMutation(cmd, 2*paymentRows, func(v payment.RefundView, existed bool) *pb.RefundPaymentResponse {
			return &pb.RefundPaymentResponse{Refund: renderRefund(&v), Existed: existed}
		})
	})

func (s *Payments) GetRefund(ctx context.Context, r *pb.GetRefundRequest) (*pb.GetRefundResponse, error) {
	v, err := s.Reader.Refund(ctx, payment.RefundKey{Tenant: callOf(ctx).identity.Tenant, RefundNo: r.GetRefundNo()})
	if err != nil {
		return nil, err
	}
	return &pb.GetRefundResponse{Refund: renderRefund(&v)}, nil
}

func (s *Payments) ListRefunds(ctx context.Context, r *pb.ListRefundsRequest) (*pb.ListRefundsResponse, error) {
	if r.GetGateway() != "" || r.GetStartTime() != nil || r.GetEndTime() != nil {
		return s.refundsOf(ctx, r)
	}
	list, next, err := s.Reader.Refunds(ctx, callOf(ctx).identity.Tenant, r.GetOutTradeNo(), int(r.GetPageSize()),
		r.GetPageToken())
	return &pb.ListRefundsResponse{Refunds: eachOf(list, renderRefund), NextPageToken: next}, err
}

func (s *Payments) ListFlags(ctx context.Context, r *pb.ListFlagsRequest) (*pb.ListFlagsResponse, error) {
	state := ""
	if r.GetState() != pb.FlagState_FLAG_STATE_UNSPECIFIED {
		state = strings.ToLower(strings.TrimPrefix(r.GetState().String(), "FLAG_STATE_"))
	}
	list, next, err := s.Reader.Flags(ctx, callOf(ctx).identity.Tenant, state, int(r.GetPageSize()), r.GetPageToken())
	return &pb.ListFlagsResponse{Flags: eachOf(list, renderFlag), NextPageToken: next}, err
}

func (s *Payments) ResolveFlag(ctx context.Context, r *pb.ResolveFlagRequest) (*pb.ResolveFlagResponse, error) {
	return run(ctx, s.Mutations, resolveFlagOperation, r)
}

var resolveFlagOperation = register("payment.resolve_flag",
	func(c *call, d *decoder, r *pb.ResolveFlagRequest) mutation[*pb.ResolveFlagResponse] {
		cmd := &flow.ResolveFlag{Caller: c.caller(), ID: r.GetFlagId(), Resolution: flagResolutions[r.GetResolution()],
			Target: r.GetAccount(), RefundNo: r.GetRefundNo(), Note: d.printable("note", r.GetNote())}
		if (cmd.Target != "") != (cmd.Resolution == payment.WriteOff) {
			d.bad("account", "must be set to write off, and only then")
		} else if cmd.Target != "" {
			d.code("account", cmd.Target)
		}
		if (cmd.RefundNo != "") != (cmd.Resolution == payment.GiveBack) {
			d.bad("refund_no", "must be set to refund, and only then")
		}
		return newMutation(cmd, 3*paymentRows, func(v payment.FlagView, existed bool) *pb.ResolveFlagResponse {
			return &pb.ResolveFlagResponse{Flag: renderFlag(&v), Existed: existed}
		})
	})

var flagResolutions = map[pb.Resolution]payment.Resolution{
	pb.Resolution_RESOLUTION_ACCEPT:    payment.Accept,
	pb.Resolution_RESOLUTION_REFUND:    payment.GiveBack,
	pb.Resolution_RESOLUTION_WRITE_OFF: payment.WriteOff,
}

func renderGateway(g *payment.NamedGateway) *pb.Gateway {
	return &pb.Gateway{Gateway: g.Name, Clearing: g.Clearing, Suspense: g.Suspense, Payee: g.Payee}
}

func renderPayment(v *payment.View) *pb.Payment {
	return &pb.Payment{Id: v.ID, OutTradeNo: v.OutTradeNo, OrderNo: v.OrderNo, Gateway: v.Gateway, PayType: v.PayType,
		Attempt: int32(v.Attempt), State: pb.PaymentState(enum(pb.PaymentState_value, "PAYMENT_STATE_", v.State.State)),
		Revision: v.Revision, Asset: v.Asset, Amount: amount.Format(v.Amount, v.Scale), Payee: v.Payee,
		TransactionId: v.TransactionID, PayTime: timestamp(v.PaidAt),
		RefundingAmount: amount.Format(v.Refunding, v.Scale), RefundedAmount: amount.Format(v.Refunded, v.Scale),
		Credential: v.Credential, FailureCode: v.FailureCode, FailureText: v.FailureText,
		ExpireTime: timestamp(v.ExpiresAt), CreateTime: timestamp(v.CreatedAt), UpdateTime: timestamp(v.ChangedAt),
		Principal: v.Principal, RequestId: v.RequestID}
}

// enum returns the value of an enum for a stored text.
func enum(values map[string]int32, prefix, text string) int32 {
	return values[prefix+strings.ToUpper(text)]
}

func renderRefund(v *payment.RefundView) *pb.Refund {
	return &pb.Refund{Id: v.ID, RefundNo: v.RefundNo, OutTradeNo: v.OutTradeNo, Gateway: v.Gateway,
		TransactionId: v.TransactionID,
		State:         pb.RefundState(enum(pb.RefundState_value, "REFUND_STATE_", v.State.State)),
		Asset:         cmp.Or(v.Asset, v.Currency), Amount: amount.Format(v.Amount, v.Scale), Reason: v.Reason,
		Account: v.Account, GatewayRefundId: v.GatewayRefundID, FailureCode: v.FailureCode, FailureText: v.FailureText,
		CreateTime: timestamp(v.CreatedAt), UpdateTime: timestamp(v.ChangedAt), Principal: v.Principal,
		RequestId: v.RequestID}
}

func renderNotice(n *payment.NoticeView) *pb.Notice {
	return &pb.Notice{Id: n.ID, Gateway: n.Gateway, NotifyId: n.Received.ID, Callback: n.Callback,
		Kind:       pb.NoticeKind(enum(pb.NoticeKind_value, "NOTICE_KIND_", string(n.Kind))),
		OutTradeNo: n.OutTradeNo, TransactionId: n.TransactionID, RefundNo: n.RefundNo, Amount: n.Amount,
		Currency: n.Currency, OccurTime: timestamp(n.At),
		Effect: pb.NoticeEffect(enum(pb.NoticeEffect_value, "NOTICE_EFFECT_", string(n.Effect))), Detail: n.Detail,
		Headers: n.Header, Body: n.Body, RecordTime: timestamp(n.RecordedAt), RequestId: n.RequestID}
}

func renderFlag(f *payment.FlagView) *pb.Flag {
	x := &pb.Flag{Id: f.ID, Kind: pb.FlagKind(enum(pb.FlagKind_value, "FLAG_KIND_", string(f.Kind))), Detail: f.Detail,
		Gateway: f.Gateway, TransactionId: f.TransactionID, OutTradeNo: f.OutTradeNo, OrderNo: f.OrderNo,
		Asset: f.Asset, Currency: f.Currency, Amount: amount.Format(f.Amount, f.Scale), Account: f.Account,
		State:      pb.FlagState_FLAG_STATE_OPEN,
		Resolution: pb.Resolution(enum(pb.Resolution_value, "RESOLUTION_", string(f.Resolution))), Note: f.Note,
		RefundNo: f.RefundNo, CreateTime: timestamp(f.CreatedAt), ResolveTime: timestamp(f.Resolved.At),
		ResolvedBy: f.Principal, RequestId: cmp.Or(f.Resolved.RequestID, f.Flag.RequestID)}
	if f.Resolution != "" {
		x.State = pb.FlagState_FLAG_STATE_RESOLVED
	}
	return x
}
