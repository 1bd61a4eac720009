package ledger_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// pagesOf reads all pages of a filter.
func pagesOf(t *testing.T, r *ledger.Reader, tenant int32, f ledger.TransferFilter,
	size int) (pages [][]*ledger.Transfer) {
	t.Helper()
	for token := ""; len(pages) == 0 || token != ""; {
		page, next, err := r.Transfers(t.Context(), tenant, f, ledger.Page{Size: size, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		if pages, token = append(pages, page), next; len(pages) > 2000 {
			t.Fatal("the pages have no end")
		}
	}
	return pages
}

func TestTransfersOfATimeRangeAreFoundAcrossProcesses(t *testing.T) {
	t.Parallel()
	w := newReadWorld(t)
	w.accounts("CNY", "user:1")
	first, second := w.engine, w.newEngine()
	for i := range 12 {
		w.engine = []*flow.Engine{first, second}[i/2%2] // two and two: the times of their numbers interleave
		w.transfer(fmt.Sprint("t", i), "world", "user:1", "1")
	}
	all := slices.Concat(pagesOf(t, w.Reader, 1, ledger.TransferFilter{}, 100)...)
	if len(all) != 12 || slices.IsSortedFunc(all,
		func(x, y *ledger.Transfer) int { return y.RecordedAt.Compare(x.RecordedAt) }) {
		t.Fatalf("%d transfers, with ids in order of their times", len(all))
	}
	for _, from := range all {
		for _, before := range all {
			f := ledger.TransferFilter{From: from.RecordedAt, Before: before.RecordedAt}
			if got, want := bizNos(pagesOf(t, w.Reader, 1, f, 2)...), bizNos(within(all, f)); !slices.Equal(got, want) {
				t.Errorf("from %s before %s: %q, want %q", from.BizNo, before.BizNo, got, want)
			}
		}
	}
}

// within applies the filter to transfers in memory.
func within(all []*ledger.Transfer, f ledger.TransferFilter) (in []*ledger.Transfer) {
	for _, x := range all {
		if (f.From.IsZero() || !x.RecordedAt.Before(f.From)) && (f.Before.IsZero() || x.RecordedAt.Before(f.Before)) {
			in = append(in, x)
		}
	}
	return in
}

func bizNos(pages ...[]*ledger.Transfer) (names []string) {
	for _, page := range pages {
		for _, x := range page {
			names = append(names, x.BizNo)
		}
	}
	return names
}

// batchOf is a batch of another process, with a number of transfers of tenants 1 and 2.
type batchOf struct {
	id    int64
	at    time.Time
	void  bool
	count [2]int
}

// randomBatches draws batch numbers in blocks, like processes, over several ranges. Times increase within a
// block and are sometimes equal.
func randomBatches(rnd *rand.Rand, start time.Time) (all []batchOf) {
	for _, block := range rnd.Perm(400)[:12] {
		at := start.Add(time.Duration(rnd.IntN(40)) * time.Second)
		for id := range int64(1 + rnd.IntN(40)) {
			at = at.Add(time.Duration(rnd.IntN(3)) * time.Second)
			b := batchOf{id: int64(block)*1000 + id + 1, at: at, void: rnd.IntN(6) == 0}
			if !b.void {
				b.count = [2]int{rnd.IntN(4), rnd.IntN(2)}
			}
			all = append(all, b)
		}
	}
	slices.SortFunc(all, func(x, y batchOf) int { return int(y.id - x.id) })
	return all
}

func TestTransfersOfATimeRangeMatchTheirRecordedTimes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // transfers without entries
	super := must(pgx.Connect(t.Context(), db.SuperDSN))
	t.Cleanup(func() { _ = super.Close(context.Background()) })
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	batches := randomBatches(rnd, start)
	if _, err := super.Exec(t.Context(), "insert into commit_epochs default values"); err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		_, err := super.Exec(t.Context(),
			"insert into commit_batches (batch_id, recorded_at, commands, instance) values ($1, $2, $3, 'test')",
			b.id, b.at, b.count[0]+b.count[1]+map[bool]int{false: 1}[b.void])
		for i, n := range b.count {
			if err == nil {
				_, err = super.Exec(t.Context(), `insert into ledger_transfers (tenant_id, transfer_id, biz_no, type,
					recorded_at, principal, request_id)
					select $1, ($2::bigint << 14) + n, $2::bigint::text || '.' || n, 'test', $3, 'test', 'r'
					from generate_series(1, $4::integer) n`,
					i+1, b.id, b.at, n)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := ledger.NewReader(pgtest.Pool(t, db.AllDSN))
	all := [][]*ledger.Transfer{slices.Concat(pagesOf(t, r, 1, ledger.TransferFilter{}, 1000)...),
		slices.Concat(pagesOf(t, r, 2, ledger.TransferFilter{}, 1000)...)}
	some := func() time.Time {
		if rnd.IntN(4) == 0 {
			return time.Time{}
		}
		return start.Add(time.Duration(rnd.IntN(100)-5) * time.Second)
	}
	for range 300 {
		f, size, tenant := ledger.TransferFilter{From: some(), Before: some()}, 1+rnd.IntN(30), rnd.IntN(2)
		if got, want := bizNos(pagesOf(t, r, int32(tenant+1), f, size)...),
			bizNos(within(all[tenant], f)); !slices.Equal(got, want) {
			t.Fatalf("%+v of tenant %d by %d: %q, want %q", f, tenant+1, size, got, want)
		}
		below := batches[rnd.IntN(len(batches))].id + rnd.Int64N(3) - 1
		want := int64(0)
		if i := slices.IndexFunc(batches, func(b batchOf) bool {
			return b.id < below && !b.void && !b.at.Before(f.From) && b.at.Before(f.Before)
		}); i >= 0 {
			want = batches[i].id
		}
		var got int64
		if err := super.QueryRow(t.Context(), "select commit_batch_before($1, $2, $3)", below, f.From,
			f.Before).Scan(&got); err != nil || got != want {
			t.Fatalf("batch below %d in %+v: %d, want %d, %v", below, f, got, want, err)
		}
	}
}

// A busy process made 120 batches of 1,000 transfers, one per minute. An idle process had reserved its batch
// numbers earlier: two batches at the beginning, one in the last minute, and a void one. Then came 200,000
// batches of other tenants. Statistics stay those of empty tables, the worst case for plans.
func TestTransfersOfATimeRangeSkipOtherBatches(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.SkipChecks() // transfers without entries
	super := must(pgx.Connect(t.Context(), db.SuperDSN))
	t.Cleanup(func() { _ = super.Close(context.Background()) })
	for _, sql := range []string{
		`analyze`,
		`insert into commit_epochs default values`,
		`insert into commit_batches (batch_id, recorded_at, commands, instance)
			select 2000 + m, timestamptz '2026-01-01Z' + m * interval '1 minute', 1000, 'busy'
			from generate_series(0, 119) m
			union all values (1001, timestamptz '2026-01-01Z', 1000, 'idle'), (1002, '2026-01-01Z', 1000, 'idle'),
				(1003, '2026-01-01 01:59:30Z', 1000, 'idle'), (1004, '2026-01-01 01:59:40Z', 0, 'idle')`,
		`insert into ledger_transfers (tenant_id, transfer_id, biz_no, type, recorded_at, principal, request_id)
			select 1, (batch_id << 14) + n, batch_id || '.' || n, 'test', recorded_at, 'test', 'r'
			from commit_batches, generate_series(1, commands) n`,
		`insert into commit_batches (batch_id, recorded_at, commands, instance)
			select 3000 + s, timestamptz '2026-01-01 02:00Z' + s * interval '1 second', 1, 'busy'
			from generate_series(1, 200000) s`,
	} {
		if _, err := super.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	r, blocks := tracedReader(t, db)
	at := func(minute int) time.Time { return time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC) }
	for _, c := range []struct {
		name   string
		filter ledger.TransferFilter
		rows   string // per page
		blocks int    // over all pages
	}{
		{"the last minute, with a batch of the idle process", ledger.TransferFilter{From: at(119), Before: at(120)},
			"[1000 1000]", 14000},
		{"minutes without batches of the idle process", ledger.TransferFilter{From: at(117), Before: at(119)},
			"[1000 1000]", 13500},
		{"the first minute", ledger.TransferFilter{Before: at(1)}, "[1000 1000 1000]", 16000},
		{"two minutes far back", ledger.TransferFilter{From: at(1), Before: at(3)}, "[1000 1000]", 11500},
		{"before all", ledger.TransferFilter{Before: at(0)}, "[0]", 100},
		{"after all of the tenant's", ledger.TransferFilter{From: at(120)}, "[0]", 2500},
		{"after all", ledger.TransferFilter{From: at(12000)}, "[0]", 100},
		{"a time without batches", ledger.TransferFilter{From: at(5).Add(1), Before: at(6)}, "[0]", 100},
		{"none of a type", ledger.TransferFilter{Type: "other", From: at(110), Before: at(120)}, "[0 0]", 4000},
	} {
		blocks.touched, blocks.plans = 0, nil
		var rows []int
		for _, page := range pagesOf(t, r, 1, c.filter, 1000) {
			rows = append(rows, len(page))
		}
		if fmt.Sprint(rows) != c.rows || blocks.touched > c.blocks || blocks.touched == 0 {
			t.Errorf("%s: pages of %v transfers, not %s; %d blocks, not %d", c.name, rows, c.rows, blocks.touched,
				c.blocks)
		}
		t.Logf("%-52s %v transfers %6d blocks", c.name, rows, blocks.touched)
	}
}
