package load

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	idempotencyv1 "github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/idempotency/v1/idempotencyv1connect"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	lockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/lock/v1/lockv1connect"
	salev1 "github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/sale/v1/salev1connect"
	stockv1 "github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/stock/v1/stockv1connect"
)

// pairEnv has the URLs of two servers, separated by a comma, with an API key before the host if the server wants one:
// http://KEY@127.0.0.1:8080.
const pairEnv = "LEDGERD_PAIR"

const (
	pairAccounts = 10_000
	pairSlice    = 100 * time.Millisecond
	pairSale     = "bench-pair"
)

// BenchmarkPair compares two running servers, such as two versions of ledgerd, each with its own Postgres. It
// alternates between them in short slices, because the speed of a machine can change by half within minutes.
// -benchtime 200x makes 200 pairs of slices. ratio is the median of the second server's calls per second divided by
// the first server's; low and high are quartiles.
func BenchmarkPair(b *testing.B) {
	if os.Getenv(pairEnv) == "" {
		b.Skip(pairEnv + " has no URLs of two servers")
	}
	var servers [2]Spec
	addresses := strings.Split(os.Getenv(pairEnv), ",")
	if len(addresses) != len(servers) {
		b.Fatalf("%s: want two URLs, separated by a comma", pairEnv)
	}
	for i, address := range addresses {
		u, err := url.Parse(address)
		if err != nil {
			b.Fatalf("%s: URL %d is malformed", pairEnv, i+1) // the error would show the API key
		}
		servers[i] = Spec{APIKey: u.User.Username(), Accounts: pairAccounts, Stride: 1, Hot: -1,
			Patience: 20 * time.Second}
		u.User = nil
		servers[i].URL = u.String()
	}
	run := rand.Uint32()
	for i := range servers {
		prepare(b, &servers[i], createPairAccounts)
	}
	for _, x := range []struct {
		name           string
		callers, items int
		hot, sale      bool
		client         bool // the Go client, with WithGather
		request        func(key string) (procedure string, m proto.Message)
	}{
		{name: "transfer-1", callers: 1},
		{name: "transfer-64", callers: 64},
		{name: "transfer-256", callers: 256},
		{name: "hot-256", callers: 256, hot: true},
		{name: "client-1024", callers: 1024, client: true},
		{name: "batch-8", callers: 8, items: 1000},
		{name: "claim-256", callers: 256, request: func(key string) (string, proto.Message) {
			return idempotencyv1connect.IdempotencyServiceClaimKeyProcedure, &idempotencyv1.ClaimKeyRequest{Key: key}
		}},
		{name: "token-256", callers: 256, request: func(string) (string, proto.Message) {
			return idempotencyv1connect.IdempotencyServiceIssueTokensProcedure,
				&idempotencyv1.IssueTokensRequest{Purpose: "order", Count: 1}
		}},
		{name: "work-256", callers: 256, request: func(key string) (string, proto.Message) {
			return idempotencyv1connect.IdempotencyServiceBeginProcedure,
				&idempotencyv1.BeginRequest{Scope: "bench", Key: key, Fingerprint: []byte("0123456789abcdef")}
		}},
		{name: "lock-256", callers: 256, request: func(key string) (string, proto.Message) {
			return lockv1connect.LockServiceAcquireProcedure, &lockv1.AcquireRequest{Name: key, Holder: "bench"}
		}},
		{name: "late-256", callers: 256, sale: true, request: func(key string) (string, proto.Message) {
			return salev1connect.SaleServiceGrabProcedure,
				&salev1.GrabRequest{Sale: pairSale, Grab: &salev1.Grab{Buyer: key}}
		}},
	} {
		b.Run(x.name, func(b *testing.B) {
			var calls [2][]func() Outcome
			for i, spec := range servers {
				run++ // biz_nos are new in each case, and most probably since the server started
				spec.Kind, spec.Run, spec.Items = HTTP, fmt.Sprintf("%04x", run%0x10000), x.items
				if x.client {
					spec.Kind, spec.Gather = Client, true
				}
				if x.sale {
					prepare(b, &spec, putPairSale)
				}
				if x.hot {
					spec.Hot, spec.Accounts = pairAccounts-1, pairAccounts-1
				}
				open, err := opener(b.Context(), &spec)
				if err != nil {
					b.Fatal(err)
				}
				for n := range x.callers {
					calls[i] = append(calls[i], pairCall(b, &spec, open, n, x.request))
				}
			}
			b.ResetTimer()
			comparePair(b, calls)
		})
	}
}

