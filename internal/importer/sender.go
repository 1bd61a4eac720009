package importer

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// Limits of a call: the server accepts 10,000 items and 16 MiB.
const (
	batchItems = 1000
	batchBytes = 4 << 20
)

// Item is one transfer with its source.
type Item[T any] struct {
	Transfer *ledgerv1.TransferRequest
	Place    Place
	From     T
}

// Outcome is the outcome of an item.
type Outcome int

const (
	Landed   Outcome = iota // posted by this run
	Existed                 // posted before, by an earlier run or another client, with the same content
	Repeated                // its biz_no occurred earlier in the file; not posted again
	Refused                 // refused by the ledger
)

// Counts are the outcomes of all items.
type Counts struct {
	Landed, Existed, Repeated, Refused, Skipped int
	// NotSent counts the items after the one that stopped the run.
	NotSent int
}

// Failed reports whether part of the file is not in the ledger.
func (c *Counts) Failed() bool { return c.Repeated+c.Refused+c.Skipped+c.NotSent > 0 }

func (c *Counts) add(o Outcome) {
	switch o {
	case Landed:
		c.Landed++
	case Existed:
		c.Existed++
	case Repeated:
		c.Repeated++
	case Refused:
		c.Refused++
	}
}

// String formats the counts.
func (c *Counts) String() string {
	parts := []string{Count(c.Landed) + " posted", Count(c.Existed) + " existed already"}
	for _, p := range []struct {
		n    int
		what string
	}{{c.Repeated, "have a biz_no that the file used before"}, {c.Refused, "refused by the ledger"}, {c.Skipped,
		"skipped"},
		{c.NotSent, "not sent"}} {
		if p.n > 0 {
			parts = append(parts, Count(p.n)+" "+p.what)
		}
	}
	s := strings.Join(parts, ", ")
	if c.Landed == 0 && c.Existed > 0 {
		s += ": this run changed nothing"
	}
	return s
}

// Sender collects items, creates the accounts that they need, sends them in order in batches, and reports each
// outcome. It keeps one batch and the account names in memory.
//
// The request id of every call contains the file's hash, the batch's number and the run. An existing transfer reports
// the request id of the call that made it. That distinguishes a duplicate biz_no in the file from a repeated run
// without keeping all biz_nos in memory: the same file with the same settings makes the same batches.
type Sender[T any] struct {
	Client *Client
	// File is the hash of the file and the settings, which determine the batches.
	File string
	// Unique means that no biz_no occurs twice in the file: an existing transfer is from an earlier run.
	Unique bool
	// KeepGoing continues after a batch with refusals.
	KeepGoing bool
	Progress  *Progress
	Log       *Problems
	// Done is called for every item, in order.
	Done func(T, Outcome)
	// Counts so far. The file's reader adds skipped items.
	Counts Counts
	// Kept are existing accounts with other limits or another kind.
	Kept []string

	batch    int
	bytes    int
	items    []Item[T]
	names    map[string]Place // biz_nos of the batch
	accounts map[accountName]bool
	fresh    []*ledgerv1.NewAccount
}

type accountName struct{ code, asset string }

// Need ensures that an account exists before the next batch is sent.
func (s *Sender[T]) Need(a *ledgerv1.NewAccount) {
	name := accountName{a.GetCode(), a.GetAsset()}
	if s.accounts[name] {
		return
	}
	if s.accounts == nil {
		s.accounts = map[accountName]bool{}
	}
	s.accounts[name] = true
	s.fresh = append(s.fresh, a)
}

// Add adds an item, and sends the batch when it is full.
func (s *Sender[T]) Add(ctx context.Context, item Item[T]) error {
	s.items = append(s.items, item)
	s.bytes += proto.Size(item.Transfer)
	if len(s.items) >= batchItems || s.bytes >= batchBytes {
		return s.Flush(ctx)
	}
	return nil
}

// WriteKept writes which accounts exist with other settings: the first five.
func (s *Sender[T]) WriteKept(w io.Writer) {
	for i, code := range s.Kept {
		if i == 5 {
			fmt.Fprintf(w, "  … and %s more\n", Count(len(s.Kept)-i))
			return
		}
		fmt.Fprintf(w, "  %s exists with other limits or of another kind, and was not changed\n", code)
	}
}

// Skip counts an item that the ledger already has.
func (s *Sender[T]) Skip(item T) {
	s.Counts.Existed++
	s.Done(item, Existed)
	s.Progress.Add(1)
}

