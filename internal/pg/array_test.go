package pg

import (
	"bytes"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/ledgerd/ledgerd/internal/amount"
)

func TestArraysAreEncodedLikePgxDoes(t *testing.T) {
	t.Parallel()
	general, ours := pgtype.NewMap(), pgtype.NewMap()
	amount.Register(general)
	amount.Register(ours)
	registerArrays(ours)
	compare := func(t interface {
		Helper()
		Fatalf(format string, args ...any)
	}, oid uint32, format int16, value any) {
		t.Helper()
		want, err := general.Encode(oid, format, value, []byte("before"))
		got, ourErr := ours.Encode(oid, format, value, []byte("before"))
		if err != nil || ourErr != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Fatalf("%T %v is\n%x, not\n%x; %v, %v", value, value, got, want, ourErr, err)
		}
	}
	amounts := rapid.Map(rapid.Int64(), amount.FromInt64)
	times := rapid.Custom(func(t *rapid.T) time.Time {
		at := time.Unix(rapid.Int64Range(-62_135_596_800, 250_000_000_000).Draw(t, "s"),
			rapid.Int64Range(0, 999_999_999).Draw(t, "ns"))
		return at.In(time.FixedZone("", 3600*rapid.IntRange(-12, 12).Draw(t, "zone")))
	})
	rapid.Check(t, func(t *rapid.T) {
		for oid, value := range map[uint32]any{
			pgtype.TextArrayOID:        rapid.SliceOf(rapid.String()).Draw(t, "texts"),
			pgtype.Int8ArrayOID:        rapid.SliceOf(rapid.Int64()).Draw(t, "int8"),
			pgtype.Int2ArrayOID:        rapid.SliceOf(rapid.Int16()).Draw(t, "int2"),
			pgtype.Int4ArrayOID:        rapid.SliceOf(rapid.Int32()).Draw(t, "int4"),
			pgtype.TimestamptzArrayOID: rapid.SliceOf(times).Draw(t, "times"),
			pgtype.NumericArrayOID:     rapid.SliceOf(amounts).Draw(t, "amounts"),
		} {
			if _, direct := ours.PlanEncode(oid, pgtype.BinaryFormatCode, value).(pgtype.Codec); !direct {
				t.Fatalf("%T is encoded by pgx", value)
			}
			compare(t, oid, pgtype.BinaryFormatCode, value)
			compare(t, oid, pgtype.TextFormatCode, value)
		}
	})
	text := "x"
	for oid, values := range map[uint32][]any{pgtype.TextArrayOID: {[]string(nil), []*string{nil, &text}},
		pgtype.Int8ArrayOID:        {[]int64(nil), []int{1, 2}, []int32{-3}},
		pgtype.Int4ArrayOID:        {[]int32(nil), []int64{4}},
		pgtype.TimestamptzArrayOID: {[]time.Time(nil), []time.Time{{}, time.UnixMicro(1)}},
		pgtype.NumericArrayOID:     {[]amount.Int(nil), []*amount.Int{nil}}} {
		for _, value := range values {
			compare(t, oid, pgtype.BinaryFormatCode, value)
		}
	}
}
