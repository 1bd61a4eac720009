package pg

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// Batches send their parameters as arrays. pgx's generic encoder boxes each element in an interface and plans its
// encoding again; this codec writes the same bytes directly. Types that it does not handle use the generic encoder.

// registerTimes makes a connection's type map return times in UTC, not in the time zone of the process.
func registerTimes(m *pgtype.Map) {
	t := &pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID,
		Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}}
	m.RegisterType(t)
	m.RegisterType(&pgtype.Type{Name: "_timestamptz", OID: pgtype.TimestamptzArrayOID,
		Codec: &pgtype.ArrayCodec{ElementType: t}})
}

// registerArrays makes a connection's type map encode []string, []int64, []int32, []time.Time, [][]byte and
// []amount.Int directly.
func registerArrays(m *pgtype.Map) {
	for _, oid := range []uint32{pgtype.TextArrayOID, pgtype.Int8ArrayOID, pgtype.Int4ArrayOID,
		pgtype.TimestamptzArrayOID, pgtype.ByteaArrayOID, pgtype.NumericArrayOID} {
		t, ok := m.TypeForOID(oid)
		if !ok {
			panic(fmt.Sprintf("pg: pgx does not know type %d", oid)) // built-in types are always known
		}
		general, ok := t.Codec.(*pgtype.ArrayCodec)
		if !ok {
			panic(fmt.Sprintf("pg: type %s is no array", t.Name))
		}
		m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec{general}})
	}
}

type arrayCodec struct{ *pgtype.ArrayCodec }

func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		switch value.(type) {
		case []string:
			if oid == pgtype.TextArrayOID {
				return encodeArray[string]{pgtype.TextOID, appendText[string]}
			}
		case [][]byte:
			if oid == pgtype.ByteaArrayOID {
				return encodeArray[[]byte]{pgtype.ByteaOID, appendBytes}
			}
		case []int64:
			if oid == pgtype.Int8ArrayOID {
				return encodeArray[int64]{pgtype.Int8OID, appendInt64}
			}
		case []int32:
			if oid == pgtype.Int4ArrayOID {
				return encodeArray[int32]{pgtype.Int4OID, appendInt32}
			}
		case []time.Time:
			if oid == pgtype.TimestamptzArrayOID {
				return encodeArray[time.Time]{pgtype.TimestamptzOID, appendTime}
			}
		case []amount.Int:
			if oid == pgtype.NumericArrayOID {
				return encodeArray[amount.Int]{pgtype.NumericOID, amount.AppendElement}
			}
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// encodeArray encodes a one-dimensional array with lower bound 1.
type encodeArray[T any] struct {
	element uint32 // OID
	add     func([]byte, T) []byte
}

const null = 1<<32 - 1 // element length that denotes null

func (e encodeArray[T]) Encode(value any, buf []byte) ([]byte, error) {
	all, ok := value.([]T)
	if !ok {
		return nil, fmt.Errorf("pg: cannot encode %T as array of type %d", value, e.element)
	}
	if all == nil {
		return nil, nil
	}
	buf = binary.BigEndian.AppendUint32(buf, 1) // dimension
	nulls := len(buf)
	buf = binary.BigEndian.AppendUint32(buf, 0)
	buf = binary.BigEndian.AppendUint32(buf, e.element)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(all)))
	buf = binary.BigEndian.AppendUint32(buf, 1) // lower bound
	for _, x := range all {
		at := len(buf)
		buf = e.add(buf, x)
		if binary.BigEndian.Uint32(buf[at:]) == null {
			buf[nulls+3] = 1
		}
	}
	return buf, nil
}

func appendText[S ~string | ~[]byte](buf []byte, s S) []byte {
	return append(binary.BigEndian.AppendUint32(buf, uint32(len(s))), s...)
}

func appendBytes(buf, b []byte) []byte {
	if b == nil {
		return binary.BigEndian.AppendUint32(buf, null)
	}
	return appendText(buf, b)
}

func appendInt64(buf []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(buf, 8), uint64(n))
}

func appendInt32(buf []byte, n int32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(buf, 4), uint32(n))
}

// year2000 is Postgres' time origin in Unix seconds.
const year2000 = 946_684_800

func appendTime(buf []byte, t time.Time) []byte {
	return appendInt64(buf, (t.Unix()-year2000)*1_000_000+int64(t.Nanosecond())/1000)
}

// OrZero converts a nullable column: null becomes the zero value.
func OrZero[T any](p *T) (v T) {
	if p == nil {
		return v
	}
	return *p
}

// Milliseconds converts a nullable column of milliseconds: null becomes 0.
func Milliseconds(n *int64) time.Duration { return time.Duration(OrZero(n)) * time.Millisecond }

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

// NotNil returns bytes that a statement does not take for null.
func NotNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

// OrNull replaces an array of zeros by nil, which statements treat alike.
func OrNull[T comparable](column []T) []T {
	var zero T
	for _, v := range column {
		if v != zero {
			return column
		}
	}
	return nil
}

// Grow allocates empty columns with capacity for n rows.
func Grow[T any](n int, columns ...*[]T) {
	for _, c := range columns {
		*c = make([]T, 0, n)
	}
}
