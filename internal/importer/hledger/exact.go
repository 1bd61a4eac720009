package hledger

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// exact holds the amounts that hledger's JSON may have rounded. hledger's CSV has exact amounts but neither
// costs nor line numbers. So the JSON is read first, and the CSV supplies amounts with more decimals.
type exact map[exactKey][]string

// exactKey identifies a posting in both formats; equal keys within a transaction are in the same order.
type exactKey struct {
	index     int
	account   string // in brackets if virtual
	commodity string
}

func (t *transaction) exactKey(p *posting, a *commodityAmount) exactKey {
	brackets := map[string]string{virtualPosting: "()", balancedVirtual: "[]"}[p.Type]
	account := p.Account
	if brackets != "" {
		account = brackets[:1] + account + brackets[1:]
	}
	return exactKey{t.Index, account, a.Commodity}
}

// findExact runs hledger a second time if the journal needs it.
func findExact(ctx context.Context, path string, source *importer.Source, errOut io.Writer) (exact, error) {
	in, err := source.Again()
	if err != nil {
		return nil, err
	}
	j, err := newJournal(in, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	wanted := map[int]bool{}
	for {
		t, err := j.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		for i := range t.Postings {
			if slices.ContainsFunc(t.Postings[i].Amounts, commodityAmount.rounded) {
				wanted[t.Index] = true
			}
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	table, err := printed(ctx, path, "csv", errOut)
	if err != nil {
		return nil, err
	}
	defer table.Close()
	if in, err = table.Again(); err != nil {
		return nil, err
	}
	return readExact(in, wanted)
}

func readExact(in io.Reader, wanted map[int]bool) (exact, error) {
	rows := csv.NewReader(in)
	header, err := rows.Read()
	if err != nil {
		return nil, fmt.Errorf("read hledger's CSV: %w", err)
	}
	var at [4]int
	for i, name := range []string{"txnidx", "account", "commodity", "amount"} {
		if at[i] = slices.Index(header, name); at[i] < 0 {
			return nil, fmt.Errorf("read hledger's CSV: there is no column %s", name)
		}
	}
	e := exact{}
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return e, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read hledger's CSV: %w", err)
		}
		if index, err := strconv.Atoi(row[at[0]]); err == nil && wanted[index] {
			k := exactKey{index, row[at[1]], row[at[2]]}
			e[k] = append(e[k], strings.Replace(row[at[3]], ",", ".", 1)) // there are no thousands separators
		}
	}
}

// restore replaces rounded amounts by the journal's. An ambiguous amount stays rounded, and is refused later.
func (e exact) restore(t *transaction) {
	used := map[exactKey]int{}
	for i := range t.Postings {
		p := &t.Postings[i]
		for n := range p.Amounts {
			a := &p.Amounts[n]
			k := t.exactKey(p, a)
			texts, use := e[k], used[k]
			used[k]++
			if use >= len(texts) || !a.rounded() {
				continue
			}
			if q, ok := a.whole(texts[use]); ok {
				a.Quantity = q
			}
		}
	}
}

// whole parses an amount's text if it is a full-precision form of the JSON's amount.
func (a *commodityAmount) whole(text string) (quantity, bool) {
	_, decimals, _ := strings.Cut(text, ".")
	if a.Style.Precision == nil || len(decimals) < *a.Style.Precision {
		return quantity{}, false
	}
	d, err := amount.ParseDecimal(text)
	if errors.Is(err, amount.ErrTooManyDecimals) || errors.Is(err, amount.ErrTooManyDigits) ||
		errors.Is(err, amount.ErrTooLong) {
		return quantity{wrong: err}, true
	}
	rounded, err2 := a.Quantity.decimal()
	if err != nil || err2 != nil || !near(d, rounded) {
		return quantity{}, false
	}
	return quantity{whole: &d}, true
}

// near reports whether two numbers differ by less than the last decimal of the JSON.
func near(a, b amount.Decimal) bool {
	scale := max(a.Scale, b.Scale, jsonPlaces)
	x, err1 := a.Minor(scale)
	y, err2 := b.Minor(scale)
	one, err3 := amount.Decimal{Coef: amount.FromInt64(1), Scale: jsonPlaces}.Minor(scale)
	diff, ok := x.Sub(y)
	return ok && errors.Join(err1, err2, err3) == nil && diff.Cmp(one) < 0 && diff.Cmp(one.Neg()) > 0
}
