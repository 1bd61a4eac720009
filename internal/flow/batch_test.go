package flow_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func all(t *testing.T, e *flow.Engine, commands ...commit.Command[*ledger.Tx]) []any {
	t.Helper()
	submissions := make([]flow.Submission, len(commands))
	for i, c := range commands {
		submissions[i] = submission(flow.Submission{Command: flow.Ledger(c)})
	}
	answers := make([]any, len(submissions))
	for i, r := range e.DoAll(context.Background(), submissions) {
		if r.Err != nil {
			t.Fatalf("%T: %v", commands[i], r.Err)
		}
		answers[i] = r.Outcome.Answer
	}
	return answers
}

func text(t *testing.T, pool *pgxpool.Pool, query string, args ...any) (s string) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query, args...).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestOneBatchCreatesAndUsesAccounts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	e := engine(t, db)
	zero := dec("0")
	elsewhere := capture("c2", "h", "2")
	elsewhere.To = "world" // not named by the hold
	commands := []commit.Command[*ledger.Tx]{
		&ledger.CreateAssetsCommand{Caller: caller, Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}},
		&ledger.CreateAccountsCommand{Caller: caller,
			Accounts: []ledger.NewAccount{{Code: "world", Asset: "CNY", Kind: "equity"},
				{Code: "a", Asset: "CNY", Kind: "liability", Min: &zero, Metadata: map[string]string{"k": "v"}},
				{Code: "b", Asset: "CNY", Kind: "liability", Min: &zero}}},
		&ledger.UpdateAccountCommand{Caller: caller, Code: "a", Asset: "CNY",
			Change: ledger.AccountChange{Metadata: map[string]string{"k": "", "l": "w"}}},
		transfer("t1", "world", "a", "10"),
		transfer("t2", "a", "b", "1"),
		&ledger.ReverseCommand{Caller: caller, ReverseParams: ledger.ReverseParams{TransferBizNo: "t2", BizNo: "r2"}},
		hold("h", "a", "b", "5", time.Hour),
		capture("c1", "h", "1"),
		elsewhere,
		ledger.ReleaseOf(caller, 0, "h"),
		hold("i", "a", "b", "3", time.Hour),
		state("b", ledger.Frozen),
	}
	answers := all(t, e, commands...)
	first := answers[3].(*ledger.Transfer).ID
	if last := answers[10].(*ledger.Hold).ID; first>>14 != last>>14 {
		t.Fatalf("not one batch: %d, %d", first, last)
	}
	for query, want := range map[string]string{
		"select string_agg(format('%s %s %s %s %s', code, state, balance, held, version), '; ' order by code) " +
			"from ledger_accounts": "a open 700 300 5; b frozen 100 0 3; world open -800 0 2",
		"select string_agg(format('%s %s %s %s', biz_no, state, captured, closed_at is null), '; ' order by biz_no) " +
			"from ledger_holds": "h released 300 f; i held 0 t",
		"select metadata::text from ledger_account_details d join ledger_accounts a using (tenant_id, account_id) " +
			"where code = 'a'": `{"l": "w"}`,
		"select count(*)::text from commit_batches where commands > 0": "1",
	} {
		if got := text(t, pool, query); got != want {
			t.Errorf("%s\n got %s\nwant %s", query, got, want)
		}
	}
	// A second batch also uses existing accounts.
	answers = all(t, e, &ledger.CreateAccountsCommand{Caller: caller,
		Accounts: []ledger.NewAccount{{Code: "c", Asset: "CNY", Kind: "liability", Min: &zero}}},
		transfer("t3", "world", "c", "1"), transfer("t4", "a", "c", "1"))
	if answers[0].(ledger.CreatedAccounts).Accounts[0].ID>>14 != answers[2].(*ledger.Transfer).ID>>14 {
		t.Error("the batch was bisected")
	}
	if got := text(t, pool, "select format('%s %s', balance, version) from ledger_accounts "+
		"where code = 'c'"); got != "200 2" {
		t.Errorf("account c: %s", got)
	}
}

// A refused and a successful command may have the same biz_no, even in one batch.
func TestRefusedCommandLeavesItsBizNoFree(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 2)
	results := e.DoAll(context.Background(), []flow.Submission{
		submission(flow.Submission{Command: flow.Ledger(transfer("x", user(0), user(1), "1"))}),
		submission(flow.Submission{Command: flow.Ledger(transfer("x", "world", user(1), "1"))}),
		submission(flow.Submission{Command: flow.Ledger(transfer("x", user(0), user(1), "1"))}),
	})
	if !fault.Is(results[0].Err, ledger.InsufficientFunds) || results[1].Err != nil ||
		!fault.Is(results[2].Err, ledger.BizNoExistsDifferent) {
		t.Errorf("results %+v", results)
	}
}

