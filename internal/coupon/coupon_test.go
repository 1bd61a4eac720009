package coupon_test

import (
	"regexp"
	"testing"

	"github.com/ledgerd/ledgerd/internal/coupon"
)

// Codes are 20 random characters that are not easily confused.
func TestCodesCannotBeGuessed(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9A-HJKMNP-TV-Z]{20}$`)
	var used [20]map[byte]bool
	for range 1000 {
		code := coupon.NewCode()
		if !form.MatchString(code) {
			t.Fatal(code)
		}
		for i := range used {
			if used[i] == nil {
				used[i] = map[byte]bool{}
			}
			used[i][code[i]] = true
		}
	}
	for i, letters := range used {
		if len(letters) != 32 {
			t.Errorf("character %d of 1,000 codes had %d values", i+1, len(letters))
		}
	}
}
