package amount

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"
)

// Register adds codecs to m, the type map of one connection: Int is numeric and slices of Int are numeric[], in the
// binary format. Call it for every new connection, before its first statement.
//
// Parameters may be Int, *Int (nil is NULL), []Int and []*Int; scan targets are *Int, **Int, *[]Int and *[]*Int.
// Scanning returns ErrNotInteger for a fraction, NaN or infinity, ErrOverflow past 38 digits, and an error for NULL
// where the target cannot represent it. Other Go types keep the plans pgx has for numeric.
func Register(m *pgtype.Map) {
	numeric := &pgtype.Type{Name: "numeric", OID: pgtype.NumericOID, Codec: codec{}}
	m.RegisterType(numeric)
	m.RegisterType(&pgtype.Type{
		Name:  "_numeric",
		OID:   pgtype.NumericArrayOID,
		Codec: &pgtype.ArrayCodec{ElementType: numeric},
	})
	// Without a prepared statement pgx does not know the parameter's type, and chooses by the Go type.
	m.RegisterDefaultPgType(Int{}, numeric.Name)
	m.RegisterDefaultPgType(&Int{}, numeric.Name)
	m.RegisterDefaultPgType([]Int(nil), "_numeric")
	m.RegisterDefaultPgType([]*Int(nil), "_numeric")
}

// codec is pgx's numeric codec plus plans for Int that use neither big.Int nor the heap.
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
	return AppendNumeric(buf, x), nil
}

type encodeText struct{}

func (encodeText) Encode(value any, buf []byte) ([]byte, error) {
	x, ok, err := intOf(value)
	if err != nil || !ok {
		return nil, err
	}
	return x.Append(buf), nil
}

// intOf returns the Int in a parameter; ok=false means NULL.
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

// The binary form of a Postgres numeric is four 16-bit words (number of digits, weight of the first digit, sign,
// display scale) and then digits in base 10000, most significant first. Zero digits at either end are left out.
const (
	numericBase       = 10_000
	numericHeaderLen  = 8
	numericMaxGroups  = 10 // ceil(38 / 4)
	numericSignPlus   = 0x0000
	numericSignMinus  = 0x4000
	numericSignNaN    = 0xc000
	numericSignPosInf = 0xd000
	numericSignNegInf = 0xf000
)

var errNumericMalformed = errors.New("amount: malformed binary numeric")

// AppendNumeric appends the binary numeric of x to b, byte for byte as Postgres itself would send it.
func AppendNumeric(b []byte, x Int) []byte {
	neg, hi, lo := x.magnitude()
	var groups [numericMaxGroups]uint16
	n := splitGroups(&groups, hi, lo)
	first := 0
	for first < n && groups[first] == 0 {
		first++
	}
	weight, signWord := uint16(max(n-1, 0)), uint16(numericSignPlus)
	if neg {
		signWord = numericSignMinus
	}
	b = binary.BigEndian.AppendUint16(b, uint16(n-first))
	b = binary.BigEndian.AppendUint16(b, weight)
	b = binary.BigEndian.AppendUint16(b, signWord)
	b = binary.BigEndian.AppendUint16(b, 0)
	for i := n - 1; i >= first; i-- {
		b = binary.BigEndian.AppendUint16(b, groups[i])
	}
	return b
}

// splitGroups writes the base 10000 digits of (hi, lo), least significant first, and returns how many there are.
func splitGroups(groups *[numericMaxGroups]uint16, hi, lo uint64) int {
	const fourGroups = 1e16
	n := 0
	for hi != 0 {
		var low uint64
		hi, lo, low = divMod(hi, lo, fourGroups)
		for range 4 {
			groups[n] = uint16(low % numericBase)
			low /= numericBase
			n++
		}
	}
	for ; lo != 0; lo /= numericBase {
		groups[n] = uint16(lo % numericBase)
		n++
	}
	return n
}

// decodeNumeric reads a binary numeric. Returns ErrNotInteger for a fraction, NaN or infinity, and ErrOverflow past 38
// digits. A zero fraction (1.00) is an integer.
func decodeNumeric(src []byte) (Int, error) {
	if len(src) < numericHeaderLen {
		return Int{}, fmt.Errorf("%w: %d bytes", errNumericMalformed, len(src))
	}
	count := int(binary.BigEndian.Uint16(src))
	weight := int(int16(binary.BigEndian.Uint16(src[2:])))
	signWord := binary.BigEndian.Uint16(src[4:])
	switch signWord {
	case numericSignPlus, numericSignMinus:
	case numericSignNaN:
		return Int{}, fmt.Errorf("%w: NaN", ErrNotInteger)
	case numericSignPosInf, numericSignNegInf:
		return Int{}, fmt.Errorf("%w: infinity", ErrNotInteger)
	default:
		return Int{}, fmt.Errorf("%w: sign %#x", errNumericMalformed, signWord)
	}
	groups := src[numericHeaderLen:]
	if len(groups) != 2*count {
		return Int{}, fmt.Errorf("%w: %d bytes for %d digits", errNumericMalformed, len(groups), count)
	}
	hi, lo, err := joinGroups(groups, weight)
	if err != nil {
		return Int{}, err
	}
	return fromMagnitude(signWord == numericSignMinus, hi, lo), nil
}

// joinGroups is the reverse of splitGroups for digits in wire order: most significant first, the first one worth
// 10000^weight.
func joinGroups(groups []byte, weight int) (hi, lo uint64, err error) {
	for ; len(groups) > 0; groups = groups[2:] {
		g := uint64(binary.BigEndian.Uint16(groups))
		if g >= numericBase {
			return 0, 0, fmt.Errorf("%w: digit %d", errNumericMalformed, g)
		}
		if weight < 0 {
			if g != 0 {
				return 0, 0, fmt.Errorf("%w: it has a fraction", ErrNotInteger)
			}
			continue
		}
		var ok bool
		if hi, lo, ok = mulAdd(hi, lo, numericBase, g); !ok {
			return 0, 0, ErrOverflow
		}
		weight--
	}
	// Append the zero digits that Postgres omits. A nonzero value overflows after at most ten of them, so a wrong
	// weight cannot prolong the loop.
	for ; weight >= 0 && hi|lo != 0; weight-- {
		var ok bool
		if hi, lo, ok = mulAdd(hi, lo, numericBase, 0); !ok {
			return 0, 0, ErrOverflow
		}
	}
	return hi, lo, nil
}

// parseNumericText reads the text Postgres writes for a numeric, with the same refusals as decodeNumeric.
func parseNumericText(src []byte) (Int, error) {
	switch string(src) {
	case "NaN", "Infinity", "-Infinity":
		return Int{}, fmt.Errorf("%w: %s", ErrNotInteger, src)
	}
	whole := src
	for i, c := range src {
		if c != '.' {
			continue
		}
		whole = src[:i]
		for _, c := range src[i+1:] {
			if c != '0' {
				return Int{}, fmt.Errorf("%w: it has a fraction", ErrNotInteger)
			}
		}
		break
	}
	x, err := parseInt(whole)
	if errors.Is(err, ErrTooManyDigits) || errors.Is(err, ErrTooLong) {
		return Int{}, ErrOverflow
	}
	return x, err
}
