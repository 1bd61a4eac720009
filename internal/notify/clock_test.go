package notify_test

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/notify"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// The database's clock was ahead over the end of a month, and is right again. A message in a batch with an account of
// then is found: it is not sent again, and can be cancelled.
func TestAMessageIsFoundAfterTheClockWasAhead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // they find the account's time
	p := start(t, db, 0)
	do := func(commands ...flow.Command) []commit.Result {
		t.Helper()
		var submissions []flow.Submission
		for _, c := range commands {
			submissions = append(submissions,
				flow.Submission{Tenant: 1, RequestID: "r", Command: c, Rows: 1, Bytes: 100})
		}
		results := p.engine.DoAll(t.Context(), submissions)
		for _, r := range results {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		return results
	}
	one, err := amount.ParseDecimal("1")
	if err != nil {
		t.Fatal(err)
	}
	do(flow.Ledger(&ledger.CreateAssetsCommand{Caller: who, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}))
	do(flow.Ledger(&ledger.CreateAccountsCommand{Caller: who, Accounts: []ledger.NewAccount{
		{Code: "a", Asset: "CNY", Kind: "equity"}, {Code: "b", Asset: "CNY", Kind: "equity"}}}))
	change(t, db, "update ledger_accounts set last_entry_at = now() + interval '40 days' where code = 'b'")
	pay := &ledger.TransferCommand{Caller: who, TransferParams: ledger.TransferParams{BizNo: "t", Type: "transfer",
		Postings: []ledger.Posting{{From: "a", To: "b", Asset: "CNY", Amount: one}}}}
	first := do(flow.Ledger(pay), flow.Notify(text(bizNo("n"))))[1].Outcome.Answer.(*notify.Message)
	again, existed, err := p.send(bizNo("n"))
	if err != nil || !existed || again.ID != first.ID || again.State != notify.Queued {
		t.Fatalf("the same again: %+v, %v, %v", again, existed, err)
	}
	if _, err := p.do(&notify.CancelCommand{Caller: who, ID: first.ID}); err != nil {
		t.Error(err)
	}
}
