package amount

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

var errArrayMalformed = errors.New("amount: malformed binary numeric[]")

// arrayCodec is pgx's array codec with its own binary plans for []Int and
// []*Int. The general plan boxes every element in an interface; these are the
// parameters of each flush to the journal, so they are written straight into the
// buffer. Everything else, the text format included, goes the general way, where
// elements still meet codec.
type arrayCodec struct {
	*pgtype.ArrayCodec
}

func (c arrayCodec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if format == pgtype.BinaryFormatCode {
		switch value.(type) {
		case []Int:
			return encodeInts{}
		case []*Int:
			return encodeIntPointers{}
		}
	}
	return c.ArrayCodec.PlanEncode(m, oid, format, value)
}

func (c arrayCodec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*[]Int); ok && format == pgtype.BinaryFormatCode {
		return scanInts{}
	}
	return c.ArrayCodec.PlanScan(m, oid, format, target)
}

type encodeInts struct{}

func (encodeInts) Encode(value any, buf []byte) ([]byte, error) {
	xs, ok := value.([]Int)
	if !ok {
		return nil, fmt.Errorf("amount: cannot encode %T as numeric[]", value)
	}
	if xs == nil {
		return nil, nil
	}
	buf = appendArrayHeader(buf, len(xs), false)
	for _, x := range xs {
		buf = appendElement(buf, x)
	}
	return buf, nil
}

type encodeIntPointers struct{}

func (encodeIntPointers) Encode(value any, buf []byte) ([]byte, error) {
	xs, ok := value.([]*Int)
	if !ok {
		return nil, fmt.Errorf("amount: cannot encode %T as numeric[]", value)
	}
	if xs == nil {
		return nil, nil
	}
	hasNull := false
	for _, x := range xs {
		hasNull = hasNull || x == nil
	}
	buf = appendArrayHeader(buf, len(xs), hasNull)
	for _, x := range xs {
		if x == nil {
			buf = binary.BigEndian.AppendUint32(buf, 1<<32-1)
			continue
		}
		buf = appendElement(buf, *x)
	}
	return buf, nil
}

// appendArrayHeader opens a one-dimensional array that counts from 1. An empty
// array has no dimension at all.
func appendArrayHeader(buf []byte, n int, hasNull bool) []byte {
	var dims, flags uint32
	if n > 0 {
		dims = 1
	}
	if hasNull {
		flags = 1
	}
	buf = binary.BigEndian.AppendUint32(buf, dims)
	buf = binary.BigEndian.AppendUint32(buf, flags)
	buf = binary.BigEndian.AppendUint32(buf, pgtype.NumericOID)
	if n > 0 {
		buf = binary.BigEndian.AppendUint32(buf, uint32(n))
		buf = binary.BigEndian.AppendUint32(buf, 1)
	}
	return buf
}

// appendElement appends x behind its length in bytes.
func appendElement(buf []byte, x Int) []byte {
	at := len(buf)
	buf = appendNumeric(append(buf, 0, 0, 0, 0), x)
	binary.BigEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	return buf
}

type scanInts struct{}

func (scanInts) Scan(src []byte, dst any) error {
	p, ok := dst.(*[]Int)
	if !ok {
		return fmt.Errorf("amount: cannot scan numeric[] into %T", dst)
	}
	if src == nil {
		*p = nil
		return nil
	}
	xs, err := decodeArray(src)
	if err != nil {
		return err
	}
	*p = xs
	return nil
}

// decodeArray reads a binary numeric[] of at most one dimension and without
// NULLs.
func decodeArray(src []byte) ([]Int, error) {
	const headerLen, dimensionLen = 12, 8
	if len(src) < headerLen {
		return nil, fmt.Errorf("%w: %d bytes", errArrayMalformed, len(src))
	}
	switch dims := binary.BigEndian.Uint32(src); {
	case dims == 0 && len(src) == headerLen:
		return []Int{}, nil
	case dims > 1:
		return nil, fmt.Errorf("amount: cannot scan numeric[] of %d dimensions into []Int", dims)
	case dims == 0 || len(src) < headerLen+dimensionLen:
		return nil, fmt.Errorf("%w: %d bytes", errArrayMalformed, len(src))
	}
	n := uint64(binary.BigEndian.Uint32(src[headerLen:]))
	rest := src[headerLen+dimensionLen:]
	// Each element has at least its length word, so a claimed length beyond
	// that is false and must not size the allocation.
	if n > uint64(len(rest)/4) {
		return nil, fmt.Errorf("%w: %d elements in %d bytes", errArrayMalformed, n, len(rest))
	}
	xs := make([]Int, n)
	for i := range xs {
		var err error
		if xs[i], rest, err = decodeElement(rest); err != nil {
			return nil, fmt.Errorf("element %d: %w", i+1, err)
		}
	}
	if len(rest) != 0 {
		return nil, fmt.Errorf("%w: %d bytes left over", errArrayMalformed, len(rest))
	}
	return xs, nil
}

// decodeElement reads one element and returns the bytes behind it.
func decodeElement(src []byte) (x Int, rest []byte, err error) {
	if len(src) < 4 {
		return Int{}, nil, errArrayMalformed
	}
	size := int32(binary.BigEndian.Uint32(src))
	src = src[4:]
	if size == -1 {
		return Int{}, nil, errors.New("amount: cannot scan NULL into Int")
	}
	if size < 0 || int(size) > len(src) {
		return Int{}, nil, errArrayMalformed
	}
	x, err = decodeNumeric(src[:size])
	return x, src[size:], err
}
