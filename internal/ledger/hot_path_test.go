package ledger_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// BenchmarkHotPath measures the Go cost of a batch of 1,000 transfers over 10,000 accounts: declaring rows,
// building statement arguments, and applying commands. It uses no database.
func BenchmarkHotPath(b *testing.B) {
	const transfers, accounts = 1000, 10_000
	now := time.Now()
	commands := make([]*ledger.TransferCommand, transfers)
	for i := range commands {
		commands[i] = &ledger.TransferCommand{Caller: commit.Caller{Tenant: 1, Principal: "p", RequestID: "request"},
			TransferParams: ledger.TransferParams{BizNo: fmt.Sprintf("order-%09d", i), Type: "transfer",
				Postings: []ledger.Posting{{
					From: fmt.Sprintf("user:%d:wallet", i*7919%accounts), To: fmt.Sprintf("user:%d:wallet",
						(i*104729+1)%accounts), Asset: "CNY",
					Amount: number("1.5")}}}}
	}
	b.ReportAllocs()
	for b.Loop() {
		book := ledger.NewTx()
		pipe := commit.NewPipe(context.Background())
		for _, c := range commands {
			c.Need(book)
		}
		book.Discover(pipe)
		book.Lock(pipe)
		book.FindAll()
		book.Lookup(pipe)
		var ids int64
		book.Start(commit.Times{Now: now, Recorded: now}, func() int64 { ids++; return ids })
		book.Resolve(pipe)
		for _, c := range commands {
			book.Mark()
			if _, err := c.Apply(book); err != nil {
				b.Fatal(err)
			}
		}
		book.Flush(pipe)
	}
}
