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

// The database clock was ahead, past the end of a month, and has been corrected. The batch is recorded in that month
// because of the account's last entry. Its message is still found: a repeat is recognised, and the message can be
// cancelled.
func TestAMessageIsFoundAfterTheClockWasAhead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // the checks would report the account's time
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
	do(flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}}))
	do(flow.Ledger(&ledger.CreateAccountsCommand{Caller: caller, Accounts: []ledger.NewAccount{
		{Code: "a", Asset: "CNY", Kind: "equity"}, {Code: "b", Asset: "CNY", Kind: "equity"}}}))
	change(t, db, "update ledger_accounts set last_entry_at = now() + interval '40 days' where code = 'b'")
	pay := &ledger.TransferCommand{Caller: caller, TransferParams: ledger.TransferParams{BizNo: "t", Type: "transfer",
		Postings: []ledger.Posting{{From: "a", To: "b", Asset: "CNY", Amount: one}}}}
	first := do(flow.Ledger(pay), flow.Notify(text(bizNo("n"))))[1].Outcome.Answer.(*notify.Message)
	again, existed, err := p.send(bizNo("n"))
	if err != nil || !existed || again.ID != first.ID || again.State != notify.Queued {
		t.Fatalf("repeat: %+v, %v, %v", again, existed, err)
	}
	if _, err := p.do(&notify.CancelCommand{Caller: caller, ID: first.ID}); err != nil {
		t.Error(err)
	}
}
