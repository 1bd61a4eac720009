package pg

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/ledgerd/ledgerd/internal/amount"
)

// registerArrays makes a connection's type map encode the columns of batches without an interface for each element,
// which pgx's own codec makes. That takes a sixth of the server's CPU time for large batches.
func registerArrays(m *pgtype.Map) {
	registerArray(m, pgtype.TextArrayOID, func(b []byte, s string) []byte { return append(b, s...) })
	registerArray(m, pgtype.Int4ArrayOID, func(b []byte, n int32) []byte {
		return binary.BigEndian.AppendUint32(b, uint32(n))
	})
	registerArray(m, pgtype.Int8ArrayOID, appendInt64)
	registerArray(m, pgtype.TimestamptzArrayOID, func(b []byte, t time.Time) []byte {
		return appendInt64(b, t.UnixMicro()-year2000)
	})
	registerArray(m, pgtype.NumericArrayOID, amount.AppendNumeric)
}

// year2000 is the origin of times in Postgres, in microseconds since 1970.
const year2000 = 946_684_800_000_000

func appendInt64(b []byte, n int64) []byte { return binary.BigEndian.AppendUint64(b, uint64(n)) }

func registerArray[T any](m *pgtype.Map, oid uint32, add func([]byte, T) []byte) {
	t, _ := m.TypeForOID(oid) // pgx has all types of arrays
	m.RegisterType(&pgtype.Type{Name: t.Name, OID: oid, Codec: arrayCodec[T]{t.Codec.(*pgtype.ArrayCodec), add}})
}

// arrayCodec encodes []T in the binary format. Everything else is left to pgx.
type arrayCodec[T any] struct {
	*pgtype.ArrayCodec
	add func([]byte, T) []byte // appends an element
}

// PlanEncode implements pgtype.Codec.
func (c arrayCodec[T]) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ok := value.([]T); ok && format == pgtype.BinaryFormatCode {
		return c
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

// Encode implements pgtype.EncodePlan: nil is null, and elements are not.
func (c arrayCodec[T]) Encode(value any, buf []byte) ([]byte, error) {
	all := value.([]T)
	if all == nil {
		return nil, nil
	}
	const dimensions, nulls, lowerBound = 1, 0, 1
	for _, n := range []uint32{dimensions, nulls, c.ElementType.OID, uint32(len(all)), lowerBound} {
		buf = binary.BigEndian.AppendUint32(buf, n)
	}
	for _, x := range all {
		at := len(buf)
		buf = c.add(append(buf, 0, 0, 0, 0), x)
		binary.BigEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	}
	return buf, nil
}
