package amount

import (
	"fmt"
	"math/bits"
	"strconv"
)

// MaxTextLen is the largest number of characters the parsers look at.
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

// ParseInt reads an amount in minor units from integer text: an optional '-',
// then digits, without leading zeros, without "-0", at most 38 digits. Returns
// ErrTooLong, ErrSyntax or ErrTooManyDigits.
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

// sign reports whether s opens with a minus and where its digits begin.
func sign[T string | []byte](s T) (neg bool, start int) {
	if len(s) > 0 && s[0] == '-' {
		return true, 1
	}
	return false, 0
}

// wholeOK reports whether s[start:end] is a whole part as the grammar wants it:
// present, and "0" or not opening with a zero. Text with one spelling per value
// cannot smuggle a second meaning (octal, padding) past a reader.
func wholeOK[T string | []byte](s T, start, end int) bool {
	return end > start && (s[start] != '0' || end == start+1)
}

// digits collects up to 38 decimal digits in two words: the first 19 in head,
// the rest in tail. n counts all significant digits, also those past 38, which
// are not kept.
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

// value returns the number collected, with ok=false when it had more than 38
// digits.
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

// UnmarshalText sets a from integer text. Returns the errors of ParseInt and
// then leaves a as it was.
func (a *Int) UnmarshalText(text []byte) error {
	x, err := parseInt(text)
	if err != nil {
		return err
	}
	*a = x
	return nil
}
