package pg

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

func TestTimesAreScannedInUTC(t *testing.T) {
	t.Parallel()
	m := pgtype.NewMap()
	registerTimes(m)
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

func TestMetadataThatIsNotOfTextsIsNil(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]string{"": nil, "{}": nil, "null": nil, `{"a":"b","c":1}`: nil,
		"[]":        nil,
		`{"a":"b"}`: {"a": "b"}} {
		if got := Metadata([]byte(text)); (got == nil) != (want == nil) || !maps.Equal(got, want) {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestColumnsOfZerosAreNull(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	for _, c := range []struct{ got, want []time.Time }{
		{OrNull[time.Time](nil), nil},
		{OrNull([]time.Time{{}, {}}), nil},
		{OrNull([]time.Time{{}, at}), []time.Time{{}, at}},
	} {
		if (c.got == nil) != (c.want == nil) || !slices.Equal(c.got, c.want) {
			t.Errorf("%v, not %v", c.got, c.want)
		}
	}
}