func TestRepeatsAreComparedWithStoredContent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 3)
	at := time.Date(2025, 3, 4, 5, 6, 7, 891_234_000, time.FixedZone("", 3600))
	metadata := map[string]string{"b": "2", "a": "1", "é<&>": "\u2028\t\"\\", "empty": ""}
	dressed := func(change ...func(*ledger.TransferParams)) *ledger.TransferCommand {
		c := transfer("x", "world", user(0), "1.50")
		c.Postings = append(c.Postings, ledger.Posting{From: user(0), To: user(1), Asset: "CNY", Amount: dec("2.5"),
			Form: ledger.UpTo},
			ledger.Posting{From: user(1), To: user(2), Asset: "CNY", Form: ledger.AllAvailable})
		c.EffectiveAt, c.Metadata = at, maps.Clone(metadata)
		for _, f := range change {
			f(&c.TransferParams)
		}
		return c
	}
	first := must[*ledger.Transfer](t, e, submission(flow.Submission{Command: flow.Ledger(dressed())}))
	plain := must[*ledger.Transfer](t, e,
		submission(flow.Submission{Command: flow.Ledger(transfer("plain", "world", user(0), "1"))}))
	plainly := transfer("plain", "world", user(0), "1.00")
	plainly.Metadata = map[string]string{}
	same := map[string]*ledger.TransferCommand{
		"all the same":   dressed(),
		"amount as 1.5":  dressed(func(p *ledger.TransferParams) { p.Postings[0].Amount = dec("1.5") }),
		"time in UTC":    dressed(func(p *ledger.TransferParams) { p.EffectiveAt = at.UTC() }),
		"time not said":  dressed(func(p *ledger.TransferParams) { p.EffectiveAt = time.Time{} }),
		"metadata empty": plainly,
	}
	for name, c := range same {
		out, err := e.Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(c)}))
		if err != nil || !out.Existed {
			t.Errorf("%s: %+v, %v", name, out, err)
			continue
		}
		want := first
		if c.BizNo == "plain" {
			want = plain
		}
		got := out.Answer.(*ledger.Transfer)
		if got.ID != want.ID || !got.RecordedAt.Equal(want.RecordedAt) || !maps.Equal(got.Metadata, want.Metadata) ||
			len(got.Entries) != len(want.Entries) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		for i := range got.Entries {
			if g, w := got.Entries[i], want.Entries[i]; g.After != w.After || g.Amount != w.Amount ||
				g.Account != w.Account || g.Version != w.Version {
				t.Errorf("%s: entry %+v, want %+v", name, g, w)
			}
		}
	}
	for want, c := range map[string]*ledger.TransferCommand{
		"effective_time":     dressed(func(p *ledger.TransferParams) { p.EffectiveAt = at.Add(time.Microsecond) }),
		"metadata":           dressed(func(p *ledger.TransferParams) { p.Metadata["a"] = "2" }),
		"postings[1].amount": dressed(func(p *ledger.TransferParams) { p.Postings[1].Amount = dec("2.51") }),
		"postings[1].form":   dressed(func(p *ledger.TransferParams) { p.Postings[1].Form = ledger.Exact }),
		"postings[2].to":     dressed(func(p *ledger.TransferParams) { p.Postings[2].To = "world" }),
	} {
		_, err := e.Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(c)}))
		if !fault.Is(err, ledger.BizNoExistsDifferent) || fault.Of(err).Metadata["differs"] != want {
			t.Errorf("%v; want %s to differ", err, want)
		}
	}
}

