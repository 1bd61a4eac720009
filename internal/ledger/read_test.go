package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// readWorld is a database with an engine for writes and a Reader.
type readWorld struct {
	*testing.T
	*ledger.Reader
	db     *pgtest.DB
	pool   *pgxpool.Pool
	engine *flow.Engine
	ctx    context.Context
	tenant int32
}

func newReadWorld(t *testing.T) *readWorld {
	t.Helper()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	w := &readWorld{T: t, Reader: ledger.NewReader(pool), db: db, pool: pool, ctx: t.Context(), tenant: 1}
	w.engine = w.newEngine()
	w.setUp()
	return w
}

// setUp creates the tenant's assets and the world accounts.
func (w *readWorld) setUp() {
	w.Helper()
	w.do(&ledger.CreateAssetsCommand{Caller: w.caller(),
		Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}, {Code: "JPY"}}})
	w.do(&ledger.CreateAccountsCommand{Caller: w.caller(), Accounts: []ledger.NewAccount{
		{Code: "world", Asset: "CNY", Kind: "equity"}, {Code: "world", Asset: "JPY", Kind: "equity"}}})
}

func (w *readWorld) newEngine() *flow.Engine {
	w.Helper()
	pool := pgtest.Pool(w.T, w.db.AllDSN)
	e := flow.NewEngine(pool, w.Name(), nil, nil)
	w.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			w.Error(err)
		}
	})
	return e
}

func (w *readWorld) caller() commit.Caller {
	return commit.Caller{Tenant: w.tenant, Principal: "test", RequestID: "r"}
}

// ledgerCommand is a command on the ledger's Tx.
type ledgerCommand interface {
	Need(*ledger.Tx)
	Apply(*ledger.Tx) (any, error)
}

func (w *readWorld) submission(c ledgerCommand) flow.Submission {
	return flow.Submission{Tenant: w.tenant, Rows: 4, Bytes: 400, RequestID: "r", Command: flow.Ledger(c)}
}

func (w *readWorld) do(c ledgerCommand) any {
	w.Helper()
	out, err := w.engine.Do(w.ctx, w.submission(c))
	if err != nil {
		w.Fatal(err)
	}
	return out.Answer
}

func (w *readWorld) accounts(asset string, codes ...string) {
	w.Helper()
	c := &ledger.CreateAccountsCommand{Caller: w.caller()}
	zero := dec("0")
	for _, code := range codes {
		c.Accounts = append(c.Accounts, ledger.NewAccount{Code: code, Asset: asset, Kind: "liability", Min: &zero,
			Metadata: map[string]string{"of": code}})
	}
	w.do(c)
}

func (w *readWorld) transfer(bizNo, from, to, n string, change ...func(*ledger.TransferParams)) *ledger.Transfer {
	w.Helper()
	return w.do(w.transferCommand(bizNo, from, to, n, change...)).(*ledger.Transfer)
}

func (w *readWorld) transferCommand(bizNo, from, to, n string,
	change ...func(*ledger.TransferParams)) *ledger.TransferCommand {
	c := &ledger.TransferCommand{Caller: w.caller(),
		TransferParams: ledger.TransferParams{BizNo: bizNo, Type: "transfer",
			Postings: []ledger.Posting{{From: from, To: to, Asset: "CNY", Amount: dec(n)}}}}
	for _, f := range change {
		f(&c.TransferParams)
	}
	return c
}

func (w *readWorld) hold(bizNo, from, n string) *ledger.Hold {
	w.Helper()
	return w.do(&ledger.HoldCommand{Caller: w.caller(),
		HoldParams: ledger.HoldParams{BizNo: bizNo, From: from, To: "world",
			Asset: "CNY", Amount: dec(n), Life: time.Hour, Metadata: map[string]string{"for": bizNo}}}).(*ledger.Hold)
}

// must is for calls that must not fail in their test.
func must[A any](a A, err error) A {
	if err != nil {
		panic(err)
	}
	return a
}

func dec(s string) amount.Decimal {
	d, err := amount.ParseDecimal(s)
	if err != nil {
		panic(err)
	}
	return d
}

func TestAccountIsReadWithItsMetadata(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	w.transfer("fund", "world", "user:1", "10")
	w.hold("h", "user:1", "4")
	a := must(w.Account(w.ctx, 1, "user:1", "CNY"))
	if a.Balance.String() != "1000" || a.Held.String() != "400" || a.Version != 1 || a.Metadata["of"] != "user:1" ||
		a.CreatedAt.IsZero() || a.LastEntryAt.IsZero() || a.Kind != "liability" || a.State != ledger.Open ||
		a.Min == nil || a.Max != nil {
		t.Errorf("account %+v", a)
	}
	b := must(w.Balance(w.ctx, 1, "user:1", "CNY"))
	if b.Balance.String() != "1000" || b.Held.String() != "400" || b.Available == nil ||
		b.Available.String() != "600" || b.Version != 1 {
		t.Errorf("balance %+v", b)
	}
	if b := must(w.Balance(w.ctx, 1, "world", "CNY")); b.Available != nil || b.Balance.String() != "-1000" {
		t.Errorf("balance of the world %+v", b)
	}
}

