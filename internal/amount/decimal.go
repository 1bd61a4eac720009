package amount

import "fmt"

// MaxScale is the largest number of decimals ParseDecimal accepts.
const MaxScale = 18

// Decimal is the exact decimal number Coef / 10^Scale, as a client writes an
// amount before the scale of its asset is looked up.
//
// Decimals from ParseDecimal and NewDecimal are normalised: the fraction does
// not end in a zero. So "12.30" and "12.3" give the same Decimal and == compares
// values. The zero value is 0.
type Decimal struct {
	Coef  Int
	Scale uint8
}

// NewDecimal returns coef / 10^scale, normalised: an amount in the minor units
// of an asset with that scale becomes the decimal its owner reads.
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
// There is no exponent, no plus sign, no space, no digit separator and no
// negative zero. After dropping the zeros that end the fraction, at most 38
// significant digits and 18 decimals may remain; the text has at most 60
// characters. Returns ErrTooLong, ErrSyntax, ErrTooManyDigits or
// ErrTooManyDecimals, the first that applies.
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

// Minor returns d in the minor units of an asset with scale decimals. Returns
// ErrTooPrecise if d has more decimals than that (it never rounds) and
// ErrOverflow if the result passes 38 digits.
func (d Decimal) Minor(scale uint8) (Int, error) {
	d = NewDecimal(d.Coef, d.Scale)
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

// AppendCanonical appends the one canonical text of d's value to b, for
// fingerprints: equal values append equal bytes, different values different
// bytes. For a value within ParseDecimal's limits it is the shortest text that
// parses back to it.
func (d Decimal) AppendCanonical(b []byte) []byte {
	d = NewDecimal(d.Coef, d.Scale)
	return AppendFormat(b, d.Coef, d.Scale)
}

// String returns the canonical text of d.
func (d Decimal) String() string {
	var buf [formatCap]byte
	return string(d.AppendCanonical(buf[:0]))
}
