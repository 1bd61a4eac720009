package pg

import (
	"bytes"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// Arrays are encoded byte for byte like pgx encodes them.
func TestArraysAreEncodedAsPgxDoes(t *testing.T) {
	t.Parallel()
	general, ours := pgtype.NewMap(), pgtype.NewMap()
	amount.Register(general)
	amount.Register(ours)
	registerArrays(ours)
	amounts := rapid.Map(rapid.Int64(), amount.FromInt64)
	times := rapid.Custom(func(t *rapid.T) time.Time {
		at := time.Unix(rapid.Int64Range(-60_000_000_000, 250_000_000_000).Draw(t, "s"),
			rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		if rapid.Bool().Draw(t, "zone") {
			return at.In(time.FixedZone("", 3600))
		}
		return at.UTC()
	})
	bytesOrNull := rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "null") {
			return nil
		}
		return rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
	})
	rapid.Check(t, func(t *rapid.T) {
		for oid, value := range map[uint32]any{
			pgtype.TextArrayOID:        rapid.SliceOf(rapid.String()).Draw(t, "texts"),
			pgtype.Int8ArrayOID:        rapid.SliceOf(rapid.Int64()).Draw(t, "int8"),
			pgtype.Int4ArrayOID:        rapid.SliceOf(rapid.Int32()).Draw(t, "int4"),
			pgtype.ByteaArrayOID:       rapid.SliceOf(bytesOrNull).Draw(t, "bytea"),
			pgtype.TimestamptzArrayOID: rapid.SliceOf(times).Draw(t, "times"),
			pgtype.NumericArrayOID:     rapid.SliceOf(amounts).Draw(t, "amounts"),
		} {
			want, err := general.Encode(oid, pgtype.BinaryFormatCode, value, []byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			if _, direct := ours.PlanEncode(oid, pgtype.BinaryFormatCode, value).(interface{ direct() }); !direct {
				t.Fatalf("%T of type %d uses the generic encoder", value, oid)
			}
			got, err := ours.Encode(oid, pgtype.BinaryFormatCode, value, []byte("before"))
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%T %v is\n%x, not\n%x, %v", value, value, got, want, err)
			}
		}
	})
	for oid, value := range map[uint32]any{pgtype.TextArrayOID: []string(nil), pgtype.Int8ArrayOID: []int64(nil),
		pgtype.ByteaArrayOID: [][]byte(nil), pgtype.NumericArrayOID: []amount.Int(nil)} {
		if got, err := ours.Encode(oid, pgtype.BinaryFormatCode, value, nil); got != nil || err != nil {
			t.Errorf("nil %T is %x, %v, not null", value, got, err)
		}
	}
	// Other types use the generic encoder.
	for oid, value := range map[uint32]any{pgtype.TextArrayOID: []*string{nil}, pgtype.Int8ArrayOID: []int{1, 2},
		pgtype.Int4ArrayOID: []int16{3}} {
		want, _ := general.Encode(oid, pgtype.BinaryFormatCode, value, nil)
		if got, err := ours.Encode(oid, pgtype.BinaryFormatCode, value, nil); !bytes.Equal(got, want) || err != nil {
			t.Errorf("%T is %x, not %x, %v", value, got, want, err)
		}
	}
}

// BenchmarkArrays compares with pgx's generic encoder, for a batch of 128 keys.
func BenchmarkArrays(b *testing.B) {
	keys, ids := make([]string, 128), make([]int64, 128)
	for i := range keys {
		keys[i] = "goods-7-1763750000-0123456789abcdef"
	}
	general, ours := pgtype.NewMap(), pgtype.NewMap()
	registerArrays(ours)
	for name, m := range map[string]*pgtype.Map{"general": general, "direct": ours} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var buf []byte
			for b.Loop() {
				buf, _ = m.Encode(pgtype.TextArrayOID, pgtype.BinaryFormatCode, keys, buf[:0])
				buf, _ = m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, ids, buf[:0])
			}
		})
	}
}

// A time scanned from a row, or an array, is in UTC, whatever the time zone of the process.
func TestTimesAreScannedInUTC(t *testing.T) {
	t.Parallel()
	m := pgtype.NewMap()
	registerTimes(m)
	registerArrays(m)
	at := time.Now()
	for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
		var one time.Time
		var null *time.Time
		var all []time.Time
		for oid, into := range map[uint32][]any{pgtype.TimestamptzOID: {&one, &null},
			pgtype.TimestamptzArrayOID: {&all}} {
			var value any = at
			if oid == pgtype.TimestamptzArrayOID {
				value = []time.Time{at}
			}
			data, err := m.Encode(oid, format, value, nil)
			for _, v := range into {
				if err == nil {
					err = m.Scan(oid, format, data, v)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, got := range []time.Time{one, *null, all[0]} {
			if got.Location() != time.UTC || !got.Equal(at.Truncate(time.Microsecond)) {
				t.Errorf("%v was scanned as %v", at, got)
			}
		}
	}
}
