package rpc

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/ledger"
)

// decoder reads the fields of a request and gathers what is wrong with them.
type decoder struct{ f *fault.Fault }

func (d *decoder) bad(path, description string) {
	if d.f == nil {
		d.f = fault.FieldInvalid.New("%s: %s", path, description)
	}
	if len(d.f.Fields) < maxFields {
		d.f.Fields = append(d.f.Fields, fault.Field{Path: path, Description: description})
	}
}

// take adds what is wrong with a part of the request.
func (d *decoder) take(path string, err error) {
	f := fault.Of(err)
	if f == nil || len(f.Fields) == 0 {
		d.bad(strings.TrimSuffix(path, "."), err.Error())
		return
	}
	for _, x := range f.Fields {
		d.bad(path+x.Path, x.Description)
	}
}

func (d *decoder) err() error {
	if d.f == nil {
		return nil
	}
	return d.f
}

// bizNo must be printable ASCII: it goes into keys, logs and other people's systems.
func (d *decoder) bizNo(path, s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			d.bad(path, "must be printable ASCII")
			break
		}
	}
	return s
}

// maxCodeBytes is what the table takes. The rules in the proto count characters.
const maxCodeBytes = 256

// code checks the code of an account: parts between colons, of anything but "*", control characters, and
// the last character there is, which patterns end before.
func (d *decoder) code(path, s string) string {
	if s == "" || strings.HasPrefix(s, ":") || strings.HasSuffix(s, ":") || strings.Contains(s, "::") {
		d.bad(path, "must be non-empty parts separated by colons, such as user:1001:wallet")
		return s
	}
	if len(s) > maxCodeBytes {
		d.bad(path, "must be at most 256 bytes")
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f || r == utf8.RuneError || r == utf8.MaxRune || r == '*' {
			d.bad(path, `must not contain control characters, U+10FFFF or "*"`)
			break
		}
	}
	return s
}

func (d *decoder) ref(path string, r *ledgerv1.AccountRef) (code, asset string) {
	return d.code(path+".code", r.GetCode()), r.GetAsset()
}

// decimal reads a decimal of any sign.
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

// positive reads an amount above zero, as its form wants it.
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

// effective reads an effective time: after the first moment of the year 1, which stands for none, and at
// most a day ahead.
func (d *decoder) effective(path string, t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	at := d.time(path, t)
	if at.IsZero() && t.IsValid() {
		d.bad(path, "must be after 0001-01-01T00:00:00Z")
	}
	if at.After(time.Now().Add(24 * time.Hour)) {
		d.bad(path, "must not be more than 24 hours in the future")
	}
	return at
}

// time reads a time in whole microseconds, which is what the database keeps.
func (d *decoder) time(path string, t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	if err := t.CheckValid(); err != nil {
		d.bad(path, "is not a time between the years 1 and 9999")
		return time.Time{}
	}
	at := t.AsTime()
	if at.Nanosecond()%1000 != 0 {
		d.bad(path, "must be in whole microseconds")
	}
	return at
}

const defaultType = "transfer"

func (d *decoder) transfer(r *ledgerv1.TransferRequest, path string) ledger.TransferParams {
	p := ledger.TransferParams{BizNo: d.bizNo(path+"biz_no", r.GetBizNo()),
		Type:        d.kind(path+"type", r.GetType(), defaultType),
		Metadata:    d.metadata(path+"metadata", r.GetMetadata()),
		EffectiveAt: d.effective(path+"effective_time", r.GetEffectiveTime()),
		Postings:    make([]ledger.Posting, len(r.GetPostings()))}
	for i, x := range r.GetPostings() {
		at := func(field string) string { return fmt.Sprintf("%spostings[%d].%s", path, i, field) }
		if x.GetFrom() == x.GetTo() {
			d.bad(at("to"), "must not be the same account as from")
		}
		form := forms[x.GetForm()]
		p.Postings[i] = ledger.Posting{From: x.GetFrom(), To: x.GetTo(), Asset: x.GetAsset(), Form: form}
		if n, err := amount.ParseDecimal(x.GetAmount()); err == nil && n.Coef.Sign() > 0 &&
			form != ledger.AllAvailable {
			p.Postings[i].Amount = n // the usual case, without making paths
		} else {
			p.Postings[i].Amount = d.positive(at("amount"), x.GetAmount(), form)
		}
	}
	for i, x := range r.GetConditions() {
		at := fmt.Sprintf("%sconditions[%d]", path, i)
		if x.Version == nil && x.BalanceAtLeast == nil {
			d.bad(at, "must set version or balance_at_least")
		}
		code, asset := d.ref(at+".account", x.GetAccount())
		p.Conditions = append(p.Conditions, ledger.Condition{Code: code, Asset: asset, Version: x.Version,
			BalanceAtLeast: d.optionalDecimal(at+".balance_at_least", x.BalanceAtLeast)})
	}
	return p
}

// kind reads the type of a transfer. "reversal" is made by Reverse alone.
func (d *decoder) kind(path, s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	if s == ledger.Reversal {
		d.bad(path, `must not be "reversal": only Reverse makes reversals`)
	}
	return d.bizNo(path, s)
}
