package rpc

import (
	"errors"
	"slices"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/norm"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// decoder reads the fields of a request and collects the invalid ones in a fault.
type decoder struct {
	f      *fault.Fault
	more   int  // invalid fields beyond those in f
	sample bool // fields that references fill in have placeholders, so fields do not fit each other
}

func (d *decoder) bad(path, description string) {
	if d.f == nil {
		d.f = fault.FieldInvalid.New("%s: %s", path, description)
	}
	if len(d.f.Fields) == fault.MaxFields {
		d.more++
		return
	}
	d.f.Fields = append(d.f.Fields, fault.Field{Path: path, Description: description})
}

// valid reports whether a field that was decoded has no problem.
func (d *decoder) valid(path string) bool {
	return d.f == nil || !slices.ContainsFunc(d.f.Fields, func(f fault.Field) bool { return f.Path == path })
}

// addProblems adds the error of a part of the request, with its fields below path.
func (d *decoder) addProblems(path string, err error) {
	f := fault.Of(err)
	if f == nil || len(f.Fields) == 0 {
		d.bad(strings.TrimSuffix(path, "."), err.Error())
		return
	}
	for _, x := range f.Fields {
		d.bad(path+x.Path, x.Description)
	}
}

// deny refuses a part of the request that the caller may not use.
func (d *decoder) deny(err error) {
	if d.f == nil {
		d.f = fault.Of(err)
	}
}

// err returns the problems so far. Its message names the first one, and says how many more there are.
func (d *decoder) err() error {
	if d.f == nil {
		return nil
	}
	f := *d.f
	f.Message += fault.AndMore(len(f.Fields) - 1 + d.more)
	return &f
}

const outerSpace = "must not begin or end with a space"

// bizNo requires printable ASCII, because the number goes into keys, logs and other systems. It rejects a space at
// either end: such a number looks the same as another one.
func (d *decoder) bizNo(path, s string) string {
	if !printableASCII(s) {
		d.bad(path, "must be printable ASCII")
	}
	if s != strings.Trim(s, " ") {
		d.bad(path, outerSpace)
	}
	return s
}

func printableASCII(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// printable validates a text for people: without control characters and line separators.
func (d *decoder) printable(path, s string) string {
	for _, r := range s {
		if unicode.In(r, unicode.Cc, unicode.Zl, unicode.Zp) || r == unicode.ReplacementChar {
			d.bad(path, "must not contain control characters, line separators, or U+FFFD")
			break
		}
	}
	return s
}

// name validates a text that identifies something. To keep distinct names from looking alike, it rejects invisible
// characters, such as zero-width spaces and bidirectional marks, spaces at either end, and text that is not in Unicode
// normalization form C.
func (d *decoder) name(path, s string) string {
	if invisible(s) {
		d.bad(path, "must not contain control characters, invisible characters, line separators, or U+FFFD")
	} else if strings.TrimSpace(s) != s {
		d.bad(path, outerSpace)
	} else if !printableASCII(s) && !norm.NFC.IsNormalString(s) {
		d.bad(path, "must be in Unicode normalization form C (NFC)")
	}
	return s
}

func invisible(s string) bool {
	for _, r := range s {
		if r >= 0x7f || r < ' ' {
			if unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) || r == unicode.ReplacementChar {
				return true
			}
		}
	}
	return false
}

// maxCodeBytes is the limit of the column, in bytes. The rules of the proto count characters.
const maxCodeBytes = 256

// code validates the code of an account: a name of parts separated by colons. It has no "*", and no U+10FFFF, which is
// the exclusive upper bound of patterns. Its only space is U+0020, inside a part, so that distinct codes do not look
// alike.
func (d *decoder) code(path, s string) string {
	if s == "" || strings.HasPrefix(s, ":") || strings.HasSuffix(s, ":") || strings.Contains(s, "::") {
		d.bad(path, "must be non-empty parts separated by colons, such as user:1001:wallet")
		return s
	}
	if len(s) > maxCodeBytes {
		d.bad(path, "must be at most 256 bytes")
	}
	if strings.Trim(s, " ") != s || strings.Contains(s, " :") || strings.Contains(s, ": ") ||
		strings.ContainsFunc(s, func(r rune) bool { return r != ' ' && unicode.Is(unicode.Zs, r) }) {
		d.bad(path, "must have spaces only inside of its parts, and only U+0020")
		return s
	}
	if strings.ContainsAny(s, "*\U0010FFFF") {
		d.bad(path, `must not contain U+10FFFF or "*"`)
	}
	return d.name(path, s)
}

func (d *decoder) ref(path string, r *ledgerv1.AccountRef) (code, asset string) {
	return d.code(path+".code", r.GetCode()), r.GetAsset()
}

// decimal parses a decimal of any sign.
func (d *decoder) decimal(path, s string) amount.Decimal {
	n, err := amount.ParseDecimal(s)
	if err != nil {
		d.bad(path, decimalProblem(err))
	}
	return n
}

func decimalProblem(err error) string {
	switch {
	case errors.Is(err, amount.ErrTooManyDigits), errors.Is(err, amount.ErrTooLong):
		return "has more than 38 digits"
	case errors.Is(err, amount.ErrTooManyDecimals):
		return "has more than 18 decimals"
	}
	return `must be a decimal such as "12.30": digits, at most one point, no exponent, no leading zeros`
}

func (d *decoder) optionalDecimal(path string, s *string) *amount.Decimal {
	if s == nil {
		return nil
	}
	n := d.decimal(path, *s)
	return &n
}

// positive parses an amount above zero. The form AllAvailable requires an empty amount.
func (d *decoder) positive(path, s string, form ledger.Form) amount.Decimal {
	if form == ledger.AllAvailable {
		if s != "" {
			d.bad(path, "must be empty when form is AMOUNT_FORM_ALL_AVAILABLE")
		}
		return amount.Decimal{}
	}
	n, err := amount.ParseDecimal(s)
	if err != nil {
		d.bad(path, decimalProblem(err))
	} else if n.Coef.Sign() <= 0 {
		d.bad(path, "must be greater than zero")
	}
	return n
}

var forms = map[ledgerv1.AmountForm]ledger.Form{
	ledgerv1.AmountForm_AMOUNT_FORM_UP_TO:         ledger.UpTo,
	ledgerv1.AmountForm_AMOUNT_FORM_ALL_AVAILABLE: ledger.AllAvailable,
}

const maxMetadataBytes = 16 << 10

func (d *decoder) metadata(path string, m map[string]string) map[string]string {
	total := 0
	for k, v := range m {
		total += len(k) + len(v)
		if k == "" || len(k) > 128 {
			d.bad(path, "names must be 1 to 128 bytes")
		}
	}
	if total > maxMetadataBytes {
		d.bad(path, "must be at most 16 KiB")
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// effective decodes an effective time: at most a day in the future.
func (d *decoder) effective(path string, t *timestamppb.Timestamp) time.Time {
	at := d.time(path, t)
	if at.After(time.Now().Add(24 * time.Hour)) {
		d.bad(path, "must not be more than 24 hours in the future")
	}
	return at
}

// durationOr decodes a duration in whole milliseconds, or returns a default.
func durationOr(d *durationpb.Duration, byDefault time.Duration) time.Duration {
	if d == nil {
		return byDefault
	}
	return d.AsDuration().Truncate(time.Millisecond)
}

// period decodes the fields start_time, which a period includes, and end_time, which it does not. Each may be missing.
func (d *decoder) period(start, end *timestamppb.Timestamp) (from, before time.Time) {
	from, before = d.time("start_time", start), d.time("end_time", end)
	if start != nil && end != nil && before.Before(from) {
		d.bad("end_time", "must not be before start_time")
	}
	return from, before
}

// time decodes a time in whole microseconds, the resolution of the database. A missing one is zero, so the first moment
// of the year 1 is refused: Go, .NET and others send it for a time that was never set.
func (d *decoder) time(path string, t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	if err := t.CheckValid(); err != nil {
		d.bad(path, "is not a time between the years 1 and 9999")
		return time.Time{}
	}
	at := t.AsTime()
	if at.IsZero() {
		d.bad(path, "must be after 0001-01-01T00:00:00Z: leave it out for none")
	}
	if at.Nanosecond()%1000 != 0 {
		d.bad(path, "must be in whole microseconds")
	}
	return at
}

// timestamp encodes a time. The zero time means none.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
