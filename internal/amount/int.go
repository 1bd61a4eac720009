package amount

import (
	"cmp"
	"math/big"
	"math/bits"
)

// MaxDigits is the number of decimal digits an Int may have. It equals the
// precision of the numeric(38,0) columns that store amounts.
const MaxDigits = 38

// The two halves of 10^38-1. The bounds are kept as constants, apart from the
// exported variables, so that no assignment elsewhere can widen them.
const (
	maxHi = 0x4b3b4ca85a86c47a
	maxLo = 0x098a223fffffffff
)

// Max and Min are the largest and the smallest Int: 10^38-1 and -(10^38-1).
var (
	Max = Int{hi: maxHi, lo: maxLo}
	Min = Max.Neg()
)

// Int is an exact amount in minor units, between Min and Max. The zero value is
// 0, and Ints compare with == and serve as map keys.
//
// It is a two's complement 128-bit integer. Every Int that code outside this
// package can hold is in bounds; the operations rely on that.
type Int struct {
	hi int64
	lo uint64
}

// FromInt64 returns n as an Int. Every int64 is in bounds.
func FromInt64(n int64) Int {
	return Int{hi: n >> 63, lo: uint64(n)}
}

// Add returns a+b, or ok=false and 0 when the sum is outside Min..Max.
func (a Int) Add(b Int) (sum Int, ok bool) {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(uint64(a.hi), uint64(b.hi), carry)
	return checked(hi, lo)
}

// Sub returns a-b, or ok=false and 0 when the difference is outside Min..Max.
func (a Int) Sub(b Int) (diff Int, ok bool) {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi, _ := bits.Sub64(uint64(a.hi), uint64(b.hi), borrow)
	return checked(hi, lo)
}

// checked returns the result of one addition or subtraction if it is in bounds. Such a result is below 2*10^38
// in size, which may wrap around 2^127 (1.7*10^38). A wrapped result is still at least 1.4*10^38 in size, so
// out of bounds. The bounds alone decide; no carry needs checking.
func checked(hi, lo uint64) (Int, bool) {
	x := Int{hi: int64(hi), lo: lo}
	if !x.inBounds() {
		return Int{}, false
	}
	return x, true
}

func (a Int) inBounds() bool {
	const minHi, minLo = ^int64(maxHi), ^uint64(maxLo) + 1 // the two's complement of 10^38-1
	switch {
	case a.hi < maxHi && a.hi > minHi:
		return true
	case a.hi == maxHi:
		return a.lo <= maxLo
	case a.hi == minHi:
		return a.lo >= minLo
	}
	return false
}

// Sum returns the sum of xs (0 for none), or ok=false and 0 when it is outside Min..Max. Only the total counts: partial
// sums may pass the bounds, so the answer does not depend on the order of xs.
func Sum(xs ...Int) (sum Int, ok bool) {
	// The third word holds the overflow of 128 bits. It would itself overflow only after 2^63 terms.
	var top int64
	var hi, lo uint64
	for _, x := range xs {
		var carry uint64
		lo, carry = bits.Add64(lo, x.lo, 0)
		hi, carry = bits.Add64(hi, uint64(x.hi), carry)
		top += x.hi>>63 + int64(carry)
	}
	if top != int64(hi)>>63 {
		return Int{}, false
	}
	return checked(hi, lo)
}

// Neg returns -a. The bounds are symmetric, so it always exists.
func (a Int) Neg() Int {
	lo, borrow := bits.Sub64(0, a.lo, 0)
	hi, _ := bits.Sub64(0, uint64(a.hi), borrow)
	return Int{hi: int64(hi), lo: lo}
}

// Abs returns the absolute value.
func (a Int) Abs() Int {
	if a.Sign() < 0 {
		return a.Neg()
	}
	return a
}

// Cmp returns -1 if a < b, 0 if a == b and +1 if a > b.
func (a Int) Cmp(b Int) int {
	if a.hi != b.hi {
		return cmp.Compare(a.hi, b.hi)
	}
	return cmp.Compare(a.lo, b.lo)
}

// Sign returns -1, 0 or +1 as a is negative, zero or positive.
func (a Int) Sign() int {
	switch {
	case a.hi < 0:
		return -1
	case a.IsZero():
		return 0
	}
	return 1
}

// IsZero reports whether a is 0.
func (a Int) IsZero() bool {
	return a == Int{}
}

// Lesser returns the smaller of a and b.
func Lesser(a, b Int) Int {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

// Greater returns the larger of a and b.
func Greater(a, b Int) Int {
	if a.Cmp(b) >= 0 {
		return a
	}
	return b
}

// Int64 returns a as an int64, or ok=false and 0 when it does not fit.
func (a Int) Int64() (n int64, ok bool) {
	n = int64(a.lo)
	if a.hi != n>>63 {
		return 0, false
	}
	return n, true
}

// Big returns a as a new big.Int.
func (a Int) Big() *big.Int {
	neg, hi, lo := a.magnitude()
	z := new(big.Int).SetUint64(hi)
	z.Lsh(z, 64).Or(z, new(big.Int).SetUint64(lo))
	if neg {
		z.Neg(z)
	}
	return z
}

// magnitude splits a into its sign and the two words of |a|.
func (a Int) magnitude() (neg bool, hi, lo uint64) {
	if a.hi < 0 {
		b := a.Neg()
		return true, uint64(b.hi), b.lo
	}
	return false, uint64(a.hi), a.lo
}

// fromMagnitude is the reverse of magnitude. The caller knows that (hi, lo) is at most 10^38-1.
func fromMagnitude(neg bool, hi, lo uint64) Int {
	x := Int{hi: int64(hi), lo: lo}
	if neg {
		return x.Neg()
	}
	return x
}

// mulAdd returns (hi, lo)*m + c, with ok=false when that is above 10^38-1.
func mulAdd(hi, lo, m, c uint64) (newHi, newLo uint64, ok bool) {
	over, top := bits.Mul64(hi, m)
	carry, low := bits.Mul64(lo, m)
	low, k := bits.Add64(low, c, 0)
	// carry+k cannot wrap: a 128-bit product plus one word fits in 128 bits.
	top, k = bits.Add64(top, carry+k, 0)
	if over != 0 || k != 0 || top > maxHi || top == maxHi && low > maxLo {
		return 0, 0, false
	}
	return top, low, true
}
