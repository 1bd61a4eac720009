package amount_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/amount"
)

func TestTotalsAreFormattedLikeAmounts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n, err := amount.ParseInt(rapid.StringMatching(`0|-?[1-9][0-9]{0,37}`).Draw(t, "minor"))
		if err != nil {
			t.Fatal(err)
		}
		scale := rapid.Uint8Range(0, 38).Draw(t, "scale")
		if got, want := n.Total().Format(scale), amount.Format(n, scale); got != want {
			t.Errorf("%s, not %s", got, want)
		}
	})
}

func TestTotalsMayHaveMoreDigitsThanAmounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		total amount.Total
		scale uint8
		want  string
	}{
		{"", 0, "0"},
		{"", 2, "0.00"},
		{"199999999999999999999999999999999999998", 0, "199999999999999999999999999999999999998"},
		{"-199999999999999999999999999999999999998", 2, "-1999999999999999999999999999999999999.98"},
		{"123456789012345678901234567890123456789012345", 18, "123456789012345678901234567.890123456789012345"},
	} {
		if got := c.total.Format(c.scale); got != c.want {
			t.Errorf("%s with %d decimals: %s, not %s", c.total, c.scale, got, c.want)
		}
	}
}
