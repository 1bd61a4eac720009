package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

func FuzzPosition(f *testing.F) {
	now := commit.Epoch{Number: 2, Term: "2-9f86d081"}
	f.Add("0")
	f.Add("2-9f86d081.1.12.34")
	f.Add("1-00000000.1.12.34")
	f.Add("2-9f86d081.1.18446744073709551615.-1")
	f.Fuzz(func(t *testing.T, cursor string) {
		p, err := parseCursor(cursor, now)
		if err == nil && p.cursor(now) != cursor {
			t.Fatalf("%q reads as %v", cursor, p)
		}
		if err != nil && !fault.Is(err, fault.FieldInvalid) && !fault.Is(err, CursorEpochEnded) {
			t.Fatal(err)
		}
	})
}