// An account has a lower bound for the next expiry of its holds. A bound that is too early costs one correction.
func TestEarlyExpiryBoundIsCorrectedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.AllDSN)
	e := engine(t, db)
	world(t, e, 2)
	expire := &ledger.ExpireCommand{Account: ledger.AccountKey{Tenant: 1, Code: user(0), Asset: "CNY"}}
	all(t, e, transfer("fund", "world", user(0), "10"), hold("brief", user(0), "", "1", time.Millisecond),
		hold("partly", user(0), user(1), "2", 2*time.Millisecond), capture("c", "partly", "1"),
		hold("late", user(0), "", "1", time.Hour),
		ledger.ReleaseOf(caller, 0, "late"), hold("later", user(0), "", "1", 2*time.Hour),
		transfer("other", "world", user(1), "10"), hold("gone", user(1), "", "1", time.Millisecond),
		ledger.ReleaseOf(caller, 0, "gone"))
	for text(t, pool, "select (max(expires_at) < clock_timestamp())::text from ledger_holds "+
		"where life_ms < 1000") != "true" {
		runtime.Gosched()
	}
	batches := func() string { return text(t, pool, "select count(*)::text from commit_batches where commands > 0") }
	all(t, e, expire)
	if next := text(t, pool, "select (next_expiry_at - created_at)::text from ledger_accounts, ledger_holds "+
		"where code = $1 and biz_no = 'later'", user(0)); next != "02:00:00" {
		t.Errorf("the next expiry is expected after %s", next)
	}
	other := &ledger.ExpireCommand{Account: ledger.AccountKey{Tenant: 1, Code: user(1), Asset: "CNY"}}
	all(t, e, other) // no hold is due, but the bound has passed
	if next := text(t, pool, "select coalesce(next_expiry_at::text, 'none') from ledger_accounts where code = $1",
		user(1)); next != "none" {
		t.Errorf("the next expiry is expected at %s", next)
	}
	before := batches()
	all(t, e, expire, other)
	if batches() != before {
		t.Error("a second expiry wrote again")
	}
	due, err := ledger.DueHolds(context.Background(), pool, 0, ledger.DueHold{}, 10)
	if err != nil || len(due) != 0 {
		t.Errorf("due %v, %v", due, err)
	}
	if got := text(t, pool, "select held::text from ledger_accounts where code = $1", user(0)); got != "100" {
		t.Errorf("held %s", got)
	}
}

// An account may have any number of holds that expire at the same time. They expire in several batches, and only
// commands on this account wait for the last one.
func TestManyHoldsExpireInSeveralBatches(t *testing.T) {
	t.Parallel()
	const n = 9_000
	db := pgtest.New(t)
	pool := pgtest.Pool(t, db.SuperDSN)
	e := engine(t, db)
	world(t, e, 3)
	all(t, e, transfer("fund", "world", user(0), "90"), transfer("fund 1", "world", user(1), "1"))
	for _, query := range []string{
		`insert into ledger_holds (tenant_id, hold_id, biz_no, account_id, to_code, amount, captured, state, life_ms,
			expires_at, created_at, principal, request_id)
		select tenant_id, account_id + 100 + i, 'h' || i, account_id, '', 1, 0, 'held', 1,
		clock_timestamp() - '1 s'::interval - '1 us'::interval * i, recorded_at, 'p', 'r'
		from ledger_accounts join commit_batches on batch_id = account_id >> 14, generate_series(1, 9000) i
		where code = 'user:0'`,
		`update ledger_accounts set held = 9000, next_expiry_at = (select min(expires_at) from ledger_holds)
			where code = 'user:0'`,
	} {
		if _, err := pool.Exec(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	dry := submission(flow.Submission{Command: flow.Ledger(transfer("dry", user(0), user(1), "1")), DryRun: true})
	if _, err := e.Do(t.Context(), dry); !fault.Is(err, fault.RowsLocked) {
		t.Errorf("a dry run ended %v", err)
	}
	answers := make([]any, 0, 4)
	for _, r := range e.DoAll(t.Context(), []flow.Submission{
		// Needs the money of all expired holds.
		submission(flow.Submission{Command: flow.Ledger(transfer("whole", user(0), user(2), "90"))}),
		submission(flow.Submission{Command: flow.Ledger(transfer("beside", user(1), user(2), "1"))}),
		submission(flow.Submission{Command: flow.Ledger(capture("c", "h1", "0.01"))}), // the last to expire
		submission(flow.Submission{Command: flow.Ledger(ledger.ReleaseOf(caller, 0, "h9000"))}),
		submission(flow.Submission{Command: flow.Ledger(&ledger.ExpireCommand{Account: ledger.AccountKey{Tenant: 1,
			Code: user(0), Asset: "CNY"}})}),
		submission(flow.Submission{Command: flow.Ledger(state(user(0), ledger.Frozen))}),
	}) {
		if r.Err != nil {
			answers = append(answers, r.Err)
		} else {
			answers = append(answers, r.Outcome.Answer)
		}
	}
	whole, _ := answers[0].(*ledger.Transfer)
	beside, _ := answers[1].(*ledger.Transfer)
	if whole == nil || beside == nil || beside.ID>>14 >= whole.ID>>14 {
		t.Fatalf("%v; the unrelated transfer did not commit first: %v", answers[0], answers[1])
	}
	for _, a := range answers[2:4] {
		if err, _ := a.(error); !fault.Is(err, ledger.HoldExpired) {
			t.Errorf("an expired hold: %v", a)
		}
	}
	if got := text(t, pool, "select concat_ws(' ', held, balance, state, next_expiry_at is null) "+
		"from ledger_accounts where code = 'user:0'"); got != "0 0 frozen t" {
		t.Errorf("the account is %s", got)
	}
	if err, ok := answers[5].(error); ok {
		t.Error(err)
	}
	if got := text(t, pool, `select concat_ws(' ', sum(n), max(n) <= 2000, count(*) >= 5) from (select count(*) as n
		from ledger_holds
		where state = 'expired' group by closed_at) x`); got != fmt.Sprint(n, " t t") {
		t.Errorf("expired holds, at most 2,000 a batch, at least 5 batches: %s", got)
	}
}

func TestCommandMayUseAllRowIDsOfABatch(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 20,000 entries")
	}
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 100)
	command := func(prefix string, n int) flow.Submission {
		c := &ledger.TransferAllCommand{Transfers: make([]ledger.TransferCommand, n)}
		for i := range c.Transfers {
			c.Transfers[i] = *transfer(fmt.Sprint(prefix, i), "world", fmt.Sprintf("user:%d", i%100), "1")
		}
		return flow.Submission{Tenant: 1, RequestID: "r", Command: flow.Ledger(c), Rows: n, Bytes: 100 * n}
	}
	start := time.Now()
	made := must[[]ledger.TransferResult](t, e, command("t", 10_000))
	t.Logf("10,000 transfers of one command took %v", time.Since(start))
	if len(made) != 10_000 || made[9_999].Transfer.Entries[0].After.String() != "-1000000" {
		t.Errorf("%d made", len(made))
	}
	_, err := e.Do(context.Background(), command("u", 16_384))
	if !fault.Is(err, commit.TooManyRows) {
		t.Errorf("ended %v", err)
	}
}

