package amount

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// Register makes m, the type map of one connection, carry Int as numeric and
// slices of Int as numeric[], in the binary format. Call it for every new
// connection, before its first statement.
//
// Parameters may be Int, *Int (nil is NULL), []Int and []*Int; scan targets are
// *Int, **Int, *[]Int and *[]*Int. Scanning returns ErrNotInteger for a
// fraction, NaN or infinity, ErrOverflow past 38 digits, and an error for NULL
// where the target cannot say so. Other Go types keep the plans pgx has for
// numeric.
func Register(m *pgtype.Map) {
	numeric := &pgtype.Type{Name: "numeric", OID: pgtype.NumericOID, Codec: codec{}}
	m.RegisterType(numeric)
	m.RegisterType(&pgtype.Type{
		Name:  "_numeric",
		OID:   pgtype.NumericArrayOID,
		Codec: arrayCodec{&pgtype.ArrayCodec{ElementType: numeric}},
	})
	// Without a prepared statement pgx does not know the parameter's type and
	// goes by the Go type instead.
	m.RegisterDefaultPgType(Int{}, numeric.Name)
	m.RegisterDefaultPgType(&Int{}, numeric.Name)
	m.RegisterDefaultPgType([]Int(nil), "_numeric")
	m.RegisterDefaultPgType([]*Int(nil), "_numeric")
}

// codec is pgx's numeric codec plus plans for Int that use neither big.Int nor
// the heap.
type codec struct {
	pgtype.NumericCodec
}

func (c codec) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	switch value.(type) {
	case Int, *Int:
		switch format {
		case pgtype.BinaryFormatCode:
			return encodeBinary{}
		case pgtype.TextFormatCode:
			return encodeText{}
		}
	}
	return c.NumericCodec.PlanEncode(m, oid, format, value)
}

func (c codec) PlanScan(m *pgtype.Map, oid uint32, format int16, target any) pgtype.ScanPlan {
	if _, ok := target.(*Int); ok {
		switch format {
		case pgtype.BinaryFormatCode:
			return scanBinary{}
		case pgtype.TextFormatCode:
			return scanText{}
		}
	}
	return c.NumericCodec.PlanScan(m, oid, format, target)
}

type encodeBinary struct{}

func (encodeBinary) Encode(value any, buf []byte) ([]byte, error) {
	x, ok, err := intOf(value)
	if err != nil || !ok {
		return nil, err
	}
	return appendNumeric(buf, x), nil
}

type encodeText struct{}

func (encodeText) Encode(value any, buf []byte) ([]byte, error) {
	x, ok, err := intOf(value)
	if err != nil || !ok {
		return nil, err
	}
	return x.Append(buf), nil
}

// intOf takes the Int out of a parameter; ok=false means NULL.
func intOf(value any) (x Int, ok bool, err error) {
	switch v := value.(type) {
	case Int:
		return v, true, nil
	case *Int:
		if v == nil {
			return Int{}, false, nil
		}
		return *v, true, nil
	}
	return Int{}, false, fmt.Errorf("amount: cannot encode %T as numeric", value)
}

type scanBinary struct{}

func (scanBinary) Scan(src []byte, dst any) error {
	return scanWith(decodeNumeric, src, dst)
}

type scanText struct{}

func (scanText) Scan(src []byte, dst any) error {
	return scanWith(parseNumericText, src, dst)
}

func scanWith(decode func([]byte) (Int, error), src []byte, dst any) error {
	p, ok := dst.(*Int)
	if !ok {
		return fmt.Errorf("amount: cannot scan numeric into %T", dst)
	}
	if src == nil {
		return fmt.Errorf("amount: cannot scan NULL into %T", dst)
	}
	x, err := decode(src)
	if err != nil {
		return err
	}
	*p = x
	return nil
}
