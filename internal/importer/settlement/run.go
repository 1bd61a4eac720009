package settlement

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ledgerd/ledgerd/internal/importer"
)

// ErrMismatch means that the gateway and the ledger differ. The report has the differences.
var ErrMismatch = errors.New("the gateway and the ledger differ: see the report")

// Accounts are the accounts of the transfers. Empty: no such transfers.
type Accounts struct{ Fee, Bank string }

// Options of a reconciliation.
type Options struct {
	Paths      []string // "-": Stdin
	Mapping    string   // path
	Gateway    string   // empty: from the mapping
	Accounts   Accounts // empty: from the mapping
	Start, End string   // of the period; empty: from the files
	Post       bool
	All        bool // include matches in the report
	JSON       bool
	Client     *importer.Client
	Stdin      io.Reader
	Out, Err   io.Writer // the report; problems and progress
}

// Run reads the files, compares them with the server, posts missing fees and payouts if asked to, and writes the
// report. Returns ErrMismatch if the gateway and the ledger differ.
func Run(ctx context.Context, o Options) error {
	m, err := openMapping(&o)
	if err != nil {
		return err
	}
	in, err := readFiles(&o, m)
	if err != nil {
		return err
	}
	b, err := openBooks(ctx, o.Client, o.Gateway)
	if err != nil {
		return err
	}
	from := in.start.Add(-day)
	if m.Refund.Time == "succeeded" {
		from = in.start.Add(-31 * day)
	}
	if err := b.load(ctx, in.start, in.end, from); err != nil {
		return err
	}
	if err := b.complete(ctx, in.lines); err != nil {
		return err
	}
	c := compare(b, m, in.lines, in.start, in.end)
	for _, text := range in.wrong {
		c.add(&Finding{Result: TotalsDiffer, Detail: text})
	}
	r := &report{Gateway: o.Gateway, Files: o.Paths, Start: in.start.UTC(), End: in.end.UTC(), Rows: len(in.lines),
		Repeated: in.repeated, Accounts: o.Accounts}
	err = c.settle(ctx, &o, in, r)
	r.fill(c)
	if err2 := r.write(&o); err == nil {
		err = err2
	}
	if err == nil && !r.Matches {
		err = ErrMismatch
	}
	return err
}

// settle compares fees and payouts, and posts them.
func (c *comparison) settle(ctx context.Context, o *Options, in *input, r *report) error {
	all, err := c.read(ctx, c.plan(&o.Accounts))
	if err != nil {
		return err
	}
	if !o.Post {
		c.compareTransfers(all)
		return nil
	}
	if err = c.checkPosting(ctx, all); err == nil && len(in.wrong) > 0 {
		err = errors.New("the totals of a file differ from the sums of its rows: nothing was posted")
	}
	if err != nil {
		c.compareTransfers(all)
		return err
	}
	s, err := c.post(ctx, all, in.hash, o)
	if s.Counts.Landed+s.Counts.Existed+s.Counts.Refused > 0 {
		r.Posting = s.Counts.String()
	} else {
		r.Posting = "nothing to post"
	}
	return err
}

func openMapping(o *Options) (*Mapping, error) {
	f, err := os.Open(o.Mapping)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := ReadMapping(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.Mapping, err)
	}
	if o.Gateway == "" {
		o.Gateway = m.Gateway
	}
	if o.Gateway == "" {
		return nil, errors.New("give --gateway, or the mapping's field gateway")
	}
	if o.Accounts.Fee == "" {
		o.Accounts.Fee = m.Accounts.Fee
	}
	if o.Accounts.Bank == "" {
		o.Accounts.Bank = m.Accounts.Bank
	}
	for flag, code := range map[string]string{"--fee-account": o.Accounts.Fee, "--bank-account": o.Accounts.Bank} {
		if wrong := importer.BadAccount(code); code != "" && wrong != "" {
			return nil, fmt.Errorf("%s: %q %s", flag, code, wrong)
		}
	}
	if o.Post && o.Accounts == (Accounts{}) {
		return nil, errors.New("--post needs --fee-account or --bank-account, or the mapping's field accounts")
	}
	return m, nil
}

