package rpc

import (
	"bytes"
	"fmt"
	"testing"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/compress"
)

func TestLargeAnswersAreCompressedWithoutLoss(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 30, 10_000} {
		r := &ledgerv1.CreateAccountsResponse{}
		for i := range n {
			r.Accounts = append(r.Accounts,
				&ledgerv1.Account{Code: fmt.Sprintf("user:%d", i), Asset: "CNY", Balance: "0.00", Held: "0.00"})
		}
		answer, err := marshal.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		recorded, err := compressResponse(answer)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decompressResponse(recorded); err != nil || !bytes.Equal(again, answer) {
			t.Errorf("%d accounts: %d bytes were decompressed to %d, %v", n, len(answer), len(again), err)
		}
		if small := len(recorded) < len(answer)/4; small != (len(answer) >= compress.MinSize) {
			t.Errorf("%d accounts: %d bytes recorded as %d", n, len(answer), len(recorded))
		}
	}
	if _, err := decompressResponse([]byte{compressed, 1, 2, 3}); err == nil {
		t.Error("invalid data was decompressed")
	}
}
