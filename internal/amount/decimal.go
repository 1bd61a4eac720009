package amount

import (
	"errors"
	"fmt"
	"math/big"
	"math/bits"
	"strconv"
)

// MaxScale is the largest number of decimals ParseDecimal accepts.
const MaxScale = 18

// Decimal is the exact decimal number Coef / 10^Scale, as a client writes an
// amount before the scale of its asset is looked up.
//
// Make it by ParseDecimal or NewDecimal, which normalise: the fraction does not end in a zero. So "12.30" and "12.3"
// give the same Decimal and == compares values. The zero value is 0.
type Decimal struct {
	Coef  Int
	Scale uint8
}

// NewDecimal returns coef / 10^scale, normalised. It converts an amount in the minor units of an asset with that scale.
func NewDecimal(coef Int, scale uint8) Decimal {
	neg, hi, lo := coef.magnitude()
	for scale > 0 {
		qhi, qlo, r := divMod(hi, lo, 10)
		if r != 0 {
			break
		}
		hi, lo = qhi, qlo
		scale--
	}
	return Decimal{Coef: fromMagnitude(neg, hi, lo), Scale: scale}
}

// ParseDecimal reads a decimal number. The grammar, in full:
//
//	decimal  = [ "-" ] whole [ "." digit { digit } ]
//	whole    = "0" | nonzero { digit }
//
// There is no exponent, no plus sign, no space, no digit separator and no negative zero. After dropping the zeros that
// end the fraction, at most 38 significant digits and 18 decimals may remain; the text has at most 60 characters.
// Returns ErrTooLong, ErrSyntax, ErrTooManyDigits or ErrTooManyDecimals, the first that applies.
func ParseDecimal(s string) (Decimal, error) {
	if len(s) > MaxTextLen {
		return Decimal{}, fmt.Errorf("%w: %d characters", ErrTooLong, len(s))
	}
	neg, start := sign(s)
	var d digits
	point := scan(&d, s, start)
	if !wholeOK(s, start, point) {
		return Decimal{}, fmt.Errorf("%w: %q", ErrSyntax, s)
	}
	scale := 0
	if point < len(s) {
		last, ok := fraction(s, point)
		if !ok {
			return Decimal{}, fmt.Errorf("%w: %q", ErrSyntax, s)
		}
		scan(&d, s[:last], point+1)
		scale = max(last-point-1, 0)
	}
	if neg && d.n == 0 {
		return Decimal{}, fmt.Errorf("%w: %q", ErrSyntax, s)
	}
	coef, ok := d.value(neg)
	if !ok {
		return Decimal{}, fmt.Errorf("%w: %s", ErrTooManyDigits, s)
	}
	if scale > MaxScale {
		return Decimal{}, fmt.Errorf("%w: %s", ErrTooManyDecimals, s)
	}
	return Decimal{Coef: coef, Scale: uint8(scale)}, nil
}

// fraction checks that s[point:] is a point followed only by digits, at least
// one, and returns the end of s without the zeros that close the fraction.
func fraction(s string, point int) (last int, ok bool) {
	if s[point] != '.' || point+1 == len(s) {
		return 0, false
	}
	last = point + 1
	for i := point + 1; i < len(s); i++ {
		switch c := s[i]; {
		case c < '0' || c > '9':
			return 0, false
		case c != '0':
			last = i + 1
		}
	}
	return last, true
}

// Minor returns d in the minor units of an asset with scale decimals. Returns ErrTooPrecise if d has more decimals than
// that (it never rounds) and ErrOverflow if the result passes 38 digits.
func (d Decimal) Minor(scale uint8) (Int, error) {
	if d.Scale > scale {
		return Int{}, fmt.Errorf("%w: %s with %d decimals", ErrTooPrecise, d, scale)
	}
	neg, hi, lo := d.Coef.magnitude()
	for up := scale - d.Scale; up > 0; {
		step := min(up, digitsPerWord)
		var ok bool
		if hi, lo, ok = mulAdd(hi, lo, pow10[step], 0); !ok {
			return Int{}, fmt.Errorf("%w: %s with %d decimals", ErrOverflow, d, scale)
		}
		up -= step
	}
	return fromMagnitude(neg, hi, lo), nil
}

// MinorUp is Minor, but rounds up where d has more decimals than scale, and returns Max instead of ErrOverflow.
func (d Decimal) MinorUp(scale uint8) Int {
	n, err := d.Minor(scale)
	switch {
	case errors.Is(err, ErrOverflow):
		return Max
	case err == nil:
		return n
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.Scale-scale)), nil)
	whole, rest := new(big.Int).DivMod(d.Coef.Big(), unit, new(big.Int))
	if rest.Sign() > 0 {
		whole.Add(whole, big.NewInt(1))
	}
	n, _ = ParseInt(whole.String()) // smaller than the coefficient
	return n
}

// Cmp returns -1, 0 or 1 as d is less than, equal to or greater than o.
func (d Decimal) Cmp(o Decimal) int {
	scale := max(d.Scale, o.Scale)
	return d.scaled(scale).Cmp(o.scaled(scale))
}

// scaled returns the coefficient at a scale that is not smaller.
func (d Decimal) scaled(scale uint8) *big.Int {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(scale-d.Scale)), nil)
	return power.Mul(power, d.Coef.Big())
}

