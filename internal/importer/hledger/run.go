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

// ImportOptions configure an import.
type ImportOptions struct {
	Path        string // "-": Stdin, as JSON
	Name        string // default: the file's name
	Commodities map[string]string
	Conversion  string // account
	Virtual     string // account; empty: unbalanced virtual postings are refused
	IDTag       string // tag that identifies a transaction; empty: none
	// Part means that the input is only a part of the journal: earlier imports may be missing in it.
	Part      bool
	KeepGoing bool
	Client    *importer.Client
	Stdin     io.Reader
	Out, Err  io.Writer
}

// version is part of the hash that determines the batches: increment it when the order of sending changes.
const version = "hledger 2"

type run struct {
	ImportOptions
	exact     exact
	builder   builder
	inventory *inventory
	rows      int // transactions that can be posted
	transfers int // those that move an amount
	sender    *importer.Sender[built]
}

// Import imports a journal in three passes: determine every commodity's scale; identify every transaction and
// compare with the ledger; send the missing transactions. Returns importer.ErrIncomplete or ErrStopped if part
// of the journal is not in the ledger; with any other error no transfer was sent.
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
	source, exact, err := open(ctx, o.Path, o.Stdin, o.Err)
	if err != nil {
		return err
	}
	defer source.Close()
	r := &run{ImportOptions: o, exact: exact, inventory: newInventory(),
		builder: builder{name: name, idTag: o.IDTag, conversion: o.Conversion,
			virtual: o.Virtual, commodities: newCommodities(o.Commodities)}}
	settings := append([]string{version, name, o.IDTag, o.Conversion, o.Virtual}, sorted(o.Commodities)...)
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
	if err := r.prepare(ctx, source); err != nil {
		return err
	}
	if in, err = source.Again(); err != nil {
		return err
	}
	progress := importer.NewProgress(o.Err, r.transfers)
	r.sender = &importer.Sender[built]{Client: o.Client, File: hash, Unique: true, KeepGoing: o.KeepGoing,
		Progress: progress,
		Log:      &importer.Problems{W: o.Err, Progress: progress}, Done: func(built, importer.Outcome) {}}
	err = r.send(ctx, in)
	progress.End()
	r.sender.Stop(r.transfers)
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

// check validates every transaction and determines every commodity's scale.
func (r *run) check(in io.Reader) error {
	return r.refuse(in, func(t *transaction) *importer.Problem {
		problem := r.builder.inspect(t)
		if problem == nil {
			r.rows++
		}
		return problem
	})
}

// refuse reads a journal and refuses it if a transaction has a problem.
func (r *run) refuse(in io.Reader, problemOf func(*transaction) *importer.Problem) error {
	problems := importer.Problems{W: r.Err, Most: importer.MostProblems}
	err := r.each(in, func(t *transaction) error {
		problem := problemOf(t)
		if problem != nil && !r.KeepGoing { // otherwise printed when skipped
			problems.Print(problem)
		}
		return nil
	})
	if err != nil || problems.N == 0 {
		return err
	}
	problems.Rest()
	return fmt.Errorf("%s has %s that cannot be in the ledger: nothing was sent (--keep-going sends the rest)", r.Path,
		importer.Plural(problems.N, "transaction"))
}

// each reads a journal until the first error.
func (r *run) each(in io.Reader, see func(*transaction) error) error {
	j, err := newJournal(in, r.exact)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	for {
		t, err := j.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil: // the rest is unreadable too
			return fmt.Errorf("%s: %w", r.Path, err)
		}
		if err := see(t); err != nil {
			return err
		}
	}
}

// prepare completes before the first transfer is sent: it identifies every transaction and checks earlier
// imports in the ledger.
func (r *run) prepare(ctx context.Context, source *importer.Source) error {
	in, err := source.Again()
	if err != nil {
		return err
	}
	r.builder.begin()
	if err := r.refuse(in, r.identify); err != nil {
		return err
	}
	problems := importer.Problems{W: r.Err, Most: importer.MostProblems}
	if err := r.inventory.compare(ctx, r.Client, r.builder.name, r.Part, &problems); err != nil {
		return err
	}
	if problems.N > 0 {
		problems.Rest()
		return fmt.Errorf("%s does not have %s as imported before: nothing was sent. Restore them, "+
			"and correct them by new ones; or give --part if the input is a part of the journal, "+
			"or --name if it is another journal", r.Path,
			importer.Plural(problems.N, "transaction"))
	}
	if assets := r.builder.commodities.list(); len(assets) > 0 {
		return r.Client.EnsureAssets(ctx, assets)
	}
	return nil
}

func (r *run) identify(t *transaction) *importer.Problem {
	x, problem := r.build(t)
	if problem != nil || x.transfer == nil {
		return problem
	}
	problem = r.inventory.add(t, x.identity)
	if problem == nil {
		r.transfers++
	}
	return problem
}

func (r *run) build(t *transaction) (built, *importer.Problem) {
	if problem := r.builder.inspect(t); problem != nil {
		return built{}, problem
	}
	return r.builder.transfer(t)
}

// send sends the transactions that the ledger does not have.
func (r *run) send(ctx context.Context, in io.Reader) error {
	r.builder.begin()
	err := r.each(in, func(t *transaction) error {
		x, problem := r.build(t)
		if problem == nil && x.transfer != nil && r.inventory.doubled(t, x.identity) {
			problem = t.problem("its tag has the value %q, as has the tag of another", x.identity.tag)
		}
		if problem != nil { // only with --keep-going
			r.sender.Counts.Skipped++
			problem.Text += ": skipped"
			r.sender.Log.Print(problem)
			return nil
		}
		r.builder.count(t)
		if x.transfer == nil {
			return nil
		}
		if r.inventory.has(x.identity) {
			r.sender.Skip(x)
			return nil
		}
		for _, p := range x.transfer.GetPostings() {
			for _, account := range []string{p.GetFrom(), p.GetTo()} {
				r.sender.Need(&ledgerv1.NewAccount{Code: account, Asset: p.GetAsset(), Kind: kindOf(account),
					Unbounded: true})
			}
		}
		return r.sender.Add(ctx, importer.Item[built]{Transfer: x.transfer, Place: t.place(), From: x})
	})
	if err != nil {
		return err
	}
	return r.sender.Flush(ctx)
}

// summary prints the result.
func (r *run) summary() {
	p := func(format string, args ...any) { fmt.Fprintf(r.Out, format+"\n", args...) }
	p("%s: %s in %s", r.Path, importer.Plural(r.rows, "transaction"),
		importer.Plural(len(r.builder.commodities.list()), "asset"))
	p("  %s", &r.sender.Counts)
	n := r.builder.notes
	for _, note := range []struct {
		n    int
		text string
	}{
		{n.exchanges, "of them exchange commodities, or balance after rounding only: the difference went through " +
			r.Conversion},
		{n.nothing, "of them move no amounts, and are not in the ledger"},
		{n.balancedVirtual, "[virtual] postings became ordinary postings in the ledger"},
		{n.ownDates, "postings with a date of their own got the date of their transaction"},
		{n.assertions, "balance assertions were not checked: hledger checks them"},
		{r.inventory.changed(), "were imported with another comment, tag or status, which the ledger keeps"},
	} {
		if note.n > 0 {
			p("  %s %s", importer.Count(note.n), note.text)
		}
	}
	r.sender.WriteKept(r.Out)
}