// large returns a transfer with many equal postings.
func large(bizNo, from, to string, postings int) *ledger.TransferCommand {
	c := transfer(bizNo, from, to, "1")
	for len(c.Postings) < postings {
		c.Postings = append(c.Postings, c.Postings[0])
	}
	return c
}

// The stored transfer of a biz_no is loaded only as far as the comparison needs it.
func TestRepeatOfALargeTransferIsCompared(t *testing.T) {
	t.Parallel()
	e := engine(t, pgtest.New(t))
	world(t, e, 2)
	all(t, e, large("large", "world", user(0), 300))
	submissions := make([]flow.Submission, 0, 4)
	for _, c := range []commit.Command[*ledger.Tx]{large("large", "world", user(0), 1),
		large("large", "world", user(0), 299),
		&ledger.ReverseCommand{Caller: caller,
			ReverseParams: ledger.ReverseParams{TransferBizNo: "large", BizNo: "back"}}} {
		submissions = append(submissions, submission(flow.Submission{Command: flow.Ledger(c)}))
	}
	for range 2 { // with and without a command in the batch that needs all entries
		r := e.DoAll(t.Context(), submissions)
		for i, w := range r[:2] {
			if !fault.Is(w.Err, ledger.BizNoExistsDifferent) || fault.Of(w.Err).Metadata["differs"] != "postings" {
				t.Errorf("%d: %+v %v", i, w.Outcome, w.Err)
			}
		}
		if len(r) == 3 && (r[2].Err != nil || len(r[2].Outcome.Answer.(*ledger.Transfer).Entries) != 600) {
			t.Errorf("the reversal: %v", r[2].Err)
		}
		submissions = submissions[:2]
	}
	again := all(t, e, large("large", "world", user(0), 300), &ledger.ReverseCommand{Caller: caller,
		ReverseParams: ledger.ReverseParams{TransferBizNo: "large", BizNo: "back"}})
	for i, a := range again {
		if n := len(a.(*ledger.Transfer).Entries); n != 600 {
			t.Errorf("%d again: %d entries", i, n)
		}
	}
}

func TestPageOfLargeTransfersIsShort(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 2)
	var want []string
	for i := range 25 {
		want = append(want, fmt.Sprint("large ", i))
		all(t, e, large(want[i], "world", user(i%2), 700))
	}
	slices.Reverse(want) // newest first
	reader := ledger.NewReader(pgtest.Pool(t, db.AllDSN))
	var got []string
	pages, token := 0, ""
	for {
		page, next, err := reader.Transfers(t.Context(), 1, ledger.TransferFilter{},
			ledger.Page{Size: 20, Token: token})
		if err != nil || len(page) > 10 {
			t.Fatalf("a page of %d, %v", len(page), err)
		}
		for _, x := range page {
			if len(x.Entries) != 1400 {
				t.Errorf("%s has %d entries", x.BizNo, len(x.Entries))
			}
			got = append(got, x.BizNo)
		}
		if pages++; next == "" {
			break
		}
		token = next
	}
	if !slices.Equal(got, want) || pages != 3 {
		t.Errorf("%d pages: %v", pages, got)
	}
}
