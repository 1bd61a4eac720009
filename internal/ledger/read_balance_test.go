package ledger_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func TestBalanceAtRecordIsThatOfTheLastEntryBefore(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	first := w.transfer("1", "world", "user:1", "10")
	second := w.transfer("2", "world", "user:1", "5")
	for _, c := range []struct {
		name string
		at   time.Time
		want string
	}{
		{"before all", first.RecordedAt.Add(-time.Microsecond), "0 0"},
		{"at the first", first.RecordedAt, "1 1000"},
		{"just before the second", second.RecordedAt.Add(-1), "1 1000"},
		{"at the second", second.RecordedAt, "2 1500"},
		{"now", must(w.now()), "2 1500"},
	} {
		b, err := w.BalanceAtRecord(w.ctx, 1, "user:1", "CNY", c.at)
		if got := fmt.Sprintf("%d %s", b.Version, b.Balance); got != c.want || err != nil {
			t.Errorf("%s: %q, want %q, %v", c.name, got, c.want, err)
		}
	}
	if _, err := w.BalanceAtRecord(w.ctx, 1, "user:1", "CNY", must(w.now()).Add(time.Hour)); !fault.Is(err,
		fault.FieldInvalid) {
		t.Errorf("a time to come: %v", err)
	}
}

// TestBalanceAtRecordWaitsForTheBatchInFlight pauses a batch between reading its clock and its commit.
func TestBalanceAtRecordWaitsForTheBatchInFlight(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	last := w.transfer("first", "world", "user:1", "1").RecordedAt
	for i, c := range []struct {
		name  string
		stamp time.Time // zero: current time
		want  string
	}{
		{"whose time is that of the last entry", last, "200 <nil>\n"},
		{"whose time is later than the last entry", time.Time{}, "300 <nil>\n"},
	} {
		b := w.manualBatch("user:1", "world")
		b.stamp()
		at := must(w.now())
		if !c.stamp.IsZero() {
			b.at, at = c.stamp, c.stamp
		}
		answer := make(chan string)
		go func() {
			got, err := w.BalanceAtRecord(w.ctx, 1, "user:1", "CNY", at)
			answer <- fmt.Sprintln(got.Balance, err)
		}()
		select {
		case early := <-answer:
			t.Fatalf("batch %d, %s: answered %s before its end", i, c.name, early)
		case <-time.After(50 * time.Millisecond):
		}
		b.post("world", "user:1", 100)
		b.commit()
		if got := <-answer; got != c.want {
			t.Errorf("batch %d, %s: %s", i, c.name, got)
		}
	}
}

