package flow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pg"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var caller = commit.Caller{Tenant: 1, Principal: "test", RequestID: "r"}

func engine(t *testing.T, db *pgtest.DB) *flow.Engine {
	t.Helper()
	pool, err := pg.Open(context.Background(), db.AllDSN, 6)
	if err != nil {
		t.Fatal(err)
	}
	return engineOn(t, pool)
}

func engineOn(t *testing.T, pool *pgxpool.Pool) *flow.Engine {
	t.Helper()
	e := flow.NewEngine(pool, t.Name(), nil, nil)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Drain(ctx); err != nil {
			t.Error(err)
		}
		pool.Close()
	})
	return e
}

func dec(s string) amount.Decimal {
	d, err := amount.ParseDecimal(s)
	if err != nil {
		panic(err)
	}
	return d
}

func must[T any](t *testing.T, e *flow.Engine, w flow.Submission) T {
	t.Helper()
	out, err := e.Do(context.Background(), w)
	if err != nil {
		t.Fatal(err)
	}
	return answered(out.Answer).(T)
}

// answered returns the answer of the command, also if answer is that of a GuardedCommand.
func answered(answer any) any {
	if a, ok := answer.(flow.Result); ok {
		return a.Value
	}
	return answer
}

// behind returns a GuardedCommand of a command with guards.
func behind(c flow.Command, guards ...flow.Guard) flow.Command {
	return &flow.GuardedCommand{Command: c, Guards: guards}
}

func submission(w flow.Submission) flow.Submission {
	w.Tenant, w.Rows, w.Bytes, w.RequestID = 1, 4, 400, "r"
	return w
}

func transfer(bizNo, from, to, n string) *ledger.TransferCommand {
	return &ledger.TransferCommand{Caller: caller, TransferParams: ledger.TransferParams{BizNo: bizNo, Type: "transfer",
		Postings: []ledger.Posting{{From: from, To: to, Asset: "CNY", Amount: dec(n)}}}}
}

func world(t *testing.T, e *flow.Engine, accounts int) {
	t.Helper()
	must[[]ledger.Asset](t, e,
		submission(flow.Submission{Command: flow.Ledger(&ledger.CreateAssetsCommand{Caller: caller,
			Assets: []ledger.NewAsset{{Code: "CNY", Scale: 2}}})}))
	zero := dec("0")
	create := &ledger.CreateAccountsCommand{Caller: caller,
		Accounts: []ledger.NewAccount{{Code: "world", Asset: "CNY", Kind: "equity"}}}
	for i := range accounts {
		create.Accounts = append(create.Accounts,
			ledger.NewAccount{Code: fmt.Sprintf("user:%d", i), Asset: "CNY", Kind: "liability", Min: &zero})
	}
	must[ledger.CreatedAccounts](t, e, submission(flow.Submission{Command: flow.Ledger(create)}))
}

func TestTransferMovesMoneyOnce(t *testing.T) {
	t.Parallel()
	e := engine(t, pgtest.New(t))
	world(t, e, 2)
	got := must[*ledger.Transfer](t, e, submission(flow.Submission{Command: flow.Ledger(transfer("a", "world", "user:0",
		"10"))}))
	if len(got.Entries) != 2 || got.Entries[1].After.String() != "1000" {
		t.Fatalf("entries %+v", got.Entries)
	}
	again, err := e.Do(context.Background(),
		submission(flow.Submission{Command: flow.Ledger(transfer("a", "world", "user:0", "10.00"))}))
	if err != nil || !again.Existed || again.Answer.(*ledger.Transfer).ID != got.ID {
		t.Fatalf("again: %+v, %v", again, err)
	}
	_, err = e.Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(transfer("a", "world", "user:0",
		"11"))}))
	if !fault.Is(err, ledger.BizNoExistsDifferent) || fault.Of(err).Metadata["differs"] != "postings[0].amount" {
		t.Fatalf("other amount: %v", err)
	}
	_, err = e.Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(transfer("b", "user:0",
		"user:1", "10.01"))}))
	if !fault.Is(err, ledger.InsufficientFunds) || fault.Of(err).Metadata["available"] != "10.00" {
		t.Fatalf("too much: %v", err)
	}
}

func TestConcurrentTransfersNeverOverdraw(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	engines := []*flow.Engine{engine(t, db), engine(t, db)}
	world(t, engines[0], 10)
	for i := range 10 {
		must[*ledger.Transfer](t, engines[0],
			submission(flow.Submission{Command: flow.Ledger(transfer(fmt.Sprint("fund", i), "world",
				fmt.Sprintf("user:%d", i), "5"))}))
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[string]int{}
	for n := range 1000 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			_, err := engines[n%2].Do(context.Background(), submission(flow.Submission{Command: flow.Ledger(
				transfer(fmt.Sprint("t", n), fmt.Sprintf("user:%d", n%10), fmt.Sprintf("user:%d", (n*7+3)%10), "1"))}))
			reason := "ok"
			if f := fault.Of(err); f != nil {
				reason = f.Reason.Name
			} else if err != nil {
				reason = err.Error()
			}
			mu.Lock()
			outcomes[reason]++
			mu.Unlock()
		}()
	}
	wg.Wait()
	for reason := range outcomes {
		if reason != "ok" && reason != "INSUFFICIENT_FUNDS" {
			t.Errorf("outcomes %v", outcomes)
		}
	}
	if outcomes["ok"] == 0 {
		t.Errorf("no transfer succeeded: %v", outcomes)
	}
}

// careless uses a domain that its Need did not name.
type careless struct{ command flow.Command }

func (careless) Need(*flow.Tx)                    {}
func (c careless) Apply(tx *flow.Tx) (any, error) { return c.command.Apply(tx) }

func TestUseOfAnUnnamedDomainPanics(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := engine(t, db)
	world(t, e, 2)
	_, err := e.Do(context.Background(),
		submission(flow.Submission{Command: careless{flow.Ledger(transfer("x", "world", user(0), "1"))}}))
	if !fault.Is(err, fault.InternalError) {
		t.Errorf("outcome: %v", err)
	}
	must[*ledger.Transfer](t, e, submission(flow.Submission{Command: flow.Ledger(transfer("y", "world", user(0),
		"1"))}))
}
