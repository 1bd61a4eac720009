// Package hledger imports hledger journals into the ledger and exports the ledger as a journal.
//
// In hledger debits are positive; the ledger's balance is credits minus debits. So hledger's balance of an
// account is the negated balance of the ledger: the trial balance's debit column minus its credit column.
package hledger

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// transaction is the relevant part of a transaction in `hledger print -O json`.
type transaction struct {
	Index       int             `json:"tindex"`
	Date        string          `json:"tdate"`
	Date2       string          `json:"tdate2"`
	Description string          `json:"tdescription"`
	Code        string          `json:"tcode"`
	Status      string          `json:"tstatus"`
	Comment     string          `json:"tcomment"`
	Tags        [][2]string     `json:"ttags"`
	Postings    []posting       `json:"tpostings"`
	Source      json.RawMessage `json:"tsourcepos"`
}

type posting struct {
	Account   string            `json:"paccount"`
	Amounts   []commodityAmount `json:"pamount"`
	Type      string            `json:"ptype"`
	Status    string            `json:"pstatus"`
	Comment   string            `json:"pcomment"`
	Date      *string           `json:"pdate"`
	Assertion json.RawMessage   `json:"pbalanceassertion"`
}

// Types of postings.
const (
	regularPosting  = "RegularPosting"
	virtualPosting  = "VirtualPosting"         // (account): unbalanced
	balancedVirtual = "BalancedVirtualPosting" // [account]: balanced among themselves
)

type commodityAmount struct {
	Commodity string   `json:"acommodity"`
	Quantity  quantity `json:"aquantity"`
	Price     *price   `json:"aprice"` // "acost" since hledger 1.33
	Cost      *price   `json:"acost"`
	Style     struct {
		Precision *int `json:"asprecision"`
	} `json:"astyle"`
}

// jsonPlaces is the maximum number of decimals in hledger's JSON, which rounds further ones.
const jsonPlaces = 10

// rounded reports whether the JSON may have rounded an amount. The amount's precision is at least the
// journal's, so with a precision of ten or less the JSON is exact.
func (a commodityAmount) rounded() bool {
	return a.Quantity.whole == nil && a.Quantity.wrong == nil && a.Quantity.Places >= jsonPlaces &&
		(a.Style.Precision == nil || *a.Style.Precision > jsonPlaces)
}

type price struct {
	Tag      string          `json:"tag"`
	Contents json.RawMessage `json:"contents"`
}

type quantity struct {
	Mantissa json.Number `json:"decimalMantissa"`
	Places   int         `json:"decimalPlaces"`

	// Not from the JSON: the exact number, or the reason why it cannot be one.
	whole *amount.Decimal
	wrong error
}

// decimal returns the exact number.
func (q quantity) decimal() (amount.Decimal, error) {
	if q.wrong != nil || q.whole != nil {
		return *cmp.Or(q.whole, &amount.Decimal{}), q.wrong
	}
	n, err := amount.ParseInt(q.digits())
	if err != nil {
		return amount.Decimal{}, err
	}
	if q.Places < 0 || q.Places > 255 {
		return amount.Decimal{}, amount.ErrTooManyDecimals
	}
	d := amount.NewDecimal(n, uint8(q.Places))
	if d.Scale > amount.MaxScale {
		return d, amount.ErrTooManyDecimals
	}
	return d, nil
}

// digits writes the mantissa without an exponent, which hledger uses for long ones.
func (q quantity) digits() string {
	text := q.Mantissa.String()
	base, exponent, long := strings.Cut(text, "e")
	whole, fraction, _ := strings.Cut(base, ".")
	if zeros, err := strconv.Atoi(exponent); long && err == nil && zeros >= len(fraction) && zeros <= 60 {
		return whole + fraction + strings.Repeat("0", zeros-len(fraction))
	}
	return text
}

// journal reads transactions one at a time.
type journal struct {
	json  *json.Decoder
	exact exact
}

func newJournal(in io.Reader, e exact) (*journal, error) {
	j := &journal{json: json.NewDecoder(in), exact: e}
	t, err := j.json.Token()
	if err == nil && t != json.Delim('[') {
		err = fmt.Errorf("begins with %v", t)
	}
	if err != nil {
		return nil, fmt.Errorf("this is not the output of `hledger print -O json`, a list of transactions: %w", err)
	}
	return j, nil
}

// next reads a transaction; io.EOF at the end of the list. A truncated list is an error.
func (j *journal) next() (*transaction, error) {
	if !j.json.More() {
		if _, err := j.json.Token(); err != nil {
			return nil, fmt.Errorf("the list of transactions is cut off: %w", noEOF(err))
		}
		return nil, io.EOF
	}
	var t transaction
	if err := j.json.Decode(&t); err != nil {
		return nil, fmt.Errorf("byte %d: %w", j.json.InputOffset(), noEOF(err))
	}
	j.exact.restore(&t)
	return &t, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// place is the transaction's line in the journal, if the JSON has it in the expected form.
func (t *transaction) place() importer.Place {
	var at []struct {
		Line int `json:"sourceLine"`
	}
	if json.Unmarshal(t.Source, &at) == nil && len(at) > 0 {
		return importer.Place{Line: at[0].Line}
	}
	return importer.Place{}
}

func (t *transaction) problem(format string, args ...any) *importer.Problem {
	p := t.place().Problem(format, args...)
	p.Text = fmt.Sprintf("transaction %d of %s %q: %s", t.Index, t.Date, t.Description, p.Text)
	return p
}

// sum is a hash over everything that can be edited in a transaction, including parts that the ledger does not
// keep. It excludes the position and the display style of amounts, which depend on other transactions.
func (t *transaction) sum() []byte {
	h := sha256.New()
	write := func(text ...string) { fmt.Fprintf(h, "%q\n", text) }
	write(t.Date, t.Date2, t.Description, t.Code, t.Status, t.Comment)
	for _, p := range t.Postings {
		date := ""
		if p.Date != nil {
			date = *p.Date
		}
		write(p.Account, p.Type, p.Status, p.Comment, date)
		for _, a := range p.Amounts {
			write(a.Commodity, a.Quantity.text())
			for _, price := range []*price{a.Price, a.Cost} {
				if price != nil {
					tag, of := price.read()
					write(tag, of.Commodity, of.Quantity.text())
				}
			}
		}
	}
	return h.Sum(nil)[:8]
}

// read returns the amount of a price; older versions of hledger wrote a list of one.
func (p *price) read() (tag string, a commodityAmount) {
	if bytes.HasPrefix(bytes.TrimSpace(p.Contents), []byte("[")) {
		var list []commodityAmount
		if json.Unmarshal(p.Contents, &list) == nil && len(list) > 0 {
			a = list[0]
		}
		return p.Tag, a
	}
	_ = json.Unmarshal(p.Contents, &a) // a price is only hashed
	return p.Tag, a
}

func (q quantity) text() string {
	d, err := q.decimal()
	if err != nil {
		return q.Mantissa.String()
	}
	return d.String()
}