func TestTransferIsReadByIDAndByBizNoAsWritten(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1", "user:2")
	made := w.transfer("two", "world", "user:1", "10", func(p *ledger.TransferParams) {
		p.Postings = append(p.Postings, ledger.Posting{From: "user:1", To: "user:2", Asset: "CNY", Amount: dec("99"),
			Form: ledger.UpTo})
		p.Metadata = map[string]string{"order": "7"}
		p.EffectiveAt = time.Now().Add(-time.Hour).UTC().Truncate(time.Microsecond)
	})
	reversal := w.do(&ledger.ReverseCommand{Caller: w.caller(),
		ReverseParams: ledger.ReverseParams{TransferID: made.ID, BizNo: "back"}}).(*ledger.Transfer)
	byID := must(w.Transfer(w.ctx, 1, made.ID, ""))
	byName := must(w.Transfer(w.ctx, 1, 0, "two"))
	for _, got := range []*ledger.Transfer{byID, byName} {
		if got.ID != made.ID || got.BizNo != "two" || got.ReversedByID != reversal.ID || got.Metadata["order"] != "7" ||
			!got.EffectiveAt.Equal(made.EffectiveAt) || !got.RecordedAt.Equal(made.RecordedAt) ||
			got.Forms != made.Forms || got.Forms == "" {
			t.Errorf("transfer %+v, made %+v", got, made)
		}
		if !slices.Equal(got.Entries, made.Entries) {
			t.Errorf("entries %+v, made %+v", got.Entries, made.Entries)
		}
	}
	both := must(w.TransfersByID(w.ctx, 1, []int64{reversal.ID, made.ID, reversal.ID}))
	if len(both) != 3 || both[0].ID != reversal.ID || both[0].ReversesID != made.ID || both[1].ID != made.ID ||
		both[2].ID != reversal.ID {
		t.Errorf("by ids %+v", both)
	}
	if none := must(w.TransfersByID(w.ctx, 1, nil)); len(none) != 0 {
		t.Errorf("no ids: %+v", none)
	}
}

func TestHoldIsReadByIDAndByBizNo(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	w.transfer("fund", "world", "user:1", "10")
	made := w.hold("h", "user:1", "4")
	part := dec("1")
	c := ledger.CaptureOf(made.ID, "")
	c.BizNo, c.Amount, c.Type = "c", &part, "capture"
	w.do(&ledger.CaptureCommand{Caller: w.caller(), CaptureParams: c})
	for _, h := range []*ledger.Hold{must(w.Hold(w.ctx, 1, made.ID, "")), must(w.Hold(w.ctx, 1, 0, "h"))} {
		if h.ID != made.ID || h.BizNo != "h" || h.From != "user:1" || h.To != "world" ||
			h.Remaining().String() != "300" ||
			h.Captured.String() != "100" || h.State != ledger.Held || h.Metadata["for"] != "h" ||
			!h.ExpiresAt.Equal(made.ExpiresAt) {
			t.Errorf("hold %+v, made %+v", h, made)
		}
	}
}