// Stop counts the unsent items at the end of a run.
func (s *Sender[T]) Stop(items int) {
	s.Counts.NotSent = items - s.Counts.Landed - s.Counts.Existed - s.Counts.Repeated - s.Counts.Refused
}

// Flush sends the current batch.
func (s *Sender[T]) Flush(ctx context.Context) error {
	for len(s.fresh) > 0 {
		n := min(len(s.fresh), batchItems)
		kept, err := s.Client.ensureAccounts(ctx, s.fresh[:n])
		if err != nil {
			return err
		}
		s.Kept, s.fresh = append(s.Kept, kept...), s.fresh[n:]
	}
	if len(s.items) == 0 {
		return nil
	}
	results, err := s.send(ctx)
	if err != nil {
		return err
	}
	refused := s.Counts.Refused + s.Counts.Repeated
	for i, item := range s.items {
		o := s.judge(item, results[i])
		s.Counts.add(o)
		s.Done(item.From, o)
	}
	s.Progress.Add(len(s.items))
	s.items, s.bytes, s.names = s.items[:0], 0, nil
	s.batch++
	if s.Counts.Refused+s.Counts.Repeated > refused && !s.KeepGoing {
		return ErrStopped
	}
	return nil
}

// send calls until every item has an answer. It resends items that the server refused as overloaded.
func (s *Sender[T]) send(ctx context.Context) ([]*ledgerv1.TransferBatchResult, error) {
	results := make([]*ledgerv1.TransferBatchResult, len(s.items))
	s.names = make(map[string]Place, len(s.items))
	var open []int
	for i, item := range s.items {
		if _, twice := s.names[item.Transfer.GetBizNo()]; !twice { // otherwise its result stays nil
			s.names[item.Transfer.GetBizNo()] = item.Place
			open = append(open, i)
		}
	}
	for attempt := 0; len(open) > 0; attempt++ {
		request := &ledgerv1.TransferBatchRequest{}
		for _, i := range open {
			request.Items = append(request.Items, &ledgerv1.TransferBatchItem{Transfer: s.items[i].Transfer})
		}
		answer, err := Call(ctx, s.Client, s.requestID(), s.Client.Ledger.TransferBatch, request)
		if err != nil {
			return nil, fmt.Errorf("send transfers: %w", err)
		}
		if len(answer.GetResults()) != len(open) {
			return nil, fmt.Errorf("the server gave %d results for %d transfers", len(answer.GetResults()), len(open))
		}
		var again []int
		for n, r := range answer.GetResults() {
			results[open[n]] = r
			if r.GetError().GetDetail().GetNextStep() == errorsv1.NextStep_NEXT_STEP_RETRY_SAME_KEY {
				again = append(again, open[n])
			}
		}
		if open = again; len(open) == 0 {
			break
		}
		if attempt+1 == attempts {
			e := results[open[0]].GetError()
			return nil, fmt.Errorf("the server does not accept %d transfers (%s: %s): run the import again, "+
				"and it continues where it stopped",
				len(open), e.GetReason(), e.GetMessage())
		}
		if err := s.Client.pause(ctx, attempt); err != nil {
			return nil, err
		}
	}
	return results, nil
}

func (s *Sender[T]) requestID() string {
	return fmt.Sprintf("import-%s-%d-%s", s.File, s.batch, s.Client.nonce)
}

// judge returns the outcome of an item, and logs it if it is not in the ledger.
func (s *Sender[T]) judge(item Item[T], r *ledgerv1.TransferBatchResult) Outcome {
	bizNo := item.Transfer.GetBizNo()
	switch {
	case r == nil:
		s.Log.Print(item.Place.Problem("the biz_no %s was used before, at %s: not posted a second time", bizNo,
			s.names[bizNo]))
		return Repeated
	case r.GetError() != nil:
		s.Log.Print(item.Place.Problem("the ledger refuses %s: %s: %s", bizNo, r.GetError().GetReason(),
			r.GetError().GetMessage()))
		return Refused
	case !r.GetExisted():
		return Landed
	}
	rest, ours := strings.CutPrefix(r.GetTransfer().GetRequestId(), "import-"+s.File+"-")
	batch, run, _ := strings.Cut(rest, "-")
	switch {
	case ours && !s.Unique && batch != strconv.Itoa(s.batch):
		s.Log.Print(item.Place.Problem("the biz_no %s was used before in the file: not posted a second time", bizNo))
		return Repeated
	case ours && run == s.Client.nonce:
		return Landed // the first answer was lost
	}
	return Existed
}
