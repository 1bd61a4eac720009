package hledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// ImportOptions say what to import.
type ImportOptions struct {
	Path        string // "-": Stdin, as JSON
	Name        string // default: the file's
	Commodities map[string]string
	Conversion  string // account
	Virtual     string // account; empty: unbalanced virtual postings are refused
	KeepGoing   bool
	Client      *importer.Client
	Stdin       io.Reader
	Out, Err    io.Writer
}

// version is part of what decides the batches: raise it when the order of sending changes.
const version = "hledger 1"

type run struct {
	ImportOptions
	builder builder
	rows    int
	sender  *importer.Sender[*transaction]
}

// Import brings a journal into the ledger: it checks all of it and finds the decimals of every
// commodity, then sends it. Returns importer.ErrIncomplete or ErrStopped when something of it is not
// in the ledger.
func Import(ctx context.Context, o ImportOptions) error {
	name, err := sourceName(o.Name, o.Path)
	if err != nil {
		return err
	}
	for flag, account := range map[string]string{"--conversion-account": o.Conversion, "--virtual-account": o.Virtual} {
		if wrong := importer.BadAccount(account); wrong != "" && (account != "" || flag == "--conversion-account") {
			return fmt.Errorf("%s %q: it %s", flag, account, wrong)
		}
	}
	source, err := open(ctx, o.Path, o.Stdin, o.Err)
	if err != nil {
		return err
	}
	defer source.Close()
	r := &run{ImportOptions: o, builder: builder{name: name, conversion: o.Conversion, virtual: o.Virtual, commodities: newCommodities(o.Commodities)}}
	settings := append([]string{version, name, o.Conversion, o.Virtual}, sorted(o.Commodities)...)
	in, err := source.First(settings...)
	if err != nil {
		return err
	}
	if err := r.check(in); err != nil {
		return err
	}
	hash, err := source.Hash()
	if err != nil {
		return err
	}
	if in, err = source.Again(); err != nil {
		return err
	}
	progress := importer.NewProgress(o.Err, r.rows)
	r.sender = &importer.Sender[*transaction]{Client: o.Client, File: hash, KeepGoing: o.KeepGoing, Progress: progress,
		Log: &importer.Problems{W: o.Err, Progress: progress}, Done: func(*transaction, importer.Outcome) {}}
	err = r.send(ctx, in)
	progress.End()
	r.summary()
	if err == nil && r.sender.Counts.Failed() {
		err = importer.ErrIncomplete
	}
	return err
}

func sorted(m map[string]string) []string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, k, m[k])
	}
	return all
}

// mostProblems are printed of a journal that is not sent.
const mostProblems = 20

func (r *run) check(in io.Reader) error {
	j, err := newJournal(in)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	problems := importer.Problems{W: r.Err, Most: mostProblems}
	for {
		t, err := j.next()
		switch {
		case errors.Is(err, io.EOF):
			if problems.N == 0 || r.KeepGoing {
				return nil
			}
			problems.Rest()
			return fmt.Errorf("%s has %s that cannot be in the ledger: nothing was sent (--keep-going sends the rest)", r.Path,
				importer.Plural(problems.N, "transaction"))
		case err != nil: // what follows cannot be read either
			return fmt.Errorf("%s: %w", r.Path, err)
		}
		problem := r.builder.look(t)
		switch {
		case problem == nil:
			r.rows++
		case !r.KeepGoing: // else it is printed when it is skipped
			problems.Print(problem)
		}
	}
}

func (r *run) send(ctx context.Context, in io.Reader) error {
	if assets := r.builder.commodities.list(); len(assets) > 0 {
		if err := r.Client.EnsureAssets(ctx, assets); err != nil {
			return err
		}
	}
	j, err := newJournal(in)
	if err != nil {
		return err
	}
	for {
		t, err := j.next()
		if errors.Is(err, io.EOF) {
			return r.sender.Flush(ctx)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", r.Path, err)
		}
		problem := r.builder.look(t)
		var transfer *ledgerv1.TransferRequest
		if problem == nil {
			transfer, problem = r.builder.transfer(t)
		}
		if problem != nil {
			r.sender.Counts.Skipped++
			problem.Text += ": skipped"
			r.sender.Log.Print(problem)
			if !r.KeepGoing { // only a sum beyond 38 digits, or too many postings, is found as late as here
				return errors.Join(r.sender.Flush(ctx), importer.ErrStopped)
			}
			continue
		}
		r.builder.count(t)
		if transfer == nil {
			continue
		}
		for _, p := range transfer.GetPostings() {
			for _, account := range []string{p.GetFrom(), p.GetTo()} {
				if !r.sender.Has(account, p.GetAsset()) {
					r.sender.Need(&ledgerv1.NewAccount{Code: account, Asset: p.GetAsset(), Kind: kindOf(account), Unbounded: true})
				}
			}
		}
		if err := r.sender.Add(ctx, importer.Item[*transaction]{Transfer: transfer, Place: t.place(), From: t}); err != nil {
			return err
		}
	}
}

// summary tells what became of the journal, and what the ledger has otherwise.
func (r *run) summary() {
	p := func(format string, args ...any) { fmt.Fprintf(r.Out, format+"\n", args...) }
	p("%s: %s in %s", r.Path, importer.Plural(r.rows, "transaction"), importer.Plural(len(r.builder.commodities.list()), "asset"))
	p("  %s", &r.sender.Counts)
	n := r.builder.notes
	for _, note := range []struct {
		n    int
		text string
	}{
		{n.exchanges, "of them exchange commodities, or balance after rounding only: the difference went through " + r.Conversion},
		{n.nothing, "of them move nothing, and are not in the ledger"},
		{n.balancedVirtual, "[virtual] postings are ordinary ones in the ledger"},
		{n.ownDates, "postings with a date of their own have their transaction's in the ledger"},
		{n.assertions, "balance assertions were not looked at: hledger did"},
		{n.cut, "amounts have ten decimals, where hledger's JSON rounds: look whether the journal has more"},
	} {
		if note.n > 0 {
			p("  %s %s", importer.Count(note.n), note.text)
		}
	}
	for i, code := range r.sender.Kept {
		if i == 5 {
			p("  … and %s more", importer.Count(len(r.sender.Kept)-i))
			break
		}
		p("  %s was there with other limits or of another kind, and stays as it is", code)
	}
}
