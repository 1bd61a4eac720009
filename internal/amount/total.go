package amount

import (
	"cmp"
	"strings"
)

// Total is a sum of amounts in minor units, as integer text of any size: a sum may exceed 38 digits, and must not fail
// a read. The zero value is 0.
type Total string

// Total returns a as a sum.
func (a Int) Total() Total { return Total(a.String()) }

// String returns the integer text, in minor units.
func (t Total) String() string { return cmp.Or(string(t), "0") }

// Format formats the total like the function Format.
func (t Total) Format(scale uint8) string {
	digits, negative := strings.CutPrefix(t.String(), "-")
	if lacking := int(scale) + 1 - len(digits); lacking > 0 {
		digits = strings.Repeat("0", lacking) + digits
	}
	if scale > 0 {
		point := len(digits) - int(scale)
		digits = digits[:point] + "." + digits[point:]
	}
	if negative {
		return "-" + digits
	}
	return digits
}
