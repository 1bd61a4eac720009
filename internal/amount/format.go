package amount

import "math/bits"

// formatCap holds any amount of an asset with at most MaxDigits decimals: sign,
// digits, and "0." in front of them.
const formatCap = MaxDigits + 3

// Format returns minor, an amount in minor units of an asset with scale
// decimals, as decimal text with exactly that many decimals: Format(-1230, 2)
// is "-12.30", Format(5, 0) is "5".
func Format(minor Int, scale uint8) string {
	var buf [formatCap]byte
	return string(AppendFormat(buf[:0], minor, scale))
}

// AppendFormat appends the text of Format to b.
func AppendFormat(b []byte, minor Int, scale uint8) []byte {
	if scale == 0 {
		return minor.Append(b)
	}
	neg, hi, lo := minor.magnitude()
	if neg {
		b = append(b, '-')
	}
	if int(scale) < digitsPerWord {
		whi, wlo, frac := divMod(hi, lo, pow10[scale])
		b = append(appendDigits(b, whi, wlo), '.')
		return appendPadded(b, frac, int(scale))
	}
	var digits [MaxDigits]byte
	text := appendDigits(digits[:0], hi, lo)
	whole := len(text) - int(scale)
	if whole > 0 {
		b = append(append(b, text[:whole]...), '.')
		return append(b, text[whole:]...)
	}
	b = append(b, "0."...)
	for ; whole < 0; whole++ {
		b = append(b, '0')
	}
	return append(b, text...)
}

// divMod divides (hi, lo) by d, which is not 0.
func divMod(hi, lo, d uint64) (qhi, qlo, rem uint64) {
	qhi, rem = hi/d, hi%d
	qlo, rem = bits.Div64(rem, lo, d)
	return qhi, qlo, rem
}
