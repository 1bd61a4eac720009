package server_test

import (
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/server/servertest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// writer returns a caller with an API key that may write.
func writer(s *servertest.Site) *servertest.Caller {
	s.T.Helper()
	return &servertest.Caller{Site: s, APIKey: s.Key("mine", "boss", access.Admin)}
}

// watcher is an API key that may read metrics.
func watcher(c *servertest.Caller) string { return c.Key("mine", "watcher", access.Admin) }

// fund creates the accounts "world", which is unbounded, and "u:" plus a tag, with 100 COIN.
func fund(c *servertest.Caller, tag string) {
	c.T.Helper()
	c.OK("CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: "COIN", Scale: 2}}},
		new(ledgerv1.CreateAssetsResponse))
	c.OK("CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: "world", Asset: "COIN", Unbounded: true}, {Code: "u:" + tag, Asset: "COIN"}}},
		new(ledgerv1.CreateAccountsResponse))
	c.OK("TransferBatch", &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{{
		Transfer: &ledgerv1.TransferRequest{BizNo: "fund-" + tag, Postings: []*ledgerv1.Posting{
			{From: "world", To: "u:" + tag, Asset: "COIN", Amount: "100"}}}}}, AllOrNothing: true},
		new(ledgerv1.TransferBatchResponse))
}

// payment pays from the account of a tag.
func payment(tag, amount string) *ledgerv1.TransferRequest {
	return &ledgerv1.TransferRequest{BizNo: "pay-" + tag,
		Postings: []*ledgerv1.Posting{{From: "u:" + tag, To: "world", Asset: "COIN", Amount: amount}}}
}
