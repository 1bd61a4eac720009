package amount

import (
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
)

var (
	sink      Int
	sinkBytes []byte
	sinkDec   Decimal
)

func BenchmarkAdd(b *testing.B) {
	x, one := Int{hi: 1}, FromInt64(-1)
	for b.Loop() {
		sink, _ = x.Add(one)
	}
}

func BenchmarkAppendFormat(b *testing.B) {
	for _, c := range []struct {
		name string
		x    Int
	}{{"small", FromInt64(-123_456)}, {"max", Max}} {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				sinkBytes = AppendFormat(buf, c.x, 2)
			}
		})
	}
}

func BenchmarkParseDecimal(b *testing.B) {
	for name, s := range map[string]string{"small": "1234.56", "max": "99999999999999999999.999999999999999999"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				sinkDec, _ = ParseDecimal(s)
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	for name, x := range map[string]Int{"small": FromInt64(-123_456), "max": Max} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 64)
			b.ReportAllocs()
			for b.Loop() {
				sinkBytes = AppendNumeric(buf, x)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, x := range map[string]Int{"small": FromInt64(-123_456), "max": Max} {
		b.Run(name, func(b *testing.B) {
			src := AppendNumeric(nil, x)
			b.ReportAllocs()
			for b.Loop() {
				sink, _ = decodeNumeric(src)
			}
		})
	}
}

// BenchmarkEncodeArray measures encoding one column of 200 entries. "pgtype" uses pgx's own types.
func BenchmarkEncodeArray(b *testing.B) {
	ours, theirs := make([]Int, 200), make([]pgtype.Numeric, 200)
	for i := range ours {
		ours[i] = FromInt64(int64(i) * 123_457)
		theirs[i] = reduced(ours[i])
	}
	m := newMap()
	for _, c := range []struct {
		name  string
		value any
	}{{"Int", ours}, {"pgtype", theirs}} {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 0, 1<<14)
			b.ReportAllocs()
			for b.Loop() {
				sinkBytes, _ = m.Encode(pgtype.NumericArrayOID, pgtype.BinaryFormatCode, c.value, buf)
			}
		})
	}
}
