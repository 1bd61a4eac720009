package amount

import (
	"errors"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// bound is 10^38, the first size that is refused, from math/big rather than from
// the constants under test.
var bound = new(big.Int).Exp(big.NewInt(10), big.NewInt(MaxDigits), nil)

func fits(z *big.Int) bool { return z.CmpAbs(bound) < 0 }

// genInt draws Ints of every magnitude. Uniform bits would almost never be small or near the bounds, where
// mistakes are likely.
var genInt = rapid.Custom(func(t *rapid.T) Int {
	edges := []Int{{}, Max, Min, {lo: 1}, {hi: -1, lo: math.MaxUint64}, {lo: math.MaxUint64}, {hi: 1}, {hi: -1}}
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return rapid.SampledFrom(edges).Draw(t, "edge")
	case 1:
		near := rapid.SampledFrom(edges).Draw(t, "near")
		x, ok := near.Add(FromInt64(rapid.Int64Range(-10_001, 10_001).Draw(t, "by")))
		if !ok {
			return near
		}
		return x
	default:
		text := rapid.StringMatching(`-?[1-9][0-9]{0,37}`).Draw(t, "text")
		x, err := ParseInt(text)
		if err != nil {
			t.Fatalf("generator: %v", err)
		}
		return x
	}
})

func TestBoundsAreThirtyEightDigits(t *testing.T) {
	want := new(big.Int).Sub(bound, big.NewInt(1))
	if Max.Big().Cmp(want) != 0 {
		t.Errorf("Max = %v, want %v", Max, want)
	}
	if Min.Big().Cmp(want.Neg(want)) != 0 {
		t.Errorf("Min = %v, want %v", Min, want)
	}
}

func TestAddRefusesBeyondTheBounds(t *testing.T) {
	one := FromInt64(1)
	for _, c := range []struct {
		name string
		got  func() (Int, bool)
		want Int
		ok   bool
	}{
		{"max+1", func() (Int, bool) { return Max.Add(one) }, Int{}, false},
		{"max+0", func() (Int, bool) { return Max.Add(Int{}) }, Max, true},
		{"max+max wraps 127 bits", func() (Int, bool) { return Max.Add(Max) }, Int{}, false},
		{"min+min wraps 127 bits", func() (Int, bool) { return Min.Add(Min) }, Int{}, false},
		{"max+min", func() (Int, bool) { return Max.Add(Min) }, Int{}, true},
		{"min-1", func() (Int, bool) { return Min.Sub(one) }, Int{}, false},
		{"min-0", func() (Int, bool) { return Min.Sub(Int{}) }, Min, true},
		{"max-min", func() (Int, bool) { return Max.Sub(Min) }, Int{}, false},
		{"min-max", func() (Int, bool) { return Min.Sub(Max) }, Int{}, false},
		{"min-min", func() (Int, bool) { return Min.Sub(Min) }, Int{}, true},
		{"carry into the high word", func() (Int, bool) { return Int{lo: math.MaxUint64}.Add(one) }, Int{hi: 1}, true},
		{"borrow from the high word", func() (Int, bool) { return Int{hi: 1}.Sub(one) }, Int{lo: math.MaxUint64}, true},
	} {
		if got, ok := c.got(); got != c.want || ok != c.ok {
			t.Errorf("%s = %v, %v; want %v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestArithmeticMatchesBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genInt.Draw(t, "a"), genInt.Draw(t, "b")
		same(t, "Add", a.Add, b, new(big.Int).Add(a.Big(), b.Big()))
		same(t, "Sub", a.Sub, b, new(big.Int).Sub(a.Big(), b.Big()))
		if got, want := a.Neg().Big(), new(big.Int).Neg(a.Big()); got.Cmp(want) != 0 {
			t.Errorf("-(%v) = %v", a, got)
		}
		cmp := a.Big().Cmp(b.Big())
		if got := a.Cmp(b); got != cmp {
			t.Errorf("Cmp(%v, %v) = %d, want %d", a, b, got, cmp)
		}
		if (a == b) != (cmp == 0) {
			t.Errorf("%v == %v is %v", a, b, a == b)
		}
		if a.Sign() != a.Big().Sign() || a.IsZero() != (a.Big().Sign() == 0) {
			t.Errorf("Sign(%v) = %d, IsZero = %v", a, a.Sign(), a.IsZero())
		}
		low, high := a, b
		if cmp > 0 {
			low, high = b, a
		}
		if Lesser(a, b) != low || Greater(a, b) != high {
			t.Errorf("Lesser, Greater(%v, %v) = %v, %v", a, b, Lesser(a, b), Greater(a, b))
		}
	})
}

func same(t *rapid.T, name string, op func(Int) (Int, bool), b Int, want *big.Int) {
	t.Helper()
	got, ok := op(b)
	if ok != fits(want) {
		t.Fatalf("%s: ok = %v for %v", name, ok, want)
	}
	if ok && got.Big().Cmp(want) != 0 || !ok && got != (Int{}) {
		t.Fatalf("%s = %v, want %v", name, got, want)
	}
}

func TestSumDependsOnTheTotalOnly(t *testing.T) {
	if got, ok := Sum(Max, Max, Max, Max, Min, Min, Min, Min, FromInt64(7)); !ok || got != FromInt64(7) {
		t.Errorf("partial sums above the bounds: %v, %v", got, ok)
	}
	if _, ok := Sum(Max, FromInt64(1)); ok {
		t.Error("Max+1 was accepted")
	}
	// The total is 4*(10^38-1), which is in bounds again when cut to 128 bits.
	if got, ok := Sum(Max, Max, Max, Max); ok {
		t.Errorf("4*Max = %v", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(genInt, 0, 12).Draw(t, "xs")
		want := new(big.Int)
		for _, x := range xs {
			want.Add(want, x.Big())
		}
		same(t, "Sum", func(Int) (Int, bool) { return Sum(xs...) }, Int{}, want)
	})
}

func TestInt64RoundTrip(t *testing.T) {
	for _, n := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64} {
		x := FromInt64(n)
		if x.Big().Cmp(big.NewInt(n)) != 0 {
			t.Errorf("FromInt64(%d) = %v", n, x)
		}
		if got, ok := x.Int64(); !ok || got != n {
			t.Errorf("Int64(%d) = %d, %v", n, got, ok)
		}
	}
	for _, x := range []Int{Max, Min, {lo: 1 << 63}, {hi: -1, lo: 1<<63 - 1}, {hi: 1}} {
		if got, ok := x.Int64(); ok || got != 0 {
			t.Errorf("Int64(%v) = %d, %v", x, got, ok)
		}
	}
}

