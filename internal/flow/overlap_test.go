package flow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/notify/webhook"
	"github.com/ledgerd/ledgerd/internal/pgtest"
	"github.com/ledgerd/ledgerd/internal/stock"
)

// gate is an engine whose batches block before they insert a transfer whose biz_no begins with "gate", until the gate
// is opened.
type gate struct {
	*testing.T
	dsn    string
	engine *flow.Engine
	counts *prometheus.Registry
	super  *pgxpool.Pool
	hold   *pgxpool.Conn
}

func newGate(t *testing.T) *gate {
	db := pgtest.New(t)
	g := &gate{T: t, dsn: db.AllDSN, counts: prometheus.NewRegistry(), super: pgtest.Pool(t, db.SuperDSN)}
	pool := pgtest.Pool(t, db.AllDSN)
	g.engine = flow.NewEngine(pool, t.Name(), commit.NewMetrics(g.counts), nil)
	t.Cleanup(func() {
		if err := g.engine.Drain(context.Background()); err != nil {
			t.Error(err)
		}
	})
	world(t, g.engine, 4)
	g.exec(`create function gate() returns trigger language plpgsql as $$
		begin set local lock_timeout = '30 s'; perform pg_advisory_xact_lock_shared(7); return new; end $$;
		create trigger gate before insert on ledger_transfers for each row when (new.biz_no like 'gate%')
		execute function gate()`)
	var err error
	if g.hold, err = g.super.Acquire(context.Background()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the end of the session opens the gate, even after a failure
		if err := g.hold.Hijack().Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	g.shut()
	return g
}

func (g *gate) exec(sql string, args ...any) {
	g.Helper()
	if _, err := g.super.Exec(context.Background(), sql, args...); err != nil {
		g.Fatal(err)
	}
}

func (g *gate) shut() {
	g.Helper()
	if _, err := g.hold.Exec(context.Background(), "select pg_advisory_lock(7)"); err != nil {
		g.Fatal(err)
	}
}

func (g *gate) open() {
	g.Helper()
	if _, err := g.hold.Exec(context.Background(), "select pg_advisory_unlock(7)"); err != nil {
		g.Fatal(err)
	}
}

// start runs independent commands in one batch.
func (g *gate) start(commands ...commit.Command[*ledger.Tx]) <-chan []string {
	var submissions []flow.Submission
	for _, c := range commands {
		submissions = append(submissions, submission(flow.Submission{Command: flow.Ledger(c)}))
	}
	done := make(chan []string, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		var ends []string
		for _, r := range g.engine.DoAll(ctx, submissions) {
			ends = append(ends, ending(r.Outcome, r.Err))
		}
		done <- ends
	}()
	return done
}

// until polls a condition.
func (g *gate) until(what string, so func() bool) {
	g.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(20 * time.Second)
	for !so() {
		select {
		case <-tick.C:
		case <-timeout:
			g.Fatal("never happened: ", what)
		}
	}
}

func (g *gate) untilQuery(query string) {
	g.Helper()
	g.until(query, func() bool { return text(g.T, g.super, "select ("+query+")::text") == "true" })
}

func (g *gate) waits() {
	g.Helper()
	g.untilQuery("select exists (select from pg_stat_activity where datname = current_database() " +
		"and wait_event = 'advisory')")
}

// overlapped waits until a batch has taken over accounts.
func (g *gate) overlapped() {
	g.Helper()
	g.until("an overlap", func() bool { return g.count("overlaps_total") == 1 })
}

func (g *gate) count(name string) float64 { return pgtest.Counter(g, g.counts, "ledgerd_commit_"+name) }

func (g *gate) want(what string, done <-chan []string, want ...string) {
	g.Helper()
	if got := <-done; fmt.Sprint(got) != fmt.Sprint(want) {
		g.Errorf("%s: %v, want %v", what, got, want)
	}
}

func (g *gate) wantAccount(code, want string) {
	g.Helper()
	if got := text(g.T, g.super, "select format('%s %s %s %s', state, balance, held, version) from ledger_accounts "+
		"where code = $1", code); got != want {
		g.Errorf("account %s is %s, want %s", code, got, want)
	}
}

// Each batch works with the uncommitted rows of its predecessor: entries must chain, and refusals must be correct.
func TestTransfersUseRowsOfTheUncommittedPredecessor(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	first := g.start(transfer("gate", "world", user(0), "5"), hold("h", user(0), "", "2", time.Hour))
	g.waits()
	second := g.start(transfer("a", user(0), user(1), "2"), transfer("b", user(0), user(1), "2"),
		transfer("c", user(0), user(2), "1"))
	g.overlapped()
	g.open()
	g.want("first", first, "ok", "ok")
	g.want("second", second, "ok", "INSUFFICIENT_FUNDS", "ok")
	g.wantAccount(user(0), "open 200 200 3")
	if got := text(t, g.super, `select string_agg(format('%s:%s>%s', e.version, balance_before, balance_after), ' '
		order by e.version)
		from ledger_entries e join ledger_accounts using (tenant_id, account_id)
		where code = $1`, user(0)); got != "1:0>500 2:500>300 3:300>200" {
		t.Errorf("entries %s", got)
	}
	if n := g.count("attempts_total/conflicted"); n != 0 {
		t.Errorf("%v attempts conflicted", n)
	}
}

// The engine does not see manual updates of rows, but a batch must not overwrite them.
func TestConcurrentManualUpdatesAreNotOverwritten(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	done := g.start(transfer("gate", "world", user(1), "1"), transfer("fund", "world", user(0), "5"),
		transfer("out", user(0), user(1), "1"))
	g.waits()
	g.exec("update ledger_accounts set state = 'frozen' where code = $1", user(0))
	g.exec(pgtest.AuditAccounts)
	g.open()
	g.want("the batch", done, "ok", "ok", "ACCOUNT_FROZEN")
	g.wantAccount(user(0), "frozen 500 0 1")
}

// The second batch cannot see a due hold that the first one is still inserting.
func TestHoldDueDuringABatchExpiresInTheNext(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	g.want("fund", g.start(transfer("fund", "world", user(0), "5")), "ok")
	first := g.start(transfer("gate", "world", user(0), "1"), hold("brief", user(0), "", "5", 200*time.Millisecond))
	g.waits()
	// The hold is due and not yet inserted. A waiting session briefly has no wait_event, such as during deadlock
	// checks.
	g.untilQuery(`select exists (select from pg_stat_activity where datname = current_database()
		and wait_event = 'advisory'
		and clock_timestamp() > query_start + interval '200 ms')`)
	second := g.start(transfer("a", user(0), user(1), "6"))
	g.overlapped()
	g.open()
	g.want("first", first, "ok", "ok")
	g.want("second", second, "ok")
	g.wantAccount(user(0), "open 0 0 3")
	if got := text(t, g.super, "select state from ledger_holds"); got != "expired" {
		t.Errorf("the hold is %s", got)
	}
	if n := g.count("attempts_total/conflicted"); n != 1 {
		t.Errorf("%v attempts conflicted", n)
	}
}

func TestUncommittedAccountIsTakenOver(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	first := g.start(&ledger.CreateAccountsCommand{Caller: caller,
		Accounts: []ledger.NewAccount{{Code: "new", Asset: "CNY", Kind: "asset"}}},
		transfer("gate", "world", user(0), "5"))
	g.waits()
	second := g.start(transfer("a", user(0), "new", "1"))
	g.overlapped()
	g.open()
	g.want("first", first, "ok", "ok")
	g.want("second", second, "ok")
	g.wantAccount("new", "open 100 0 1")
	if n := g.count("attempts_total/conflicted"); n != 0 {
		t.Errorf("%v attempts conflicted", n)
	}
}

// Commands that read more than accounts and names do not overlap.
func TestCapturesReversalsAndAccountChangesDoNotOverlap(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]commit.Command[*ledger.Tx]{
		"capture": capture("c", "h", "1"),
		"reverse": &ledger.ReverseCommand{Caller: caller,
			ReverseParams: ledger.ReverseParams{TransferBizNo: "fund", BizNo: "r"}},
		"freeze": state(user(0), ledger.Frozen),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			g.want("before", g.start(transfer("fund", "world", user(0), "5"),
				hold("h", user(0), user(1), "1", time.Hour)), "ok", "ok")
			first := g.start(transfer("gate", "world", user(0), "5"))
			g.waits()
			second := g.start(command)
			select {
			case got := <-second:
				t.Fatalf("answered %v before the first was committed", got)
			case <-time.After(50 * time.Millisecond):
			}
			g.open()
			g.want("first", first, "ok")
			g.want("second", second, "ok")
			if n := g.count("overlaps_total"); n != 0 {
				t.Errorf("%v batches overlapped", n)
			}
		})
	}
}