// pairCall returns one caller: of transfers, or of the request for a key that is new in every call.
func pairCall(b *testing.B, spec *Spec, open func(n int) (caller, error), n int,
	request func(key string) (string, proto.Message)) func() Outcome {
	b.Helper()
	if request == nil {
		c, err := open(n)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(c.close)
		return c.call
	}
	c := &httpConn{}
	if err := c.open(spec); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.close)
	begun, calls := time.Now().UnixNano(), 0
	return func() Outcome {
		calls++
		procedure, m := request(fmt.Sprintf("%d-%d-%d", begun, n, calls))
		if err := c.unary(spec, procedure, m, nil); err != nil {
			return Outcome{Refused: 1, Err: err}
		}
		return Outcome{Succeeded: 1}
	}
}

// comparePair measures both servers once for each pair. Pairs alternate which server is measured first.
func comparePair(b *testing.B, calls [2][]func() Outcome) {
	b.Helper()
	var ratios []float64
	for n := range b.N {
		var rate [2]float64
		for _, i := range []int{n % 2, 1 - n%2} {
			r, err := Measure(b.Context(), calls[i], pairSlice/5, pairSlice, func(string) {})
			if err != nil {
				b.Fatal(err)
			}
			if r.Refused+r.Unknown > 0 || r.Measured == 0 {
				b.Fatalf("server %d: %d refused, %d unknown: %s", i+1, r.Refused, r.Unknown, r.FirstError)
			}
			rate[i] = float64(r.Measured) / r.Seconds
		}
		ratios = append(ratios, rate[1]/rate[0])
	}
	slices.Sort(ratios)
	for unit, at := range map[string]float64{"low": 0.25, "ratio": 0.5, "high": 0.75} {
		b.ReportMetric(ratios[int(at*float64(len(ratios)-1))], unit)
	}
}

func prepare(b *testing.B, spec *Spec, calls func(call func(procedure string, m proto.Message))) {
	b.Helper()
	var c httpConn
	if err := c.open(spec); err != nil {
		b.Fatal(err)
	}
	defer c.close()
	calls(func(procedure string, m proto.Message) {
		if err := c.unary(spec, procedure, m, nil); err != nil {
			b.Fatal(err)
		}
	})
}

func createPairAccounts(call func(procedure string, m proto.Message)) {
	call(ledgerv1connect.LedgerServiceCreateAssetsProcedure,
		&ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: Asset, Scale: 2}}})
	for first := 0; first < pairAccounts; first += 1000 {
		r := &ledgerv1.CreateAccountsRequest{}
		for n := first; n < first+1000; n++ {
			r.Accounts = append(r.Accounts, &ledgerv1.NewAccount{Code: Code(n), Asset: Asset, Unbounded: true})
		}
		call(ledgerv1connect.LedgerServiceCreateAccountsProcedure, r)
	}
}

// putPairSale creates a sale without units.
func putPairSale(call func(procedure string, m proto.Message)) {
	call(stockv1connect.StockServicePutItemProcedure, &stockv1.PutItemRequest{Item: pairSale})
	call(salev1connect.SaleServicePutSaleProcedure, &salev1.PutSaleRequest{Sale: &salev1.Sale{Sale: pairSale,
		Item: pairSale, Gives: &salev1.Sale_Order{Order: &salev1.SaleOrder{Asset: Asset, Amount: "1"}}}})
}
