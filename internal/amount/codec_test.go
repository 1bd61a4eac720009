package amount

import (
	"bytes"
	"errors"
	"math/big"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"
)

var formats = []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode}

func newMap() *pgtype.Map {
	m := pgtype.NewMap()
	Register(m)
	return m
}

// reduced is x in pgtype's shortest form, without trailing zeros, whose encoding equals that of Postgres.
func reduced(x Int) pgtype.Numeric {
	z, exp := x.Big(), int32(0)
	for ten, r := big.NewInt(10), new(big.Int); z.Sign() != 0; exp++ {
		q, _ := new(big.Int).QuoRem(z, ten, r)
		if r.Sign() != 0 {
			break
		}
		z = q
	}
	return pgtype.Numeric{Int: z, Exp: exp, Valid: true}
}

func TestBinaryNumericEqualsTheBytesOfPgtype(t *testing.T) {
	plain := pgtype.NewMap()
	rapid.Check(t, func(t *rapid.T) {
		x := genInt.Draw(t, "x")
		want, err := plain.Encode(pgtype.NumericOID, pgtype.BinaryFormatCode, reduced(x), nil)
		if err != nil {
			t.Fatal(err)
		}
		if x.IsZero() {
			// pgtype gives zero the weight -1; Postgres and this package 0.
			want = make([]byte, numericHeaderLen)
		}
		got := AppendNumeric([]byte("prefix"), x)
		if !bytes.Equal(got, append([]byte("prefix"), want...)) {
			t.Fatalf("%v: % x, want % x", x, got, want)
		}
	})
}

