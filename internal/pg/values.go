package pg

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// registerTimes makes a connection's type map return times in UTC, not in the time zone of the process.
func registerTimes(m *pgtype.Map) {
	t := &pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}}
	m.RegisterType(t)
	m.RegisterType(&pgtype.Type{Name: "_timestamptz", OID: pgtype.TimestamptzArrayOID,
		Codec: &pgtype.ArrayCodec{ElementType: t}})
}

// OrZero converts a nullable column: null becomes the zero value.
func OrZero[T any](p *T) (v T) {
	if p == nil {
		return v
	}
	return *p
}

// Milliseconds converts a column of milliseconds.
func Milliseconds[N int32 | int64](n N) time.Duration { return time.Duration(n) * time.Millisecond }

// Metadata reads a column of names and values that JSON wrote: null becomes nil, and so does what is not an object of
// texts.
func Metadata(b []byte) map[string]string {
	var m map[string]string
	if json.Unmarshal(b, &m) != nil || len(m) == 0 {
		return nil
	}
	return m
}

// JSON returns names and values as a statement stores them. None is null.
func JSON(m map[string]string) []byte {
	if len(m) == 0 {
		return nil
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // texts always encode
	}
	return text
}

// JSONOrEmpty is JSON for a column that is not null: none is an empty object.
func JSONOrEmpty(m map[string]string) []byte {
	if len(m) == 0 {
		return []byte("{}")
	}
	return JSON(m)
}

// OrNull returns nil for a column of zero values only. It is for nullable columns beside one that is not null, since
// unnest pads a null array with nulls.
func OrNull[T comparable](column []T) []T {
	var zero T
	if slices.ContainsFunc(column, func(v T) bool { return v != zero }) {
		return column
	}
	return nil
}

// NotNil returns bytes that a statement does not take for null.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
