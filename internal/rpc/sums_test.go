package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/access"
	"github.com/ledgerd/ledgerd/internal/importer"
	"github.com/ledgerd/ledgerd/internal/importer/hledger"
	"github.com/ledgerd/ledgerd/internal/verify"
)

// The greatest amounts of assets with 0, 2 and 18 decimals, and their doubles, which no amount can have.
var greatest = map[string]struct {
	scale      int32
	one, twice string
}{
	"UNIT": {0, strings.Repeat("9", 38), "1" + strings.Repeat("9", 37) + "8"},
	"CENT": {2, strings.Repeat("9", 36) + ".99", "1" + strings.Repeat("9", 36) + ".98"},
	"ATTO": {18, strings.Repeat("9", 20) + "." + strings.Repeat("9", 18), "1" + strings.Repeat("9", 20) + "." +
		strings.Repeat("9", 17) + "8"},
}

// beyond creates accounts whose sums exceed 38 digits: of balances, of held amounts, and of one balance by effective
// time.
func beyond(c *caller, asset string) {
	c.T.Helper()
	big := greatest[asset]
	code := func(name string) string { return name + ":" + asset }
	ok(c, "CreateAssets", &ledgerv1.CreateAssetsRequest{Assets: []*ledgerv1.Asset{{Code: asset, Scale: big.scale}}},
		new(ledgerv1.CreateAssetsResponse))
	ok(c, "CreateAccounts", &ledgerv1.CreateAccountsRequest{Accounts: []*ledgerv1.NewAccount{
		{Code: code("world:1"), Asset: asset, Unbounded: true}, {Code: code("world:2"), Asset: asset, Unbounded: true},
		{Code: code("rich:1"), Asset: asset, MinBalance: proto.String("-" + big.one), MaxBalance: &big.one},
		{Code: code("rich:2"), Asset: asset},
		{Code: code("early"), Asset: asset}}}, new(ledgerv1.CreateAccountsResponse))
	move := func(from, to string, effective *timestamppb.Timestamp) {
		ok(c, "Transfer", &ledgerv1.TransferRequest{BizNo: code(from + to + effective.String()),
			EffectiveTime: effective,
			Postings:      posting(code(from), code(to), asset, big.one)}, new(ledgerv1.TransferResponse))
	}
	// Credit, debit, credit; the second credit has an effective time before the debit.
	on := func(day int) *timestamppb.Timestamp {
		return timestamppb.New(time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC))
	}
	move("world:1", "early", on(1))
	move("early", "world:1", on(20))
	move("world:1", "early", on(2))
	move("early", "world:1", on(21))
	for _, n := range []string{"1", "2"} {
		move("world:"+n, "rich:"+n, nil)
		ok(c, "Hold", &ledgerv1.HoldRequest{BizNo: code("hold" + n), From: code("rich:" + n), Asset: asset,
			Amount: big.one}, new(ledgerv1.HoldResponse))
	}
}

func TestSumsAbove38DigitsBreakNoRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	c := &caller{s, s.Key("mine", "boss", access.Admin)}
	c.prepareLedger("a") // in COIN, whose sums are small
	for asset := range greatest {
		beyond(c, asset)
	}
	for asset, big := range greatest {
		for _, x := range ok(c, "ListBalances", &ledgerv1.ListBalancesRequest{Pattern: "rich:**", Asset: asset},
			new(ledgerv1.ListBalancesResponse)).GetSums() {
			if x.GetBalance() != big.twice || x.GetHeld() != big.twice {
				t.Errorf("%s: sums %v", asset, x)
			}
		}
		early := ok(c, "GetBalance", &ledgerv1.GetBalanceRequest{Account: ref("early:"+asset, asset),
			At: &ledgerv1.GetBalanceRequest_EffectiveTime{EffectiveTime: timestamppb.New(time.Date(2026, 1, 3, 0, 0, 0,
				0, time.UTC))}}, new(ledgerv1.GetBalanceResponse))
		if early.GetBalance() != big.twice {
			t.Errorf("%s: balance by effective time %v", asset, early)
		}
	}
	trial := ok(c, "TrialBalance", &ledgerv1.TrialBalanceRequest{}, new(ledgerv1.TrialBalanceResponse))
	totals := map[string]string{}
	for _, x := range trial.GetTotals() {
		totals[x.GetAsset()] = x.GetDebit() + " " + x.GetCredit()
	}
	want := map[string]string{"COIN": "95.00 95.00"}
	for asset, big := range greatest {
		want[asset] = big.twice + " " + big.twice
	}
	if fmt.Sprint(totals) != fmt.Sprint(want) || len(trial.GetLines()) != 5+3*5 {
		t.Errorf("totals %v of %d lines, want %v", totals, len(trial.GetLines()), want)
	}
	// Other extreme values that are accepted: times, names, metadata.
	odd := strings.Repeat("\U0010FFFF", 32)
	for _, year := range []int{1, 1970, 2200, 9999} {
		m := &ledgerv1.TransferRequest{BizNo: fmt.Sprint(year, ` "'\\%_*~`),
			EffectiveTime: timestamppb.New(time.Date(year, 12, 31, 23, 59, 59, 0, time.UTC)),
			Type:          `"\\%_*~`, Metadata: map[string]string{odd[:60]: "\"'\\{}<>%00\u2028" + odd},
			Postings: posting("world", "u:a", "COIN", "0.01")}
		if a := c.call(connectJSON, "Transfer", m); a.Code != "" {
			t.Logf("effective in %d: %s", year, a.Message)
		}
	}
	readsAll(c)
}