func TestParseIntAcceptsOneSpelling(t *testing.T) {
	const nines = "99999999999999999999999999999999999999"
	for _, c := range []struct {
		text string
		want Int
		err  error
	}{
		{"0", Int{}, nil},
		{"7", FromInt64(7), nil},
		{"-7", FromInt64(-7), nil},
		{nines, Max, nil},
		{"-" + nines, Min, nil},
		{"18446744073709551616", Int{hi: 1}, nil},
		{"1" + nines[1:] + "0", Int{}, ErrTooManyDigits},
		{"100000000000000000000000000000000000000", Int{}, ErrTooManyDigits},
		{"", Int{}, ErrSyntax},
		{"-", Int{}, ErrSyntax},
		{"-0", Int{}, ErrSyntax},
		{"+1", Int{}, ErrSyntax},
		{"007", Int{}, ErrSyntax},
		{"00", Int{}, ErrSyntax},
		{"-01", Int{}, ErrSyntax},
		{"--1", Int{}, ErrSyntax},
		{" 1", Int{}, ErrSyntax},
		{"1 ", Int{}, ErrSyntax},
		{"1.0", Int{}, ErrSyntax},
		{"1e3", Int{}, ErrSyntax},
		{"0x1", Int{}, ErrSyntax},
		{"1_000", Int{}, ErrSyntax},
		{"١", Int{}, ErrSyntax}, // a digit, but not an ASCII one
		{strings.Repeat("x", 60), Int{}, ErrSyntax},
		{strings.Repeat("x", 61), Int{}, ErrTooLong},
	} {
		got, err := ParseInt(c.text)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("ParseInt(%q) = %v, %v; want %v, %v", c.text, got, err, c.want, c.err)
		}
	}
}

func TestIntTextMatchesBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := genInt.Draw(t, "x")
		text := x.String()
		if want := x.Big().String(); text != want {
			t.Fatalf("String = %q, want %q", text, want)
		}
		if back, err := ParseInt(text); err != nil || back != x {
			t.Fatalf("ParseInt(%q) = %v, %v", text, back, err)
		}
		marshalled, err := x.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		back := FromInt64(42)
		if err := back.UnmarshalText(marshalled); err != nil || back != x {
			t.Fatalf("UnmarshalText(%q) = %v, %v", marshalled, back, err)
		}
	})
}

func TestUnmarshalTextLeavesTheValueOnError(t *testing.T) {
	x := FromInt64(42)
	if err := x.UnmarshalText([]byte("4.2")); !errors.Is(err, ErrSyntax) || x != FromInt64(42) {
		t.Errorf("UnmarshalText = %v, value %v", err, x)
	}
}

func FuzzIntText(f *testing.F) {
	for _, s := range []string{"0", "-1", "007", "-0", "99999999999999999999999999999999999999", "1e9", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		x, err := ParseInt(s)
		z, isInt := new(big.Int).SetString(s, 10)
		if err != nil {
			if isInt && fits(z) && z.String() == s {
				t.Fatalf("ParseInt(%q) refused: %v", s, err)
			}
			return
		}
		if x.String() != s || !isInt || x.Big().Cmp(z) != 0 {
			t.Fatalf("ParseInt(%q) = %v", s, x)
		}
	})
}
