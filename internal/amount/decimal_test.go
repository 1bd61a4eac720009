package amount

import (
	"errors"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseDecimalFollowsTheGrammar(t *testing.T) {
	nines := strings.Repeat("9", 38)
	for _, c := range []struct {
		text  string
		coef  Int
		scale uint8
		err   error
	}{
		{"0", Int{}, 0, nil},
		{"0.0", Int{}, 0, nil},
		{"0." + strings.Repeat("0", 58), Int{}, 0, nil},
		{"12.3", FromInt64(123), 1, nil},
		{"12.30", FromInt64(123), 1, nil},
		{"-12.30", FromInt64(-123), 1, nil},
		{"0.05", FromInt64(5), 2, nil},
		{"100", FromInt64(100), 0, nil},
		{"100.00", FromInt64(100), 0, nil},
		{"10.010", FromInt64(1001), 2, nil},
		{nines, Max, 0, nil},
		{"-" + nines, Min, 0, nil},
		{nines[:20] + "." + nines[:18], Max, 18, nil},
		{nines + ".00000", Max, 0, nil},
		{"0.000000000000000001", FromInt64(1), 18, nil},
		{"0.0000000000000000010000", FromInt64(1), 18, nil},

		{"", Int{}, 0, ErrSyntax},
		{"-", Int{}, 0, ErrSyntax},
		{".", Int{}, 0, ErrSyntax},
		{".5", Int{}, 0, ErrSyntax},
		{"-.5", Int{}, 0, ErrSyntax},
		{"5.", Int{}, 0, ErrSyntax},
		{"1.2.3", Int{}, 0, ErrSyntax},
		{"1.2-", Int{}, 0, ErrSyntax},
		{"1.-2", Int{}, 0, ErrSyntax},
		{"+1", Int{}, 0, ErrSyntax},
		{"-0", Int{}, 0, ErrSyntax},
		{"-0.00", Int{}, 0, ErrSyntax},
		{"007", Int{}, 0, ErrSyntax},
		{"00.5", Int{}, 0, ErrSyntax},
		{"1e5", Int{}, 0, ErrSyntax},
		{"1.5e5", Int{}, 0, ErrSyntax},
		{" 1", Int{}, 0, ErrSyntax},
		{"1 ", Int{}, 0, ErrSyntax},
		{"1.5 ", Int{}, 0, ErrSyntax},
		{"1,5", Int{}, 0, ErrSyntax},
		{"1_0", Int{}, 0, ErrSyntax},
		{"0x1", Int{}, 0, ErrSyntax},
		{"NaN", Int{}, 0, ErrSyntax},
		{"1.5\x00", Int{}, 0, ErrSyntax},
		{"1٫5", Int{}, 0, ErrSyntax},

		{nines + "9", Int{}, 0, ErrTooManyDigits},
		{nines + ".5", Int{}, 0, ErrTooManyDigits},
		{nines[:21] + "." + nines[:18], Int{}, 0, ErrTooManyDigits},
		{nines[:1] + "." + nines, Int{}, 0, ErrTooManyDigits},
		{"0.0000000000000000001", Int{}, 0, ErrTooManyDecimals},
		{"1." + nines[:19], Int{}, 0, ErrTooManyDecimals},
		{"0." + strings.Repeat("0", 59), Int{}, 0, ErrTooLong},
		{strings.Repeat("x", 61), Int{}, 0, ErrTooLong},
		{strings.Repeat("x", 60), Int{}, 0, ErrSyntax},
	} {
		got, err := ParseDecimal(c.text)
		if want := (Decimal{Coef: c.coef, Scale: c.scale}); got != want || !errors.Is(err, c.err) {
			t.Errorf("ParseDecimal(%q) = %+v, %v; want %+v, %v", c.text, got, err, want, c.err)
		}
	}
}

func TestLongTextIsNotRepeatedInTheError(t *testing.T) {
	_, err := ParseDecimal(strings.Repeat("7", 100_000))
	if !errors.Is(err, ErrTooLong) || len(err.Error()) > 100 {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
}

func TestMinorNeverRounds(t *testing.T) {
	nines := strings.Repeat("9", 38)
	for _, c := range []struct {
		text  string
		scale uint8
		want  string
		err   error
	}{
		{"12.3", 2, "1230", nil},
		{"-12.3", 2, "-1230", nil},
		{"12.30", 1, "123", nil},
		{"12.34", 1, "", ErrTooPrecise},
		{"0.001", 2, "", ErrTooPrecise},
		{"-0.001", 2, "", ErrTooPrecise},
		{"5", 0, "5", nil},
		{"0", 255, "0", nil},
		{"1", 37, "1" + strings.Repeat("0", 37), nil},
		{"1", 38, "", ErrOverflow},
		{"-1", 255, "", ErrOverflow},
		{"0.1", 38, "1" + strings.Repeat("0", 37), nil},
		{nines, 0, nines, nil},
		{nines, 1, "", ErrOverflow},
		{"9999999999999999999999", 18, "", ErrOverflow},
		{"99999999999999999999.999999999999999999", 18, nines, nil},
		{"34028236692093846346337460743176822", 4, "", ErrOverflow}, // just above 2^128
	} {
		d, err := ParseDecimal(c.text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Minor(c.scale)
		if !errors.Is(err, c.err) || err == nil && got.String() != c.want || err != nil && got != (Int{}) {
			t.Errorf("%s.Minor(%d) = %v, %v; want %s, %v", c.text, c.scale, got, err, c.want, c.err)
		}
	}
}

func TestMinorMatchesBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := NewDecimal(genInt.Draw(t, "coef"), rapid.Uint8Range(0, 45).Draw(t, "from"))
		scale := rapid.Uint8Range(0, 45).Draw(t, "to")
		got, err := d.Minor(scale)

		want := new(big.Rat).SetFrac(d.Coef.Big(), power(d.Scale))
		want.Mul(want, new(big.Rat).SetInt(power(scale)))
		switch {
		case !want.IsInt():
			if !errors.Is(err, ErrTooPrecise) {
				t.Fatalf("got %v, %v for a fraction", got, err)
			}
		case !fits(want.Num()):
			if !errors.Is(err, ErrOverflow) {
				t.Fatalf("got %v, %v for %v", got, err, want)
			}
		case err != nil || got.Big().Cmp(want.Num()) != 0:
			t.Fatalf("got %v, %v, want %v", got, err, want)
		}
	})
}

