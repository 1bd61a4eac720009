package rpc_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	orderv1 "github.com/ledgerd/ledgerd/gen/ledgerd/order/v1"
	paymentv1 "github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/gateway"
	"github.com/ledgerd/ledgerd/internal/inbox"
	paid "github.com/ledgerd/ledgerd/internal/payment"
	"github.com/ledgerd/ledgerd/internal/rpc"
)

// A message of a broker may create orders and payments, which need generated numbers and configured gateways, as a call
// over the wire may.
func TestMessagesMakeOrdersAndPayments(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.preparePayments("a")
	made := 0
	gate := &rpc.Gate{NewOrderNo: func() (string, error) { made++; return fmt.Sprintf("made-%d", made), nil },
		Gateway: func(paid.GatewayKey) *gateway.Configured { return nil }}
	m := &rpc.Messages{Mutations: &rpc.Mutations{Engine: c.engine(), KeyLife: time.Hour}, Gate: gate}
	for i, r := range []proto.Message{
		&orderv1.CreateOrderRequest{Subject: "u", Asset: "COIN", Amount: "1"},
		&paymentv1.CreatePaymentRequest{OrderNo: "due-a", Gateway: "till"},
		&paymentv1.RefundPaymentRequest{RefundNo: "refund-back", OutTradeNo: "paid-a", Amount: proto.String("0.1")},
	} {
		in := &rpc.Incoming{Identity: access.Identity{Tenant: c.tenant(), Principal: "orders", Role: access.Write},
			Request: string(r.ProtoReflect().Descriptor().FullName()), Key: inbox.Key{Group: "g", ID: fmt.Sprint(i)},
			Delivery: inbox.Delivery{Topic: "t", Content: connectJSON.Encode(t, r), ContentLife: time.Hour,
				MaxAttempts: 3, Backoff: time.Second, MaxBackoff: time.Minute}}
		if err := m.Run(t.Context(), in); err != nil {
			t.Errorf("%T: %v", r, err)
		}
	}
	if n := c.Count("select count(*) from payment_calls where lease_expires_at is null"); n < 2 {
		t.Errorf("%d calls are left to workers", n)
	}
}
