package ledger

import (
	"testing"

	"github.com/ledgerd/ledgerd/internal/fault"
)

func FuzzPosition(f *testing.F) {
	f.Add("0")
	f.Add("12.34")
	f.Add("18446744073709551615.-1")
	f.Fuzz(func(t *testing.T, cursor string) {
		p, err := parsePosition(cursor)
		if err == nil && p.String() != cursor {
			t.Fatalf("%q reads as %q", cursor, p)
		}
		if err != nil && !fault.Is(err, fault.FieldInvalid) {
			t.Fatal(err)
		}
	})
}