func TestNumericDecodesWhatPgtypeEncodes(t *testing.T) {
	plain := pgtype.NewMap()
	rapid.Check(t, func(t *rapid.T) {
		// pgtype writes the text of 0*10^n as "00...", which Postgres never does.
		n := pgtype.Numeric{
			Int:   genInt.Draw(t, "coef").Big(),
			Exp:   rapid.Int32Range(-40, 40).Draw(t, "exp"),
			Valid: true,
		}
		if n.Int.Sign() == 0 {
			n.Exp = min(n.Exp, 0)
		}
		want := new(big.Rat).SetInt(n.Int)
		if scale := new(big.Rat).SetInt(power(uint8(max(n.Exp, -n.Exp)))); n.Exp < 0 {
			want.Quo(want, scale)
		} else {
			want.Mul(want, scale)
		}
		for _, format := range formats {
			src, err := plain.Encode(pgtype.NumericOID, format, n, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got Int
			err = newMap().Scan(pgtype.NumericOID, format, src, &got)
			// The text format shows the fraction first, the binary format the most significant digits: for a
			// value with both faults either error is correct.
			switch refused := errors.Is(err, ErrNotInteger) || errors.Is(err, ErrOverflow); {
			case want.IsInt() && fits(want.Num()):
				if err != nil || got.Big().Cmp(want.Num()) != 0 {
					t.Fatalf("format %d: %v, %v; want %v", format, got, err, want)
				}
			case want.IsInt() && !errors.Is(err, ErrOverflow), !refused, got != Int{}:
				t.Fatalf("format %d: %v, %v for %v", format, got, err, want)
			}
		}
	})
}

func TestCodecRoundTrip(t *testing.T) {
	m := newMap()
	rapid.Check(t, func(t *rapid.T) {
		x := genInt.Draw(t, "x")
		for _, format := range formats {
			for _, param := range []any{x, &x} {
				src, err := m.Encode(pgtype.NumericOID, format, param, nil)
				if err != nil {
					t.Fatal(err)
				}
				var got Int
				var pointer *Int
				var numeric pgtype.Numeric
				for _, target := range []any{&got, &pointer, &numeric} {
					if err := m.Scan(pgtype.NumericOID, format, src, target); err != nil {
						t.Fatal(err)
					}
				}
				if got != x || pointer == nil || *pointer != x {
					t.Fatalf("format %d: %v came back as %v", format, x, got)
				}
				if back, err := numeric.Value(); err != nil || back != x.String() {
					t.Fatalf("format %d: pgtype reads %v as %v, %v", format, x, back, err)
				}
			}
		}
	})
}

func TestArrayRoundTrip(t *testing.T) {
	m := newMap()
	rapid.Check(t, func(t *rapid.T) {
		xs := rapid.SliceOfN(genInt, 0, 8).Draw(t, "xs")
		holes := make([]*Int, len(xs))
		for i := range xs {
			if rapid.Bool().Draw(t, "set") {
				holes[i] = &xs[i]
			}
		}
		for _, format := range formats {
			var got []Int
			roundTrip(t, m, format, xs, &got)
			if !slices.Equal(got, xs) || got == nil {
				t.Fatalf("format %d: %v came back as %v", format, xs, got)
			}
			var gotHoles []*Int
			roundTrip(t, m, format, holes, &gotHoles)
			if !reflect.DeepEqual(gotHoles, holes) {
				t.Fatalf("format %d: %v came back as %v", format, holes, gotHoles)
			}
		}
	})
}

func roundTrip(t *rapid.T, m *pgtype.Map, format int16, in, out any) {
	t.Helper()
	src, err := m.Encode(pgtype.NumericArrayOID, format, in, []byte{})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Scan(pgtype.NumericArrayOID, format, src, out); err != nil {
		t.Fatal(err)
	}
}

func TestArrayEqualsTheBytesOfPgtype(t *testing.T) {
	x, y := FromInt64(1), Max
	for _, c := range []struct{ ours, theirs any }{
		{[]Int{x, y, {lo: 90_000}}, []pgtype.Numeric{reduced(x), reduced(y), reduced(FromInt64(90_000))}},
		{[]*Int{&x, nil, &y}, []*pgtype.Numeric{new(reduced(x)), nil, new(reduced(y))}},
		{[]*Int{&x}, []*pgtype.Numeric{new(reduced(x))}},
	} {
		want, err := pgtype.NewMap().Encode(pgtype.NumericArrayOID, pgtype.BinaryFormatCode, c.theirs, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := newMap().Encode(pgtype.NumericArrayOID, pgtype.BinaryFormatCode, c.ours, nil)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v:\n% x, %v, want\n% x", c.ours, got, err, want)
		}
	}
}

func TestNilIsNull(t *testing.T) {
	m := newMap()
	for _, format := range formats {
		for oid, params := range map[uint32][]any{
			pgtype.NumericOID:      {nil, (*Int)(nil)},
			pgtype.NumericArrayOID: {nil, []Int(nil), []*Int(nil)},
		} {
			for _, p := range params {
				if got, err := m.Encode(oid, format, p, []byte{}); got != nil || err != nil {
					t.Errorf("format %d: %T(nil) = % x, %v", format, p, got, err)
				}
				if p == nil {
					continue
				}
				if got, err := m.PlanEncode(oid, format, p).Encode(p, []byte{}); got != nil || err != nil {
					t.Errorf("format %d: plan of %T(nil) = % x, %v", format, p, got, err)
				}
			}
		}
		x, p := FromInt64(42), new(Int)
		xs := []Int{x}
		if err := m.Scan(pgtype.NumericOID, format, nil, &x); !mentions(err, "NULL") || x != FromInt64(42) {
			t.Errorf("format %d: NULL into Int: %v, %v", format, x, err)
		}
		if err := m.Scan(pgtype.NumericOID, format, nil, &p); err != nil || p != nil {
			t.Errorf("format %d: NULL into *Int: %v, %v", format, p, err)
		}
		if err := m.Scan(pgtype.NumericArrayOID, format, nil, &xs); err != nil || xs != nil {
			t.Errorf("format %d: NULL into []Int: %v, %v", format, xs, err)
		}
		hole, err := m.Encode(pgtype.NumericArrayOID, format, []*Int{&x, nil}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Scan(pgtype.NumericArrayOID, format, hole, &xs); !mentions(err, "NULL") {
			t.Errorf("format %d: NULL element into []Int: %v, %v", format, xs, err)
		}
	}
}

func mentions(err error, word string) bool {
	return err != nil && strings.Contains(err.Error(), word)
}

// Without a prepared statement pgx has no type from the server (OID 0).
func TestGoTypeAloneNamesThePostgresType(t *testing.T) {
	m, x := newMap(), FromInt64(-5)
	for _, c := range []struct {
		value      any
		name, text string
	}{
		{x, "numeric", "-5"},
		{&x, "numeric", "-5"},
		{[]Int{x, Max}, "_numeric", "{-5," + Max.String() + "}"},
		{[]*Int{&x, nil}, "_numeric", "{-5,NULL}"},
	} {
		if typ, ok := m.TypeForValue(c.value); !ok || typ.Name != c.name {
			t.Errorf("%T is not registered as %s", c.value, c.name)
		}
		if got, err := m.Encode(0, pgtype.TextFormatCode, c.value, nil); err != nil || string(got) != c.text {
			t.Errorf("%T = %s, %v; want %s", c.value, got, err, c.text)
		}
	}
}

func TestNonIntegerNumericIsRefused(t *testing.T) {
	plain, m := pgtype.NewMap(), newMap()
	for _, c := range []struct {
		text string
		want Int
		err  error
	}{
		{"1.00", FromInt64(1), nil},
		{"-10000.000", FromInt64(-10_000), nil},
		{"0.5", Int{}, ErrNotInteger},
		{"-1.5", Int{}, ErrNotInteger},
		{"10000.0001", Int{}, ErrNotInteger},
		{"0.00000001", Int{}, ErrNotInteger},
		{"NaN", Int{}, ErrNotInteger},
		{"Infinity", Int{}, ErrNotInteger},
		{"-Infinity", Int{}, ErrNotInteger},
		{"1" + strings.Repeat("0", 37), mustParse(t, "1"+strings.Repeat("0", 37)), nil},
		{"1" + strings.Repeat("0", 38), Int{}, ErrOverflow},
		{"-1" + strings.Repeat("0", 38), Int{}, ErrOverflow},
		{"4" + strings.Repeat("0", 38), Int{}, ErrOverflow},             // fits in bounds when cut to 128 bits
		{"340282366920938463463374607431768211456", Int{}, ErrOverflow}, // 2^128
		{"340282366920938463463374607431768220000", Int{}, ErrOverflow}, // just above, zeros left out
		{"1" + strings.Repeat("0", 200), Int{}, ErrOverflow},
		{strings.Repeat("9", 39), Int{}, ErrOverflow},
	} {
		var n pgtype.Numeric
		if err := n.Scan(c.text); err != nil {
			t.Fatal(err)
		}
		for _, format := range formats {
			src, err := plain.Encode(pgtype.NumericOID, format, n, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got Int
			if err := m.Scan(pgtype.NumericOID, format, src, &got); got != c.want || !errors.Is(err, c.err) {
				t.Errorf("format %d: %s = %v, %v; want %v, %v", format, c.text, got, err, c.want, c.err)
			}
		}
	}
}

func mustParse(t *testing.T, s string) Int {
	t.Helper()
	x, err := ParseInt(s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestDamagedMessagesAreRefused(t *testing.T) {
	m := newMap()
	for _, c := range []struct{ name, src string }{
		{"empty", ""},
		{"short header", "\x00\x00\x00\x00\x00\x00\x00"},
		{"missing digit", "\x00\x01\x00\x00\x00\x00\x00\x00"},
		{"half a digit", "\x00\x01\x00\x00\x00\x00\x00\x00\x00"},
		{"left over", "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01"},
		{"digit of 10000", "\x00\x01\x00\x00\x00\x00\x00\x00\x27\x10"},
		{"unknown sign", "\x00\x01\x00\x00\x12\x34\x00\x00\x00\x01"},
	} {
		x := FromInt64(42)
		if err := m.Scan(pgtype.NumericOID, pgtype.BinaryFormatCode, []byte(c.src), &x); err == nil {
			t.Errorf("%s: accepted as %v", c.name, x)
		}
		if x != FromInt64(42) {
			t.Errorf("%s: target was written: %v", c.name, x)
		}
	}
}

func TestOtherGoTypesKeepTheirPlans(t *testing.T) {
	m := newMap()
	for _, format := range formats {
		for _, param := range []any{int64(-120), float64(-120), uint(7), reduced(FromInt64(5)), new(int64(8))} {
			src, err := m.Encode(pgtype.NumericOID, format, param, nil)
			if err != nil {
				t.Errorf("%T: %v", param, err)
				continue
			}
			target := reflect.New(reflect.TypeOf(param))
			if err := m.Scan(pgtype.NumericOID, format, src, target.Interface()); err != nil {
				t.Errorf("%T: %v", param, err)
			} else if !reflect.DeepEqual(target.Elem().Interface(), param) {
				t.Errorf("%T: %v came back as %v", param, param, target.Elem())
			}
		}
		var many []int64
		src, err := m.Encode(pgtype.NumericArrayOID, format, []int64{1, -2}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Scan(pgtype.NumericArrayOID, format, src, &many); err != nil ||
			!slices.Equal(many, []int64{1, -2}) {
			t.Errorf("[]int64: %v, %v", many, err)
		}
	}
}

func TestEncodingDoesNotAllocate(t *testing.T) {
	m := newMap()
	buf := make([]byte, 0, 4096)
	xs := []Int{Max, Min, FromInt64(5), {}}
	var scalar any = &xs[0]
	src := AppendNumeric(nil, Max)
	var got Int
	var target any = &got
	sum, ok := Int{}, false
	for name, f := range map[string]func(){
		"Add": func() { sum, ok = xs[0].Add(xs[1]) },
		"scalar": func() {
			_, _ = m.PlanEncode(pgtype.NumericOID, pgtype.BinaryFormatCode, scalar).Encode(scalar,
				buf)
		},
		"scan":   func() { _ = m.PlanScan(pgtype.NumericOID, pgtype.BinaryFormatCode, target).Scan(src, target) },
		"format": func() { buf = AppendFormat(buf[:0], xs[0], 2) },
		"parse":  func() { _, _ = ParseDecimal("99999999999999999999.123456789") },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if !ok || !sum.IsZero() || got != Max {
		t.Errorf("sum %v %v, scanned %v", sum, ok, got)
	}
}

func FuzzDecodeNumeric(f *testing.F) {
	for _, x := range []Int{{}, Max, Min, FromInt64(10_000)} {
		f.Add(AppendNumeric(nil, x))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		x, err := decodeNumeric(src)
		if err != nil {
			return
		}
		if !x.inBounds() {
			t.Fatalf("% x = %v", src, x)
		}
		var n pgtype.Numeric
		if err := pgtype.NewMap().Scan(pgtype.NumericOID, pgtype.BinaryFormatCode, src, &n); err != nil {
			t.Fatalf("% x = %v, pgtype: %v", src, x, err)
		}
		if back, err := decodeNumeric(AppendNumeric(nil, x)); err != nil || back != x {
			t.Fatalf("% x = %v, came back as %v, %v", src, x, back, err)
		}
	})
}