// input is the content of all files.
type input struct {
	lines      []*line
	start, end time.Time
	repeated   int // rows that another file has too
	wrong      []string
	hash       string
}

// readFiles reads all files, before the first call to the server.
func readFiles(o *Options, m *Mapping) (*input, error) {
	in, of := &input{}, map[string]*line{}
	problems := &importer.Problems{W: o.Err, Most: importer.MostProblems}
	hashes := []string{}
	for _, path := range o.Paths {
		c, hash, err := readPath(o, path, m, problems)
		if err != nil {
			return nil, err
		}
		hashes = append(hashes, hash)
		in.wrong = append(in.wrong, c.wrong...)
		in.extend(c.start, c.end)
		for _, l := range c.lines {
			before := of[l.key()]
			switch {
			case before == nil || before.file == path:
				of[l.key()] = l
				in.lines = append(in.lines, l)
			case before.same(l):
				in.repeated++
			default:
				problems.Print(importer.Place{Line: l.number}.Problem("%s: is not as in %s, line %d: %s", path,
					before.file, before.number, l.key()))
			}
		}
	}
	if problems.N > 0 {
		problems.Rest()
		return nil, fmt.Errorf("%s: nothing was compared", importer.Plural(problems.N, "bad row"))
	}
	in.hash = hashes[0]
	return in, in.setPeriod(o, m)
}

func readPath(o *Options, path string, m *Mapping, problems *importer.Problems) (*content, string, error) {
	source, err := importer.OpenSource(path, o.Stdin)
	if err != nil {
		return nil, "", err
	}
	defer source.Close()
	first, err := source.First("settlement 1", o.Gateway)
	if err != nil {
		return nil, "", err
	}
	c, err := readFile(first, path, m, problems)
	if err != nil {
		return nil, "", err
	}
	hash, err := source.Hash()
	return c, hash, err
}

// extend extends the period to include the period that a file states.
func (in *input) extend(start, end time.Time) {
	if !start.IsZero() && (in.start.IsZero() || start.Before(in.start)) {
		in.start = start
	}
	if end.After(in.end) {
		in.end = end
	}
}

// setPeriod completes the period. The flags take precedence over the files' periods; without either, the period covers
// the days of the first and the last row.
func (in *input) setPeriod(o *Options, m *Mapping) error {
	var first, last time.Time
	for _, l := range in.lines {
		if first.IsZero() || l.at.Before(first) {
			first = l.at
		}
		if l.at.After(last) {
			last = l.at
		}
	}
	if in.start.IsZero() && !first.IsZero() {
		in.start = dayOf(first)
	}
	if in.end.IsZero() && !last.IsZero() {
		in.end = dayOf(last).AddDate(0, 0, 1)
	}
	for flag, x := range map[string]struct {
		text string
		to   *time.Time
	}{"--start": {o.Start, &in.start}, "--end": {o.End, &in.end}} {
		if x.text == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339, x.text)
		if err != nil {
			at, err = time.ParseInLocation(time.DateOnly, x.text, m.zone)
		}
		if err != nil {
			return fmt.Errorf("%s %q: must be a date such as 2026-11-25, or a time such as 2026-11-25T08:00:00Z",
				flag, x.text)
		}
		*x.to = at
	}
	if in.start.IsZero() || in.end.IsZero() {
		return errors.New("the files have no rows and state no period: give --start and --end")
	}
	if !in.start.Before(in.end) {
		return fmt.Errorf("the period must end after its start, not %s to %s", in.start, in.end)
	}
	return nil
}

func dayOf(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, t.Location())
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// quoted returns an external text without the characters that would control a terminal.
func quoted(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x2028 && r <= 0x202e {
			return '?'
		}
		return r
	}, s)
}
