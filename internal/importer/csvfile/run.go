package csvfile

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"time"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/amount"
	"github.com/ledgerd/ledgerd/internal/importer"
)

// Options of an import.
type Options struct {
	Path      string // "-": Stdin
	Mapping   string // path
	Report    string // path of the CSV with movements that differ; empty: none
	KeepGoing bool
	Client    *importer.Client
	Stdin     io.Reader
	Out, Err  io.Writer // the summary; problems and progress
}

// version is part of the hash that determines the batches: increment it when the order of sending changes.
const version = "csv 1"

// Run imports a file: it checks the whole file, sends it one day at a time, and compares the ledger's balances
// with the file's. Returns importer.ErrIncomplete or ErrStopped if part of the file is not in the ledger.
func Run(ctx context.Context, o Options) error {
	mapping, err := os.Open(o.Mapping)
	if err != nil {
		return err
	}
	defer mapping.Close()
	m, err := ReadMapping(mapping)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Mapping, err)
	}
	source, err := importer.OpenSource(o.Path, o.Stdin)
	if err != nil {
		return err
	}
	defer source.Close()
	r := &run{Options: o, m: m}
	if err := r.check(source); err != nil {
		return err
	}
	if r.hash, err = source.Hash(); err != nil {
		return err
	}
	in, err := source.Again()
	if err != nil {
		return err
	}
	err = r.send(ctx, in)
	if r.comparison != nil {
		r.summary(ctx, err)
	}
	if err == nil && r.sender.Counts.Failed() {
		err = importer.ErrIncomplete
	}
	return err
}

type run struct {
	Options
	m           *Mapping
	hash        string
	rows        int
	first, last time.Time
	sender      *importer.Sender[*movement]
	comparison  *comparison
	broken      error // error while writing the report
}

// check parses the whole file, so that nothing is sent of a file with errors.
func (r *run) check(source *importer.Source) error {
	in, err := source.First(version, r.m.text)
	if err != nil {
		return err
	}
	rows, err := newReader(in, r.m)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	problems := importer.Problems{W: r.Err, Most: importer.MostProblems}
	seed, lines := maphash.MakeSeed(), map[uint64]int{} // line by hash of the biz_no, to save memory
	for {
		v, problem, err := rows.next()
		if err == nil && problem == nil {
			hash := maphash.String(seed, v.bizNo)
			if first, twice := lines[hash]; twice && !r.KeepGoing { // otherwise the sender reports it
				problem = importer.Place{Line: v.line}.Problem("the biz_no %s was used before, at line %d", v.bizNo,
					first)
			}
			lines[hash] = v.line
		}
		switch {
		case errors.Is(err, io.EOF):
			if problems.N == 0 || r.KeepGoing {
				return nil
			}
			problems.Rest()
			return fmt.Errorf("%s has %s: nothing was sent (--keep-going sends the rest)", r.Path,
				importer.Plural(problems.N, "bad row"))
		case err != nil:
			return fmt.Errorf("read %s: %w", r.Path, err)
		case problem != nil && r.KeepGoing: // printed when skipped
			continue
		case problem != nil:
			problems.Print(problem)
			continue
		}
		if r.rows++; r.rows == 1 {
			r.first = v.at
		}
		r.last = v.at
	}
}

func (r *run) send(ctx context.Context, in io.Reader) (err error) {
	asset := &ledgerv1.Asset{Code: r.m.asset, Scale: int32(r.m.scale)}
	if err := r.Client.EnsureAssets(ctx, []*ledgerv1.Asset{asset}); err != nil {
		return err
	}
	rows, err := newReader(in, r.m)
	if err != nil {
		return err
	}
	var report io.Writer
	if r.Report != "" && r.m.balance != nil {
		f, err := os.Create(r.Report)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }() // some file systems report a full disk only on Close
		report = f
	}
	if r.comparison, err = newComparison(r.m, report); err != nil {
		return err
	}
	progress := importer.NewProgress(r.Err, r.rows)
	defer progress.End()
	r.sender = &importer.Sender[*movement]{Client: r.Client, File: r.hash, KeepGoing: r.KeepGoing, Progress: progress,
		Log: &importer.Problems{W: r.Err, Progress: progress}, Done: r.done}
	err = r.days(ctx, rows)
	r.sender.Stop(r.rows)
	if c := r.comparison.report; c != nil {
		c.Flush()
		r.broken = errors.Join(r.broken, c.Error())
	}
	return errors.Join(err, r.broken)
}

