package hledger

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// ExportOptions configure an export.
type ExportOptions struct {
	Commodities map[string]string // commodity to asset: the asset is written as that commodity
	// Conversion is the account that exchanges pass through. With Costs it is omitted where hledger can infer
	// the cost: where exactly two commodities remain.
	Conversion string
	Costs      bool
	Zone       *time.Location // of the dates; nil: UTC, as in journal imports
	Client     *importer.Client
	Out        io.Writer
}

const pageSize = 1000

// Export writes all transfers as a journal, a page at a time, newest first like the ledger's list; hledger
// accepts any order. Transfers recorded during the export may be missing. Returns the number of transfers.
func Export(ctx context.Context, o ExportOptions) (n int, err error) {
	e := &exporter{ExportOptions: o, w: bufio.NewWriter(o.Out), symbols: map[string]string{}}
	for commodity, asset := range o.Commodities {
		if strings.ContainsAny(commodity, "\"\n") {
			return 0, fmt.Errorf("--commodity %q: a journal cannot hold such a commodity", commodity)
		}
		if other, twice := e.symbols[asset]; twice {
			return 0, fmt.Errorf("--commodity: %s cannot be both %q and %q", asset, other, commodity)
		}
		e.symbols[asset] = commodity
	}
	fmt.Fprint(e.w, "; Written by ledgerd export hledger.\ndecimal-mark .\n")
	for token := ""; ; {
		page, err := importer.Call(ctx, o.Client, "", o.Client.Ledger.ListTransfers,
			&ledgerv1.ListTransfersRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return n, fmt.Errorf("list the transfers: %w", err)
		}
		for _, t := range page.GetTransfers() {
			if err := e.transfer(t); err != nil {
				return n, fmt.Errorf("transfer %d: %w", t.GetId(), err)
			}
			n++
		}
		if token = page.GetNextPageToken(); token == "" {
			return n, e.w.Flush()
		}
	}
}

type exporter struct {
	ExportOptions
	w       *bufio.Writer
	symbols map[string]string // by asset
}

func (e *exporter) transfer(t *ledgerv1.Transfer) error {
	lines, err := merge(t.GetPostings())
	if err != nil {
		return err
	}
	if e.Costs {
		lines = withoutConversion(lines, e.Conversion)
	}
	at := t.GetEffectiveTime().AsTime()
	if e.Zone != nil {
		at = at.In(e.Zone)
	}
	meta := t.GetMetadata()
	fmt.Fprintf(e.w, "\n%s", at.Format(time.DateOnly))
	if d, err := time.Parse(time.DateOnly, meta[metaDate2]); err == nil {
		fmt.Fprintf(e.w, "=%s", d.Format(time.DateOnly))
	}
	if mark, ok := map[string]string{"cleared": "*", "pending": "!"}[meta[metaStatus]]; ok {
		fmt.Fprintf(e.w, " %s", mark)
	}
	fmt.Fprintf(e.w, " (%s)", escape(t.GetBizNo(), ")"))
	if d := meta[metaDescription]; d != "" {
		fmt.Fprintf(e.w, " %s", escape(d, ";"))
	}
	fmt.Fprintln(e.w)
	e.tags(t, at)
	for _, l := range lines {
		symbol, ok := e.symbols[l.asset]
		if !ok {
			symbol = l.asset
		}
		fmt.Fprintf(e.w, "    %s  %s\n", accountName(l.account), withCommodity(amount.Format(l.n, l.scale), symbol))
	}
	return nil
}

// tags writes the metadata that a journal has no syntax for. Tags of an imported journal are already in the comment.
func (e *exporter) tags(t *ledgerv1.Transfer, at time.Time) {
	tag := func(name, value string) { fmt.Fprintf(e.w, "    ; %s: %s\n", escape(name, " :,;"), escape(value, ",")) }
	meta := t.GetMetadata()
	if t.GetType() != transferType {
		tag("type", t.GetType())
	}
	if h, m, s := at.Clock(); h+m+s+at.Nanosecond() != 0 {
		tag("effective", at.Format(time.RFC3339Nano))
	}
	if id := t.GetReversesId(); id != 0 {
		tag("reverses", fmt.Sprint(id))
	}
	for _, name := range slices.Sorted(maps.Keys(meta)) {
		switch {
		case name == metaDescription, name == metaStatus, name == metaDate2, name == metaComment:
		case strings.HasPrefix(name, metaTag) && meta[metaComment] != "":
		default:
			tag(name, meta[name])
		}
	}
	if comment := meta[metaComment]; comment != "" {
		for line := range strings.SplitSeq(comment, "\n") {
			fmt.Fprintf(e.w, "    ; %s\n", strings.ReplaceAll(line, "\r", ""))
		}
	}
}

// line is one posting of the journal: the debits or the credits of an account.
type line struct {
	account, asset string
	n              amount.Int // positive: debit, as in hledger
	scale          uint8
}

// merge converts postings to hledger's. It adds up the debits of an account, and separately its credits, so
// that money passing through an account stays visible.
func merge(postings []*ledgerv1.Posting) ([]line, error) {
	type key struct {
		account, asset string
		debit          bool
	}
	var lines []line
	at := map[key]int{}
	add := func(k key, n amount.Int, scale uint8) error {
		i, there := at[k]
		if !there {
			i, at[k] = len(lines), len(lines)
			lines = append(lines, line{account: k.account, asset: k.asset, scale: scale})
		}
		sum, ok := lines[i].n.Add(n)
		if !ok {
			return amount.ErrOverflow
		}
		lines[i].n = sum
		return nil
	}
	for _, p := range postings {
		d, err := amount.ParseDecimal(p.GetAmount())
		if err != nil {
			return nil, err
		}
		_, decimals, _ := strings.Cut(p.GetAmount(), ".") // has exactly the asset's scale
		scale := uint8(len(decimals))
		n, err := d.Minor(scale)
		if err == nil {
			err = add(key{p.GetFrom(), p.GetAsset(), true}, n, scale)
		}
		if err == nil {
			err = add(key{p.GetTo(), p.GetAsset(), false}, n.Neg(), scale)
		}
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

// withoutConversion omits the conversion account if hledger can infer the cost from the rest: exactly two
// commodities, one debited and one credited.
func withoutConversion(lines []line, conversion string) []line {
	var rest []line
	sums := map[string]amount.Int{}
	for _, l := range lines {
		sum, ok := sums[l.asset].Add(l.n)
		if l.account == conversion {
			sum, ok = sums[l.asset], true
		} else {
			rest = append(rest, l)
		}
		if !ok {
			return lines
		}
		sums[l.asset] = sum
	}
	var signs []int
	for _, sum := range sums {
		signs = append(signs, sum.Sign())
	}
	if len(rest) < len(lines) && len(signs) == 2 && signs[0]*signs[1] < 0 {
		return rest
	}
	return lines
}