func power(n uint8) *big.Int {
	return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil)
}

func TestFormatHasExactlyScaleDecimals(t *testing.T) {
	for _, c := range []struct {
		minor Int
		scale uint8
		want  string
	}{
		{FromInt64(-1230), 2, "-12.30"},
		{FromInt64(1230), 0, "1230"},
		{FromInt64(0), 0, "0"},
		{FromInt64(0), 2, "0.00"},
		{FromInt64(5), 2, "0.05"},
		{FromInt64(-5), 3, "-0.005"},
		{FromInt64(100), 2, "1.00"},
		{Max, 0, strings.Repeat("9", 38)},
		{Max, 18, strings.Repeat("9", 20) + "." + strings.Repeat("9", 18)},
		{Max, 19, strings.Repeat("9", 19) + "." + strings.Repeat("9", 19)},
		{Min, 38, "-0." + strings.Repeat("9", 38)},
		{FromInt64(1), 40, "0." + strings.Repeat("0", 39) + "1"},
		{FromInt64(12), 255, "0." + strings.Repeat("0", 253) + "12"},
	} {
		if got := Format(c.minor, c.scale); got != c.want {
			t.Errorf("Format(%v, %d) = %q, want %q", c.minor, c.scale, got, c.want)
		}
		if got := string(AppendFormat([]byte("x="), c.minor, c.scale)); got != "x="+c.want {
			t.Errorf("AppendFormat(%v, %d) = %q", c.minor, c.scale, got)
		}
	}
}

func TestFormatMatchesBig(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, scale := genInt.Draw(t, "x"), rapid.Uint8().Draw(t, "scale")
		want := new(big.Rat).SetFrac(x.Big(), power(scale)).FloatString(int(scale))
		if got := Format(x, scale); got != want {
			t.Fatalf("Format(%v, %d) = %q, want %q", x, scale, got, want)
		}
	})
}