func (r *run) done(v *movement, o importer.Outcome) {
	if err := r.comparison.done(v, o); err != nil && r.broken == nil {
		r.broken = fmt.Errorf("write the report: %w", err)
	}
}

// days collects the movements of a day, because only a whole day can be ordered. Without a balance column,
// movements are sent in file order.
func (r *run) days(ctx context.Context, rows *reader) error {
	var day []*movement
	for {
		v, problem, err := rows.next()
		switch {
		case errors.Is(err, io.EOF):
			if err := r.day(ctx, day); err != nil {
				return err
			}
			return r.sender.Flush(ctx)
		case err != nil:
			return fmt.Errorf("read %s: %w", r.Path, err)
		case problem != nil:
			problem.Text += ": skipped"
			r.sender.Log.Print(problem)
			r.sender.Counts.Skipped++
			continue
		}
		if len(day) > 0 && (r.m.balance == nil || !dayOf(day[0].at).Equal(dayOf(v.at))) {
			if err := r.day(ctx, day); err != nil {
				return err
			}
			day = day[:0]
		}
		day = append(day, v)
	}
}

// day sends the movements of one day, account by account.
func (r *run) day(ctx context.Context, day []*movement) error {
	var codes []string
	of := map[string][]*movement{}
	for _, v := range day {
		if of[v.account] == nil {
			codes = append(codes, v.account)
		}
		of[v.account] = append(of[v.account], v)
	}
	for _, code := range codes {
		for _, v := range r.comparison.order(code, of[code]) {
			r.sender.Need(r.m.account.newAccount(v.account, r.m.asset))
			r.sender.Need(r.m.counter.newAccount(v.counter, r.m.asset))
			item := importer.Item[*movement]{Transfer: v.transfer(r.m), Place: importer.Place{Line: v.line}, From: v}
			if err := r.sender.Add(ctx, item); err != nil {
				return err
			}
		}
	}
	return nil
}

// summary prints the result.
func (r *run) summary(ctx context.Context, err error) {
	p := func(format string, args ...any) { fmt.Fprintf(r.Out, format+"\n", args...) }
	p("%s: %s on %s, %s to %s", r.Path, importer.Plural(r.rows, "movement"),
		importer.Plural(len(r.comparison.accounts), "account"),
		r.first.Format(time.DateOnly), r.last.Format(time.DateOnly))
	p("  %s", &r.sender.Counts)
	if r.m.balance != nil {
		p("  %s", r.comparison)
		if r.Report != "" {
			p("  every movement that differs, and by how much: %s", r.Report)
		}
	}
	r.sender.WriteKept(r.Out)
	if err == nil {
		if err := r.ledgerBalances(ctx, p); err != nil {
			p("  the ledger's balances could not be read: %v", err)
		}
	}
}

// ledgerBalances compares the ledger's accounts with the sums of the file. An opening balance may or may not be
// in the ledger, depending on earlier files.
func (r *run) ledgerBalances(ctx context.Context, p func(string, ...any)) error {
	agree, unopened, told := 0, 0, 0
	err := r.Client.Accounts(ctx, r.m.account.code.pattern(), r.m.asset, func(a *ledgerv1.Account) {
		b := r.comparison.accounts[a.GetCode()]
		if b == nil {
			return
		}
		// Compare decimals, because the ledger's asset may have a larger scale than the file.
		n, err := amount.ParseDecimal(a.GetBalance())
		switch {
		case err == nil && n == amount.NewDecimal(b.ours, r.m.scale):
			agree++
		case err == nil && n == amount.NewDecimal(sub(b.ours, b.opening), r.m.scale):
			agree++
			unopened++
		default:
			if told++; told <= 5 {
				p("  %s has %s in the ledger and %s by this file: the difference comes from other transfers",
					a.GetCode(), a.GetBalance(), amount.Format(b.ours, r.m.scale))
			}
		}
	})
	if err != nil {
		return err
	}
	p("  the ledger's balance is the sum of the file on %s of %s", importer.Count(agree),
		importer.Plural(len(r.comparison.accounts), "account"))
	if unopened > 0 {
		p("  %s of them without the opening balance, which is not in this file", importer.Count(unopened))
	}
	return nil
}
