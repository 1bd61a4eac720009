package pg

import (
	"encoding/json"
	"fmt"
	"reflect"
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

// Metadata reads a column that JSON wrote. Null, an empty object, and JSON other than an object of strings become nil.
func Metadata(b []byte) map[string]string {
	var m map[string]string
	if json.Unmarshal(b, &m) != nil || len(m) == 0 {
		return nil
	}
	return m
}

// JSON encodes names and values for a statement. An empty map becomes null.
func JSON(m map[string]string) []byte {
	if len(m) == 0 {
		return nil
	}
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // strings always encode
	}
	return text
}

// JSONOrEmpty is JSON for a column that is not null: an empty map becomes an empty object.
func JSONOrEmpty(m map[string]string) []byte {
	if len(m) == 0 {
		return []byte("{}")
	}
	return JSON(m)
}

// FromJSON reads a column of JSON. Null leaves the value as it is.
func FromJSON(text []byte, into any) error {
	if text == nil {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("read a column of JSON: %w", err)
	}
	return nil
}

// Reserve makes room for n elements in each slice of a statement's arguments.
func Reserve(arg any, n int) {
	v := reflect.ValueOf(arg).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Slice {
			f.Grow(n)
		}
	}
}

// OrNull returns nil if all values of a column are zero. Use it for nullable columns of an unnest that also has a
// column without nulls: unnest pads a null array with nulls.
func OrNull[T comparable](column []T) []T {
	var zero T
	if slices.ContainsFunc(column, func(v T) bool { return v != zero }) {
		return column
	}
	return nil
}

// NotNil replaces nil by an empty slice, which pgx does not encode as null.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
