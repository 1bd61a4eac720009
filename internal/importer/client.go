// Package importer brings other people's books into the ledger. It is a client of the service, as
// anybody's program is: it makes assets and accounts on the way, sends transfers by the thousand, and
// asks nothing of the ledger but that a biz_no counts once. So a run that was cut off is simply started
// again, and a second run changes nothing.
//
// What reads a format is in the folders below; this package is what they share: the client, the
// sender, problems with their place in the file, and progress.
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

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

const (
	callTimeout = 2 * time.Minute
	attempts    = 8
	firstPause  = 100 * time.Millisecond
	maxPause    = 5 * time.Second
)

// Client calls the service, and calls again what may succeed the next time. Every call of an import
// may be repeated: assets and accounts that are there are left as they are, and so are transfers.
type Client struct {
	Ledger ledgerv1connect.LedgerServiceClient
	server string
	nonce  string // tells this run's calls from those of others
	pause  func(ctx context.Context, attempt int) error
}

// Dial makes a client. It calls nobody yet.
func Dial(server, apiKey string) *Client {
	httpClient := &http.Client{Transport: bearer{apiKey, http.DefaultTransport}, Timeout: callTimeout}
	// Answers are not compressed: the importer usually runs beside the server, and the answers are large.
	return &Client{Ledger: ledgerv1connect.NewLedgerServiceClient(httpClient, strings.TrimSuffix(server, "/"),
		connect.WithAcceptCompression("gzip", nil, nil)), server: server, nonce: rand.Text()[:12], pause: pause}
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

// pause waits a little longer every time, and never as long as the next one.
func pause(ctx context.Context, attempt int) error {
	d := min(time.Duration(float64(firstPause)*math.Pow(2, float64(attempt))), maxPause)
	select {
	case <-time.After(d/2 + randv2.N(d/2)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Call makes one call under a request id, and repeats it while that may help.
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

// passing tells whether an error may be gone the next time.
func passing(err error) bool {
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeResourceExhausted, connect.CodeAborted, connect.CodeDeadlineExceeded,
		connect.CodeUnknown:
		return true
	}
	return false
}

// reasonOf reads the ledger's own reason from an error.
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

// EnsureAssets makes assets. One that is there with more decimals than is asked for does as well: what
// it holds, it holds exactly.
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
			return fmt.Errorf("the asset %s has %d decimals in the ledger and %d in the file: an asset's decimals never change, so give it another code",
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

// ensureAccounts makes accounts, at most 1,000. One that is there with other limits or of another kind
// stays as it is, because somebody wants it so; those are returned.
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
