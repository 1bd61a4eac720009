package once_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/ledgerd/ledgerd/client"
	"github.com/ledgerd/ledgerd/client/once"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

// bank is a Connect service whose answer depends on the requested amount.
type bank struct {
	ledgerv1connect.UnimplementedLedgerServiceHandler
	effects atomic.Int64
}

func (b *bank) Transfer(ctx context.Context, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, error) {
	n := b.effects.Add(1)
	fail := func(code connect.Code) error {
		e := connect.NewError(code, errors.New("no"))
		e.Meta().Set("X-Why", "because")
		if d, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "WHY"}); err == nil {
			e.AddDetail(d)
		}
		return e
	}
	switch r.GetType() {
	case "refused":
		return nil, fail(connect.CodeFailedPrecondition)
	case "failed":
		return nil, fail(connect.CodeUnavailable)
	case "bad":
		return nil, fail(connect.CodeInvalidArgument)
	case "unknown":
		once.Unknown(ctx)
		return nil, fail(connect.CodeDeadlineExceeded)
	}
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		info.ResponseHeader().Set("X-Extra", "here")
	}
	return &ledgerv1.TransferResponse{Transfer: &ledgerv1.Transfer{Id: n, BizNo: r.GetBizNo(),
		Metadata: r.GetMetadata()}}, nil
}

func TestUnaryCallsHaveOneEffectOverEveryProtocol(t *testing.T) {
	t.Parallel()
	c := client.New("http://" + startLedgerd(t).Addr())
	t.Cleanup(c.Close)
	b := &bank{}
	middleware := once.New(c, "bank", byUser, once.WithLog(slog.New(slog.DiscardHandler)))
	mux := http.NewServeMux()
	mux.Handle(ledgerv1connect.NewLedgerServiceHandler(b, connect.WithInterceptors(middleware.Interceptor())))
	web := httptest.NewUnstartedServer(mux)
	web.EnableHTTP2 = true
	web.StartTLS()
	t.Cleanup(web.Close)
	protocols := map[string][]connect.ClientOption{"connect": nil, "json": {connect.WithProtoJSON()},
		"grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}}
	clients := map[string]ledgerv1connect.LedgerServiceClient{}
	for name, opts := range protocols {
		clients[name] = ledgerv1connect.NewLedgerServiceClient(web.Client(), web.URL, opts...)
	}
	send := func(name, key string, r *ledgerv1.TransferRequest) (*ledgerv1.TransferResponse, bool, error) {
		ctx, info := connect.NewClientContext(context.Background())
		info.RequestHeader().Set("Idempotency-Key", key)
		res, err := clients[name].Transfer(ctx, r)
		replayed := client.Replayed(info)
		if extra := info.ResponseHeader().Values("X-Extra"); err == nil && len(extra) != 1 {
			t.Errorf("X-Extra is %q, replayed %v", extra, replayed)
		}
		if e := (*connect.Error)(nil); errors.As(err, &e) {
			replayed = e.Meta().Get("Idempotency-Replayed") == "true"
		}
		return res, replayed, err
	}
	names := map[string]string{"a": "1", "b": "2", "c": "3"}
	for first := range protocols {
		before := b.effects.Load()
		r := &ledgerv1.TransferRequest{BizNo: first, Metadata: names}
		res, replayed, err := send(first, "k-"+first, r)
		if err != nil || replayed {
			t.Fatalf("%s: %v, replayed %v", first, err, replayed)
		}
		for then := range protocols {
			again, replayed, err := send(then, "k-"+first, r)
			if err != nil || !replayed || again.GetTransfer().GetId() != res.GetTransfer().GetId() ||
				again.GetTransfer().GetMetadata()["c"] != "3" {
				t.Errorf("%s, then %s: %v, %v, replayed %v", first, then, again, err, replayed)
			}
			if _, _, err := send(then, "k-"+first,
				&ledgerv1.TransferRequest{BizNo: "other"}); client.ReasonOf(err) != client.ReasonKeyReused ||
				connect.CodeOf(err) != connect.CodeAlreadyExists {
				t.Errorf("%s with other content: %v", then, err)
			}
		}
		if n := b.effects.Load() - before; n != 1 {
			t.Errorf("%s: %d effects", first, n)
		}
		for kind, kept := range map[string]bool{"refused": true, "failed": false, "bad": false} {
			before := b.effects.Load()
			for i := range 2 {
				_, replayed, err := send(first, kind+first, &ledgerv1.TransferRequest{Type: kind})
				e := new(connect.Error)
				if !errors.As(err, &e) || e.Message() != "no" || e.Meta().Get("X-Why") != "because" ||
					len(e.Details()) != 1 || replayed != (kept && i == 1) {
					t.Errorf("%s over %s, %d: %v, replayed %v", kind, first, i, err, replayed)
				}
			}
			if n := b.effects.Load() - before; (n == 1) != kept {
				t.Errorf("%s: %d effects", kind, n)
			}
		}
		for i, want := range []connect.Code{connect.CodeDeadlineExceeded, connect.CodeFailedPrecondition,
			connect.CodeFailedPrecondition} {
			if _, _, err := send(first, "unknown"+first,
				&ledgerv1.TransferRequest{Type: "unknown"}); connect.CodeOf(err) != want {
				t.Errorf("unknown, %d: %v", i, err)
			}
		}
	}
}