// String returns the canonical text of d: equal values have equal texts, different values different ones. Within
// ParseDecimal's limits it is the shortest text that parses back to d.
func (d Decimal) String() string {
	var buf [formatCap]byte
	return string(AppendFormat(buf[:0], d.Coef, d.Scale))
}

// MaxTextLen is the largest number of bytes in a text that the parsers accept.
const MaxTextLen = 60

// digitsPerWord is how many decimal digits always fit in a uint64, and
// wordScale is 10 to that power. Two such words hold every Int.
const (
	digitsPerWord = 19
	wordScale     = 1e19
)

var pow10 = [digitsPerWord + 1]uint64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9,
	1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19,
}

// ParseInt reads an amount in minor units from integer text: an optional '-', then digits, without leading zeros,
// without "-0", at most 38 digits. Returns ErrTooLong, ErrSyntax or ErrTooManyDigits.
func ParseInt(s string) (Int, error) {
	return parseInt(s)
}

func parseInt[T string | []byte](s T) (Int, error) {
	if len(s) > MaxTextLen {
		return Int{}, fmt.Errorf("%w: %d characters", ErrTooLong, len(s))
	}
	neg, i := sign(s)
	var d digits
	end := scan(&d, s, i)
	if end != len(s) || !wholeOK(s, i, end) || neg && d.n == 0 {
		return Int{}, fmt.Errorf("%w: %q", ErrSyntax, string(s))
	}
	x, ok := d.value(neg)
	if !ok {
		return Int{}, fmt.Errorf("%w: %s", ErrTooManyDigits, string(s))
	}
	return x, nil
}

// sign reports whether s begins with a minus, and where its digits begin.
func sign[T string | []byte](s T) (neg bool, start int) {
	if len(s) > 0 && s[0] == '-' {
		return true, 1
	}
	return false, 0
}

// wholeOK reports whether s[start:end] is a valid whole part: "0", or digits without leading zeros, which some readers
// take for octal.
func wholeOK[T string | []byte](s T, start, end int) bool {
	return end > start && (s[start] != '0' || end == start+1)
}

// digits collects up to 38 decimal digits in two words: the first 19 in head, the rest in tail. n counts all
// significant digits, also those past 38, which are not kept.
type digits struct {
	head, tail uint64
	n          int
}

func (d *digits) add(c byte) {
	switch {
	case d.n == 0 && c == '0':
		return
	case d.n < digitsPerWord:
		d.head = d.head*10 + uint64(c-'0')
	case d.n < MaxDigits:
		d.tail = d.tail*10 + uint64(c-'0')
	}
	d.n++
}

// scan adds the digits of s from i on to d and returns where they stop.
func scan[T string | []byte](d *digits, s T, i int) int {
	for ; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		d.add(s[i])
	}
	return i
}

// value returns the number collected, with ok=false when it had more than 38 digits.
func (d *digits) value(neg bool) (x Int, ok bool) {
	if d.n > MaxDigits {
		return Int{}, false
	}
	if d.n <= digitsPerWord {
		return fromMagnitude(neg, 0, d.head), true
	}
	// 38 digits are at most 10^38-1, so this cannot overflow.
	hi, lo, _ := mulAdd(0, d.head, pow10[d.n-digitsPerWord], d.tail)
	return fromMagnitude(neg, hi, lo), true
}

// Append appends the integer text of a, as read by ParseInt, to b.
func (a Int) Append(b []byte) []byte {
	neg, hi, lo := a.magnitude()
	if neg {
		b = append(b, '-')
	}
	return appendDigits(b, hi, lo)
}

// appendDigits appends (hi, lo), which is at most 10^38-1, in decimal.
func appendDigits(b []byte, hi, lo uint64) []byte {
	if hi == 0 {
		return strconv.AppendUint(b, lo, 10)
	}
	// hi is below 10^19, as Div64 requires, because 10^38 < 10^19 * 2^64.
	head, tail := bits.Div64(hi, lo, wordScale)
	b = strconv.AppendUint(b, head, 10)
	return appendPadded(b, tail, digitsPerWord)
}

// appendPadded appends n in decimal, padded with zeros to width digits.
func appendPadded(b []byte, n uint64, width int) []byte {
	start := len(b)
	b = append(b, "0000000000000000000"[:width]...)
	for i := len(b) - 1; i >= start; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return b
}

// String returns the integer text of a, in minor units.
func (a Int) String() string {
	var buf [MaxDigits + 1]byte
	return string(a.Append(buf[:0]))
}

// MarshalText returns the integer text of a, so that JSON and logs show the
// amount as a string (a JSON number is a float to most readers).
func (a Int) MarshalText() ([]byte, error) {
	return a.Append(nil), nil
}

// UnmarshalText sets a from integer text. Returns the errors of ParseInt and then leaves a as it was.
func (a *Int) UnmarshalText(text []byte) error {
	x, err := parseInt(text)
	if err != nil {
		return err
	}
	*a = x
	return nil
}

// formatCap holds any amount of an asset with at most MaxDigits decimals: sign, digits, and "0." in front of them.
const formatCap = MaxDigits + 3

// Format returns minor, an amount in minor units of an asset with scale decimals, as decimal text with exactly that
// many decimals: Format(-1230, 2) is "-12.30", Format(5, 0) is "5".
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