func TestBalanceAtRecordNeverChanges(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1", "user:2")
	type answer struct {
		code string
		at   time.Time
		got  ledger.Balance
	}
	ctx, stop := context.WithCancel(w.ctx)
	var writers, readers sync.WaitGroup
	for i := range 4 {
		engine := w.engine
		if i%2 == 1 {
			engine = w.newEngine()
		}
		writers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := engine.Do(w.ctx,
					w.submission(w.transferCommand(fmt.Sprint(i, ".", n), "world", fmt.Sprintf("user:%d", 1+n%2),
						"1"))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var mu sync.Mutex
	var answers []answer
	for range 2 {
		readers.Go(func() {
			for n := range 150 {
				code := []string{"user:1", "user:2", "world"}[n%3]
				at, err := w.now()
				if err != nil {
					t.Error(err)
					return
				}
				got, err := w.BalanceAtRecord(w.ctx, 1, code, "CNY", at)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				answers = append(answers, answer{code, at, got})
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	stop()
	writers.Wait()
	for _, a := range answers {
		if again, err := w.BalanceAtRecord(w.ctx, 1, a.code, "CNY", a.at); err != nil || again != a.got {
			t.Errorf("%s at %s: first %+v, then %+v, %v", a.code, a.at, a.got, again, err)
		}
	}
}

func TestBalanceAtEffectiveSumsEntriesByEffectiveTime(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		cases++
		code := fmt.Sprint("user:", cases)
		w.accounts("CNY", code)
		var times []time.Time
		for i := range rapid.IntRange(0, 8).Draw(t, "transfers") {
			minutes := rapid.SampledFrom([]int{0, 0, -1, -1, -60, 60, -100_000}).Draw(t, "minutes")
			made := w.transfer(fmt.Sprint(cases, ".", i), "world", code, fmt.Sprint(1+i*i),
				func(p *ledger.TransferParams) {
					if minutes != 0 {
						p.EffectiveAt = time.Now().Add(time.Duration(minutes) * time.Minute)
					}
				})
			for _, d := range []time.Duration{0, -time.Microsecond, time.Microsecond} {
				times = append(times, made.RecordedAt.Add(d))
				if minutes != 0 {
					times = append(times, made.EffectiveAt.Add(d))
				}
			}
		}
		times = append(times, time.Now(), time.Now().Add(48*time.Hour), time.Now().Add(-48*time.Hour))
		for _, at := range times {
			got, err := w.BalanceAtEffective(w.ctx, 1, code, "CNY", at)
			if err != nil {
				t.Fatal(err)
			}
			var want string
			err = w.pool.QueryRow(w.ctx, `select coalesce(sum(e.amount), 0)::text from ledger_entries e
				join ledger_accounts a using (tenant_id, account_id)
				where a.tenant_id = 1 and a.code = $1 and a.asset = 'CNY'
				and coalesce(e.effective_at, e.recorded_at) <= $2`, code, at).Scan(&want)
			if err != nil || got.Balance.String() != want {
				t.Fatalf("at %s: %s, want %s, %v", at, got.Balance, want, err)
			}
		}
	})
}

// manualBatch is a batch by plain SQL that can pause where the engine does not.
type manualBatch struct {
	w     *readWorld
	tx    pgx.Tx
	id    int64
	rows  int64
	at    time.Time
	codes []string
}

// manualBatch locks accounts in the given order, with one statement each.
func (w *readWorld) manualBatch(codes ...string) *manualBatch {
	w.Helper()
	b := &manualBatch{w: w, tx: must(w.pool.Begin(w.ctx)), codes: codes}
	w.Cleanup(func() { _ = b.tx.Rollback(context.Background()) })
	if err := b.tx.QueryRow(w.ctx, "select nextval('commit_batch_seq')").Scan(&b.id); err != nil {
		w.Fatal(err)
	}
	b.exec("lock table commit_batches in row exclusive mode") // as every batch does
	b.lock(codes...)
	return b
}

func (b *manualBatch) exec(sql string, args ...any) {
	b.w.Helper()
	if _, err := b.tx.Exec(b.w.ctx, sql, args...); err != nil {
		b.w.Fatal(err)
	}
}

func (b *manualBatch) lock(codes ...string) {
	b.w.Helper()
	for _, code := range codes {
		b.exec("select from ledger_accounts where tenant_id = 1 and code = $1 and asset = 'CNY' for no key update",
			code)
	}
}

// stamp reads the clock for the batch's time.
func (b *manualBatch) stamp() { b.at = must(b.w.now()) }

func (b *manualBatch) post(from, to string, minor int) {
	b.w.Helper()
	b.rows++
	id := b.id<<14 | b.rows
	b.exec(`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id)
		values (1, $1::bigint, $1::bigint::text, 'by hand', $2, 'test', 'r')`, id, b.at)
	b.exec(`insert into ledger_entries (tenant_id, account_id, version, transfer_id, recorded_at, posting, asset,
		amount, balance_before, balance_after)
		select 1, a.account_id, a.version + 1, $1, $2, 0, a.asset, s.amount, a.balance, a.balance + s.amount
		from (values ($3, -$5::numeric), ($4, $5::numeric)) s (code, amount)
		join ledger_accounts a on a.tenant_id = 1 and a.code = s.code and a.asset = 'CNY'`, id, b.at, from, to, minor)
	b.exec(`update ledger_accounts a set balance = e.balance_after, version = e.version, last_entry_at = e.recorded_at
		from ledger_entries e where e.tenant_id = 1 and e.transfer_id = $1 and a.tenant_id = 1
		and a.account_id = e.account_id`, id)
}

func (b *manualBatch) commit() {
	b.w.Helper()
	b.exec("insert into commit_batches (batch_id, recorded_at, commands, instance) values ($1, $2, 1, 'by hand')",
		b.id, b.at)
	if err := b.tx.Commit(b.w.ctx); err != nil {
		b.w.Fatal(err)
	}
}

// poll polls until the condition holds.
func (w *readWorld) poll(what string, so func() bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			w.Fatalf("waited too long for %s", what)
		}
	}
}