// A published event locks nothing, so the transfers beside it overlap. A change of an endpoint locks its row.
func TestPublishedEventsOverlapAndChangesOfEndpointsDoNot(t *testing.T) {
	t.Parallel()
	for name, overlaps := range map[string]bool{"publish": true, "create": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			beside := map[string]flow.Command{
				"publish": &flow.Publish{Caller: caller},
				"create": flow.Webhook(&webhook.CreateCommand{Caller: caller, Name: "bank",
					URL: "https://example.com"}),
			}[name]
			first := g.start(transfer("gate", "world", user(0), "5"))
			g.waits()
			second := make(chan []commit.Result, 1)
			go func() {
				second <- g.engine.DoAll(t.Context(), []flow.Submission{
					submission(flow.Submission{Command: flow.Ledger(transfer("a", user(0), user(1), "2"))}),
					submission(flow.Submission{Command: beside}),
				})
			}()
			if overlaps {
				g.overlapped()
			} else {
				select {
				case got := <-second:
					t.Fatalf("answered %v before the first was committed", got)
				case <-time.After(50 * time.Millisecond):
				}
			}
			g.open()
			g.want("first", first, "ok")
			for _, r := range <-second {
				if r.Err != nil {
					t.Error(r.Err)
				}
			}
			if got := g.count("overlaps_total") == 1; got != overlaps {
				t.Errorf("overlapped: %v, want %v", got, overlaps)
			}
		})
	}
}

