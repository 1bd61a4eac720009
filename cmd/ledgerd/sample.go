package main

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1/ledgerv1connect"
)

// sample adds sample data to the tenant: two users with money, a shop, and the outside world. Every step has
// its own biz_no, so that it happens once, however often dev is started.
func sample(ctx context.Context, base string) error {
	c := ledgerv1connect.NewLedgerServiceClient(http.DefaultClient, base, connect.WithProtoJSON())
	_, err := c.CreateAssets(ctx, &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{
		{Code: "CNY", Scale: 2}, {Code: "USD", Scale: 2}, {Code: "POINT"}}})
	if err != nil {
		return err
	}
	var accounts []*ledgerv1.NewAccount
	for _, asset := range []string{"CNY", "USD", "POINT"} {
		accounts = append(accounts, &ledgerv1.NewAccount{Code: "world", Asset: asset,
			Kind: ledgerv1.AccountKind_ACCOUNT_KIND_EQUITY, Unbounded: true})
		for _, code := range []string{"user:1001:wallet", "user:1002:wallet", "merchant:shop"} {
			accounts = append(accounts, &ledgerv1.NewAccount{Code: code, Asset: asset})
		}
	}
	if _, err = c.CreateAccounts(ctx, &ledgerv1.CreateAccountsRequest{Accounts: accounts}); err != nil {
		if connect.CodeOf(err) != connect.CodeAlreadyExists { // changed by the user since: keep it
			return err
		}
	}
	_, err = c.TransferBatch(ctx, &ledgerv1.TransferBatchRequest{Items: []*ledgerv1.TransferBatchItem{
		topUp("sample-top-up-1001", "user:1001:wallet", "CNY", "1000.00"),
		topUp("sample-top-up-1002", "user:1002:wallet", "CNY", "500.00"),
		topUp("sample-points-1001", "user:1001:wallet", "POINT", "300"),
	}})
	return err
}

func topUp(bizNo, to, asset, amount string) *ledgerv1.TransferBatchItem {
	return &ledgerv1.TransferBatchItem{Transfer: &ledgerv1.TransferRequest{BizNo: bizNo, Type: "top-up",
		Postings: []*ledgerv1.Posting{{From: "world", To: to, Asset: asset, Amount: amount}}}}
}