func TestFormatParsesBackToTheSameMinorUnits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, scale := genInt.Draw(t, "x"), rapid.Uint8Range(0, MaxScale).Draw(t, "scale")
		d, err := ParseDecimal(Format(x, scale))
		if err != nil {
			t.Fatal(err)
		}
		if d != NewDecimal(x, scale) {
			t.Fatalf("%+v, want %+v", d, NewDecimal(x, scale))
		}
		if back, err := d.Minor(scale); err != nil || back != x {
			t.Fatalf("%v came back as %v, %v", x, back, err)
		}
	})
}

func TestCmpMatchesBig(t *testing.T) {
	t.Parallel()
	draw := func(t *rapid.T, name string) Decimal {
		scale := rapid.Uint8Range(0, MaxScale).Draw(t, name+" scale")
		return NewDecimal(FromInt64(rapid.Int64().Draw(t, name)), scale)
	}
	rat := func(d Decimal) *big.Rat {
		return new(big.Rat).SetFrac(d.Coef.Big(), new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.Scale)), nil))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		if got, want := a.Cmp(b), rat(a).Cmp(rat(b)); got != want {
			t.Fatalf("%v and %v: %d, want %d", a, b, got, want)
		}
		if a.Cmp(a) != 0 || a.Coef.Abs().Big().Cmp(new(big.Int).Abs(a.Coef.Big())) != 0 {
			t.Fatalf("%v, absolute %v", a, a.Coef.Abs())
		}
	})
}

func TestCanonicalTextIsOnePerValue(t *testing.T) {
	for _, c := range []struct {
		in   Decimal
		want string
	}{
		{Decimal{}, "0"},
		{NewDecimal(Int{}, 9), "0"},
		{NewDecimal(FromInt64(1230), 2), "12.3"},
		{NewDecimal(FromInt64(123), 1), "12.3"},
		{NewDecimal(FromInt64(1200), 2), "12"},
		{NewDecimal(FromInt64(1200), 0), "1200"},
		{NewDecimal(FromInt64(-5), 3), "-0.005"},
	} {
		if got := c.in.String(); got != c.want {
			t.Errorf("%+v = %q, want %q", c.in, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) Decimal {
			return NewDecimal(FromInt64(rapid.Int64Range(-120, 120).Draw(t, label)),
				rapid.Uint8Range(0, 3).Draw(t, label+" scale"))
		}
		a, b := draw("a"), draw("b")
		ra := new(big.Rat).SetFrac(a.Coef.Big(), power(a.Scale))
		rb := new(big.Rat).SetFrac(b.Coef.Big(), power(b.Scale))
		if (ra.Cmp(rb) == 0) != (a.String() == b.String()) {
			t.Fatalf("%+v is %q, %+v is %q", a, a, b, b)
		}
	})
}

func FuzzParseDecimal(f *testing.F) {
	for _, s := range []string{
		"0", "-12.30", "0.000000000000000001", "007", "-0.0", ".5", "5.", "1e5", "",
		"99999999999999999999.999999999999999999", "99999999999999999999999999999999999999.0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDecimal(s)
		if err != nil {
			if d != (Decimal{}) {
				t.Fatalf("ParseDecimal(%q) = %+v beside %v", s, d, err)
			}
			return
		}
		if d != NewDecimal(d.Coef, d.Scale) || d.Scale > MaxScale || !d.Coef.inBounds() {
			t.Fatalf("ParseDecimal(%q) = %+v, not normalised or out of bounds", s, d)
		}
		want, ok := new(big.Rat).SetString(s)
		if !ok || want.Cmp(new(big.Rat).SetFrac(d.Coef.Big(), power(d.Scale))) != 0 {
			t.Fatalf("ParseDecimal(%q) = %v", s, d)
		}
		canonical := d.String()
		back, err := ParseDecimal(canonical)
		if err != nil || back != d || len(canonical) > len(s) {
			t.Fatalf("%q became %q, which is %+v, %v", s, canonical, back, err)
		}
	})
}
