// Package importer imports books of other systems into the ledger. It is an ordinary client of the server: it
// creates assets and accounts as needed, sends transfers in batches of a thousand, and relies only on the
// uniqueness of biz_nos. An interrupted run is simply started again, and a second run changes nothing.
//
// The subpackages read the formats. This package has their common part: the client, the sender, problems with
// their place in the file, and progress.
package importer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	randv2 "math/rand/v2"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/ledgerd/ledgerd/client"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
	"github.com/ledgerd/ledgerd/gen/ledgerd/payment/v1/paymentv1connect"
)

const (
	callTimeout = 2 * time.Minute
	attempts    = 8
	firstPause  = 100 * time.Millisecond
	maxPause    = 5 * time.Second
)

// Client calls the server and retries transient errors. Every call of an import is idempotent: existing assets,
// accounts and transfers are left unchanged.
type Client struct {
	Ledger   ledgerv1connect.LedgerServiceClient
	Payments paymentv1connect.PaymentServiceClient
	server   string
	nonce    string // distinguishes this run's calls from other runs'
	pause    func(ctx context.Context, attempt int) error
}

// Dial makes a client without connecting.
func Dial(server, apiKey string) *Client {
	httpClient := &http.Client{Transport: bearer{apiKey, http.DefaultTransport}, Timeout: callTimeout,
		CheckRedirect: client.RefuseRedirect}
	// Answers are not compressed: the importer usually runs near the server, and answers are large.
	plain, url := connect.WithAcceptCompression("gzip", nil, nil), strings.TrimSuffix(server, "/")
	return &Client{Ledger: ledgerv1connect.NewLedgerServiceClient(httpClient, url, plain),
		Payments: paymentv1connect.NewPaymentServiceClient(httpClient, url, plain), server: server,
		nonce: rand.Text()[:12], pause: pause}
}

type bearer struct {
	key  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.key)
	}
	return b.next.RoundTrip(r)
}

// pause backs off with jitter, longer with every attempt.
func pause(ctx context.Context, attempt int) error {
	d := min(time.Duration(float64(firstPause)*math.Pow(2, float64(attempt))), maxPause)
	select {
	case <-time.After(d/2 + randv2.N(d/2)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Call makes one call under a request id and retries transient errors.
func Call[Q, R any](ctx context.Context, c *Client, requestID string, method func(context.Context, Q) (R, error),
	q Q) (R, error) {
	for attempt := 0; ; attempt++ {
		callCtx, info := connect.NewClientContext(ctx)
		if requestID != "" {
			info.RequestHeader().Set("X-Request-ID", requestID)
		}
		r, err := method(callCtx, q)
		if err == nil || ctx.Err() != nil || !passing(err) {
			return r, err
		}
		if attempt+1 == attempts {
			return r, fmt.Errorf("%s does not answer (%w): run the import again, and it continues where it stopped",
				c.server, err)
		}
		if err := c.pause(ctx, attempt); err != nil {
			return r, err
		}
	}
}

// passing reports whether an error is transient.
func passing(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeResourceExhausted, connect.CodeAborted, connect.CodeDeadlineExceeded,
		connect.CodeUnknown:
		return true
	}
	return false
}

// reasonOf returns the ledger's reason in an error.
func reasonOf(err error) (reason string, metadata map[string]string) {
	var e *connect.Error
	if !errors.As(err, &e) {
		return "", nil
	}
	for _, d := range e.Details() {
		if m, err := d.Value(); err == nil {
			if info, ok := m.(*errdetails.ErrorInfo); ok {
				return info.GetReason(), info.GetMetadata()
			}
		}
	}
	return "", nil
}

// EnsureAssets creates missing assets. An existing asset with more decimals than requested is sufficient,
// because it represents the amounts exactly.
func (c *Client) EnsureAssets(ctx context.Context, assets []*ledgerv1.Asset) error {
	there, err := Call(ctx, c, "", c.Ledger.ListAssets, &ledgerv1.ListAssetsRequest{})
	if err != nil {
		return fmt.Errorf("list the assets: %w", err)
	}
	scales := make(map[string]int32, len(there.GetAssets()))
	for _, a := range there.GetAssets() {
		scales[a.GetCode()] = a.GetScale()
	}
	var missing []*ledgerv1.Asset
	for _, a := range assets {
		scale, ok := scales[a.GetCode()]
		switch {
		case !ok:
			missing = append(missing, a)
		case scale < a.GetScale():
			return fmt.Errorf("the asset %s has %d decimals in the ledger and %d in the file: "+
				"an asset's decimals never change, so give it another code",
				a.GetCode(), scale, a.GetScale())
		}
	}
	for len(missing) > 0 {
		n := min(len(missing), batchItems)
		if _, err := Call(ctx, c, "", c.Ledger.CreateAssets,
			&ledgerv1.CreateAssetsRequest{Assets: missing[:n]}); err != nil {
			return fmt.Errorf("make the assets: %w", err)
		}
		missing = missing[n:]
	}
	return nil
}

// ensureAccounts creates at most 1,000 accounts. An existing account with other limits or another kind is left
// unchanged, because its settings may be deliberate; those are returned.
func (c *Client) ensureAccounts(ctx context.Context, accounts []*ledgerv1.NewAccount) (kept []string, err error) {
	for len(accounts) > 0 {
		_, err := Call(ctx, c, "", c.Ledger.CreateAccounts, &ledgerv1.CreateAccountsRequest{Accounts: accounts})
		if err == nil {
			return kept, nil
		}
		reason, about := reasonOf(err)
		if reason != "ACCOUNT_EXISTS_DIFFERENT" {
			return kept, fmt.Errorf("make the accounts: %w", err)
		}
		rest := make([]*ledgerv1.NewAccount, 0, len(accounts))
		for _, a := range accounts {
			if a.GetCode() != about["account"] || a.GetAsset() != about["asset"] {
				rest = append(rest, a)
			}
		}
		if len(rest) == len(accounts) {
			return kept, fmt.Errorf("make the accounts: %w", err)
		}
		kept = append(kept, about["account"])
		accounts = rest
	}
	return kept, nil
}

// Accounts calls see for every account that matches a pattern.
func (c *Client) Accounts(ctx context.Context, pattern, asset string, see func(*ledgerv1.Account)) error {
	for token := ""; ; {
		page, err := Call(ctx, c, "", c.Ledger.ListAccounts,
			&ledgerv1.ListAccountsRequest{Pattern: pattern, Asset: asset, PageSize: 1000, PageToken: token})
		if err != nil {
			return fmt.Errorf("list the accounts: %w", err)
		}
		for _, a := range page.GetAccounts() {
			see(a)
		}
		if token = page.GetNextPageToken(); token == "" {
			return nil
		}
	}
}
