package ledger_test

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/ledger/internal/db"
	"github.com/ledgerd/ledgerd/internal/pgtest"
)

// BenchmarkRequestIndex measures the insert cost and the benefit of ledger_transfers_request_idx (ADR 8).
// Batches of 100 go alternately into two journals, one with the index and one without.
func BenchmarkRequestIndex(b *testing.B) {
	var journals [2]*pgxpool.Pool // without, with
	for i := range journals {
		d := pgtest.New(b)
		d.SkipChecks() // the entries have no accounts
		journals[i] = pgtest.Pool(b, d.SuperDSN)
	}
	exec := func(i int, sql string) {
		if _, err := journals[i].Exec(b.Context(), sql); err != nil {
			b.Fatal(sql, err)
		}
	}
	exec(0, "drop index ledger_transfers_request_idx")
	for i := range journals {
		pgtest.StopAutovacuum(b, journals[i])
	}
	var q db.Queries
	var took [2][]time.Duration // per insert of transfers
	var entries []time.Duration
	for n := int64(0); b.Loop(); n++ {
		transfers, lines := insertsOf(n)
		for turn := range journals {
			i := (turn + int(n)) % 2
			start := time.Now()
			if err := q.TransferInsert(b.Context(), journals[i], transfers); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(start))
		}
		start := time.Now()
		if err := q.EntryInsert(b.Context(), journals[0], lines); err != nil {
			b.Fatal(err)
		}
		entries = append(entries, time.Since(start))
		if n%1000 == 999 { // as autovacuum does after 100,000 rows
			exec(0, "vacuum ledger_transfers")
			exec(1, "vacuum ledger_transfers")
		}
	}
	var extra []time.Duration
	for k := range took[0] {
		extra = append(extra, took[1][k]-took[0][k])
	}
	report := func(d []time.Duration, unit string) {
		b.ReportMetric(float64(median(d))/float64(time.Microsecond)/insertsEach, unit)
	}
	report(took[0], "transfers-µs/transfer")
	report(entries, "entries-µs/transfer")
	report(extra, "index-µs/transfer")
	b.ReportMetric(0, "ns/op")

	for i, unit := range []string{"without-ms/request", "with-ms/request"} {
		exec(i, "vacuum analyze ledger_transfers")
		var d []time.Duration
		for range 9 {
			start := time.Now()
			exec(i, "select from audit.requests where what = 'transfer' and request_id = 'nobody'")
			d = append(d, time.Since(start))
		}
		b.ReportMetric(float64(median(d))/float64(time.Millisecond), unit)
	}
}

func median[T cmp.Ordered](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

const insertsEach = 100

// insertsOf is the content of batch n: transfers of one request each, between random accounts.
func insertsOf(n int64) (transfers db.TransferInsertParams, entries db.EntryInsertParams) {
	transfers.Now = time.Now()
	entries.Now = transfers.Now
	for i := range int64(insertsEach) {
		id, k := (n+1)<<14+i, n*insertsEach+i
		transfers.Tenants = append(transfers.Tenants, 1)
		transfers.TransferIds = append(transfers.TransferIds, id)
		transfers.BizNos = append(transfers.BizNos, fmt.Sprintf("order-%012d", k))
		transfers.Types = append(transfers.Types, "transfer")
		transfers.Principals = append(transfers.Principals, "key:1")
		transfers.RequestIds = append(transfers.RequestIds, rand.Text())
		for side := range int64(2) {
			entries.Tenants = append(entries.Tenants, 1)
			entries.AccountIds = append(entries.AccountIds, (2*k+side)*7919%10_000)
			entries.Versions = append(entries.Versions, (2*k+side)/10_000+1)
			entries.TransferIds = append(entries.TransferIds, id)
			entries.Postings = append(entries.Postings, 0)
			entries.Assets = append(entries.Assets, "CNY")
			entries.Amounts = append(entries.Amounts, amount.FromInt64(200*side-100))
			entries.BalancesBefore = append(entries.BalancesBefore, amount.FromInt64(0))
			entries.BalancesAfter = append(entries.BalancesAfter, amount.FromInt64(200*side-100))
		}
	}
	return transfers, entries
}