// A payment is in COMMIT, with the deposit that it needs. Its repeat at another server waits, and is not refused.
func TestRepeatWaitsForTheCommitOfTheFirstCall(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	other := flow.NewEngine(pgtest.Pool(t, g.dsn), "other", nil, nil)
	defer other.Drain(context.Background())
	g.exec(`create constraint trigger gate after insert on commit_batches deferrable initially deferred
		for each row execute function gate()`)
	first := g.start(transfer("in", "world", user(0), "1"), transfer("pay", user(0), user(1), "1"))
	g.waits()
	repeat := make(chan string, 1)
	go func() {
		out, err := other.Do(t.Context(), submission(flow.Submission{Command: flow.Ledger(transfer("pay", user(0),
			user(1), "1"))}))
		repeat <- ending(out, err)
	}()
	g.untilQuery("select exists (select from pg_locks where not granted and locktype = 'transactionid')")
	g.open()
	g.want("first", first, "ok", "ok")
	if got := <-repeat; got != "existed" {
		t.Errorf("repeat: %s", got)
	}
}

// Items precede accounts in the registry, so a batch locks items before accounts, even if it only read the accounts and
// changed all items.
func TestRowsAreConfirmedInTheOrderOfTheRegistry(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	for _, c := range []commit.Command[*stock.Tx]{&stock.PutItemCommand{Caller: caller, Item: "tea"},
		&stock.ChangeCommand{Caller: caller, Item: "tea", ChangeNo: "c", Kind: stock.Restock, Quantity: 9}} {
		if _, err := g.engine.Do(t.Context(), submission(flow.Submission{Command: flow.Stock(c)})); err != nil {
			t.Fatal(err)
		}
	}
	// The xmax of a row is the transaction's own id if it has locked the row and not changed it.
	g.exec(`create table locked (accounts bigint);
		create function note_locks() returns trigger language plpgsql security definer as $$
		begin
			insert into public.locked select count(*) from public.ledger_accounts
			where xmax = pg_current_xact_id()::xid;
			return new;
		end $$;
		create trigger note_locks before update on stock_items for each row execute function note_locks()`)
	all := g.engine.DoAll(t.Context(), []flow.Submission{
		submission(flow.Submission{Command: flow.Ledger(transfer("refused", user(0), user(1), "5"))}),
		submission(flow.Submission{Command: flow.Stock(&stock.ReserveCommand{Caller: caller, Item: "tea",
			ReservationNo: "n", Quantity: 1, Life: time.Hour})}),
	})
	if !fault.Is(all[0].Err, ledger.InsufficientFunds) || all[1].Err != nil {
		t.Errorf("the transfer: %v; the reservation: %v", all[0].Err, all[1].Err)
	}
	if got := text(t, g.super, "select string_agg(accounts::text, ' ') from locked"); got != "0" {
		t.Errorf("when the item was locked, the batch had locked %s accounts", got)
	}
}
