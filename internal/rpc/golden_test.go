package rpc

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/flow"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

func sampleTransfer() *ledger.Transfer {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC)
	n := func(s string) amount.Int { i, _ := amount.ParseInt(s); return i }
	return &ledger.Transfer{Tenant: 1, ID: 99 << 14, BizNo: "order-1", Type: "charge", RecordedAt: at, RequestID: "r",
		Metadata: map[string]string{"b": "2", "a": "1", "c": "3", "d": "4"}, ReversedByID: 7,
		Entries: []ledger.Entry{{Account: "user:1", Asset: "CNY", Scale: 2, Version: 3, Amount: n("-1230"),
			Before: n("10000"), After: n("8770")},
			{Account: "shop", Asset: "CNY", Scale: 2, Version: 1, Amount: n("1230"), After: n("1230")}}}
}

// Recorded answers stay in databases across releases: their encoding and the JSON rendered from it must not change.
func TestRecordedAnswersAreStable(t *testing.T) {
	g := transfer(commit.Caller{}, &ledgerv1.TransferRequest{}, ledger.TransferParams{})
	r := g.render(sampleTransfer(), false)
	recorded, err := marshal.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	again := new(ledgerv1.TransferResponse)
	if err := proto.Unmarshal(recorded, again); err != nil {
		t.Fatal(err)
	}
	text, err := jsonCodec{"json"}.Marshal(again)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := encodeIDs(flow.Result{Value: []ledger.TransferResult{{Transfer: sampleTransfer()},
		{Transfer: sampleTransfer(), Existed: true}}})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "answers.txt", strings.Join([]string{hex.EncodeToString(recorded), string(text), hex.EncodeToString(ids)},
		"\n")+"\n")
	if first, err := (jsonCodec{"json"}).Marshal(r); err != nil || string(first) != string(text) {
		t.Errorf("the first answer differs from the replay:\n%s\n%s", first, text)
	}
}

func TestRefusalsOnTheWireAreStable(t *testing.T) {
	f := ledger.InsufficientFunds.New("account user:1 has 1.00 CNY available").With("available", "1.00").With("account",
		"user:1").With("asset", "CNY")
	f.RequestID = "r"
	var lines []string
	for range 20 { // the iteration order of maps is random
		var b strings.Builder
		e := connectError(f, "now")
		b.WriteString(e.Code().String() + " " + e.Message())
		for _, d := range e.Details() {
			b.WriteString(" " + d.Type() + " " + hex.EncodeToString(d.Bytes()))
		}
		if len(lines) > 0 && lines[0] != b.String() {
			t.Fatalf("the encoding of the details is not deterministic:\n%s\n%s", lines[0], b.String())
		}
		lines = []string{b.String()}
	}
	golden(t, "refusal.txt", lines[0]+"\n")
}