// TestTenantSeesItsOwnRowsOnly requests all of a tenant's objects as another tenant that has empty accounts of
// the same codes.
func TestTenantSeesItsOwnRowsOnly(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	transfer := w.transfer("fund", "world", "user:1", "10")
	hold := w.hold("h", "user:1", "4")
	at := must(w.now())
	w.tenant = 2
	w.setUp()
	w.accounts("CNY", "user:1")

	missing := map[string]error{}
	_, missing["transfer by id"] = w.Transfer(w.ctx, 2, transfer.ID, "")
	_, missing["transfer by biz_no"] = w.Transfer(w.ctx, 2, 0, "fund")
	_, missing["transfers by id"] = w.TransfersByID(w.ctx, 2, []int64{transfer.ID})
	_, missing["hold by id"] = w.Hold(w.ctx, 2, hold.ID, "")
	_, missing["hold by biz_no"] = w.Hold(w.ctx, 2, 0, "h")
	_, missing["account"] = w.Account(w.ctx, 3, "user:1", "CNY")
	_, missing["balance"] = w.Balance(w.ctx, 3, "user:1", "CNY")
	_, missing["balance at record"] = w.BalanceAtRecord(w.ctx, 3, "user:1", "CNY", at)
	_, missing["balance at effective"] = w.BalanceAtEffective(w.ctx, 3, "user:1", "CNY", at)
	_, _, missing["statement"] = w.Statement(w.ctx, 3, "user:1", "CNY", ledger.StatementFilter{}, ledger.Page{})
	for name, err := range missing {
		if f := fault.Of(err); f == nil || f.Reason.Code != fault.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}

	transfers, _, err := w.Transfers(w.ctx, 2, ledger.TransferFilter{}, ledger.Page{})
	if err != nil || len(transfers) > 0 {
		t.Errorf("transfers %v, %v", transfers, err)
	}
	holds, _, err := w.Holds(w.ctx, 2, ledger.HoldFilter{}, ledger.Page{})
	if err != nil || len(holds) > 0 {
		t.Errorf("holds %v, %v", holds, err)
	}
	holds, _, err = w.Holds(w.ctx, 2, ledger.HoldFilter{From: "user:1", State: ledger.Held}, ledger.Page{})
	if err != nil || len(holds) > 0 {
		t.Errorf("open holds %v, %v", holds, err)
	}
	lines, _, err := w.Statement(w.ctx, 2, "user:1", "CNY", ledger.StatementFilter{}, ledger.Page{})
	if err != nil || len(lines) > 0 {
		t.Errorf("statement %v, %v", lines, err)
	}
	for _, s := range must(w.BalanceSums(w.ctx, 2, "", "")) {
		if s.Balance.String() != "0" || s.Held.String() != "0" {
			t.Errorf("sum %+v", s)
		}
	}
	trial := must(w.TrialBalance(w.ctx, 2, "", "", ledger.Page{}))
	if len(trial.Lines) != 3 || !trial.Lines[0].Balance.IsZero() || trial.Totals[0].Debit.String() != "0" {
		t.Errorf("trial balance %+v", trial)
	}
	accounts, _, err := w.Accounts(w.ctx, 2, "", "", ledger.Page{})
	if err != nil || len(accounts) != 3 || !accounts[0].Balance.IsZero() {
		t.Errorf("accounts %+v, %v", accounts, err)
	}
	if none := must(w.Assets(w.ctx, 3)); len(none) > 0 {
		t.Errorf("assets %v", none)
	}
	w.poll("the cursor to move on", func() bool {
		commits, next, err := w.EntriesAfter(w.ctx, 2, "0", "", 1000)
		if err != nil || len(commits) > 0 {
			t.Fatalf("watched %v, %v", commits, err)
		}
		return next != "0"
	})
}

func TestSumsAndTrialBalanceAddUp(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1:wallet", "user:2:wallet", "user:2:points", "shop")
	for i, code := range []string{"user:1:wallet", "user:2:wallet", "user:2:points", "shop"} {
		w.transfer(code, "world", code, fmt.Sprint(i+1))
	}
	w.hold("h", "user:2:wallet", "1.5")
	for _, c := range []struct{ pattern, asset, want string }{
		{"user:*:wallet", "", "CNY 2 300 150;"},
		{"user:**", "CNY", "CNY 3 600 150;"},
		{"user:2:*", "", "CNY 2 500 150;"},
		{"shop", "", "CNY 1 400 0;"},
		{"nobody:**", "", ""},
		{"", "", "CNY 5 0 150;JPY 1 0 0;"},
	} {
		got := ""
		for _, s := range must(w.BalanceSums(w.ctx, 1, c.pattern, c.asset)) {
			got += fmt.Sprintf("%s %d %s %s;", s.Asset, s.Accounts, s.Balance, s.Held)
		}
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.pattern, got, c.want)
		}
	}
	b := must(w.TrialBalance(w.ctx, 1, "", "CNY", ledger.Page{Size: 2}))
	if len(b.Totals) != 1 || b.Totals[0].Debit.String() != "1000" || b.Totals[0].Credit.String() != "1000" ||
		len(b.Lines) != 2 || b.Next == "" {
		t.Errorf("trial balance %+v", b)
	}
	if assets := must(w.Assets(w.ctx, 1)); len(assets) != 2 || assets[0].Code != "CNY" || assets[0].Scale != 2 {
		t.Errorf("assets %+v", assets)
	}
}

func TestSumsMayHaveMoreDigitsThanAmounts(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1", "user:2")
	w.do(&ledger.CreateAccountsCommand{Caller: w.caller(),
		Accounts: []ledger.NewAccount{{Code: "world:2", Asset: "CNY", Kind: "equity"}}})
	w.transfer("1", "world", "user:1", "900000000000000000000000000000000000")
	w.transfer("2", "world:2", "user:2", "900000000000000000000000000000000000")
	const twice = "180000000000000000000000000000000000000"
	if sums := must(w.BalanceSums(w.ctx, 1, "user:*", "")); len(sums) != 1 || sums[0].Balance != twice {
		t.Errorf("sums: %+v", sums)
	}
	if b := must(w.TrialBalance(w.ctx, 1, "", "CNY", ledger.Page{})); len(b.Totals) != 1 ||
		b.Totals[0].Debit != twice || b.Totals[0].Credit != twice {
		t.Errorf("trial balance: %+v", b.Totals)
	}
}

func (w *readWorld) now() (now time.Time, err error) {
	err = w.pool.QueryRow(w.ctx, "select clock_timestamp()").Scan(&now)
	return now, err
}