// readsAll calls every read of the ledger on all resources, reads every view as an auditor, verifies and exports.
func readsAll(c *caller) {
	t := c.T
	t.Helper()
	called := []string{"WatchEntries"}
	read := func(name string, m proto.Message) {
		called = append(called, name)
		c.call(connectJSON, name, m).wants(t, fmt.Sprint(name, " ", m), "")
	}
	read("ListAssets", &ledgerv1.ListAssetsRequest{})
	read("ListAccounts", &ledgerv1.ListAccountsRequest{})
	read("ListTransfers", &ledgerv1.ListTransfersRequest{})
	read("ListHolds", &ledgerv1.ListHoldsRequest{})
	read("ListBalances", &ledgerv1.ListBalancesRequest{})
	for _, x := range ok(c, "ListHolds", &ledgerv1.ListHoldsRequest{}, new(ledgerv1.ListHoldsResponse)).GetHolds() {
		read("GetHold", &ledgerv1.GetHoldRequest{Hold: &ledgerv1.GetHoldRequest_HoldId{HoldId: x.GetId()}})
	}
	for _, x := range ok(c, "ListTransfers", &ledgerv1.ListTransfersRequest{},
		new(ledgerv1.ListTransfersResponse)).GetTransfers() {
		read("GetTransfer",
			&ledgerv1.GetTransferRequest{Target: &ledgerv1.GetTransferRequest_TransferId{TransferId: x.GetId()}})
	}
	now := timestamppb.New(time.Now().Add(-time.Second).Truncate(time.Second))
	for _, x := range ok(c, "ListAccounts", &ledgerv1.ListAccountsRequest{},
		new(ledgerv1.ListAccountsResponse)).GetAccounts() {
		account := ref(x.GetCode(), x.GetAsset())
		read("GetAccount", &ledgerv1.GetAccountRequest{Account: account})
		read("ListEntries", &ledgerv1.ListEntriesRequest{Account: account})
		read("GetBalance", &ledgerv1.GetBalanceRequest{Account: account})
		read("GetBalance", &ledgerv1.GetBalanceRequest{Account: account,
			At: &ledgerv1.GetBalanceRequest_RecordTime{RecordTime: now}})
		for _, day := range []time.Duration{-400, -30, 0, 400} {
			at := timestamppb.New(now.AsTime().Add(day * 24 * time.Hour))
			read("GetBalance", &ledgerv1.GetBalanceRequest{Account: account,
				At: &ledgerv1.GetBalanceRequest_EffectiveTime{EffectiveTime: at}})
		}
		read("TrialBalance", &ledgerv1.TrialBalanceRequest{Pattern: x.GetCode()})
	}
	watchAll(c, &ledgerv1.WatchEntriesRequest{})
	for _, m := range methods(t) {
		if name := callName(m); reads(m) && m.Parent().Name() == "LedgerService" && !slices.Contains(called, name) {
			t.Errorf("%s was not called", name)
		}
	}
	ctx := context.Background()
	rows, err := c.Pool.Query(ctx, `select relname::text from pg_class where relnamespace = 'audit'::regnamespace
		and relkind = 'v'`)
	if err != nil {
		t.Fatal(err)
	}
	views, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(views) < 10 {
		t.Fatal(views, err)
	}
	for _, view := range views {
		if _, err := c.Pool.Exec(ctx, "select * from audit."+view); err != nil {
			t.Errorf("audit.%s: %v", view, err)
		}
	}
	if report, err := verify.Run(ctx, c.Pool, verify.Options{}); err != nil || len(report.Found) > 0 {
		t.Errorf("verify: %v %v", report, err)
	}
	var journal bytes.Buffer
	if _, err := hledger.Export(ctx, hledger.ExportOptions{Conversion: "conversion", Out: &journal,
		Client: importer.Dial(c.Base, c.apiKey)}); err != nil {
		t.Errorf("export: %v", err)
	}
}
