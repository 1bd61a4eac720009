package importer

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	errorsv1 "github.com/ledgerd/ledgerd/gen/ledgerd/errors/v1"
	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
)

// A call holds at most this much: the service takes 10,000 items and 16 MiB.
const (
	batchItems = 1000
	batchBytes = 4 << 20
)

// Item is one transfer on its way, with what it was made of.
type Item[T any] struct {
	Transfer *ledgerv1.TransferRequest
	Place    Place
	From     T
}

// Outcome is what became of an item.
type Outcome int

// The outcomes.
const (
	Landed   Outcome = iota // by this run
	Existed                 // an earlier run brought it, or somebody else, with the same content
	Repeated                // its biz_no was used before in this same file: it was not posted a second time
	Refused                 // the ledger does not take it
)

// Counts is what became of all items.
type Counts struct {
	Landed, Existed, Repeated, Refused, Skipped int
	// NotSent stand behind what stopped the run.
	NotSent int
}

// Failed tells whether something of the file is not in the ledger.
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

// String tells the counts; a run that changed nothing says so.
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

// Sender gathers items, makes the accounts that they need, sends them batch by batch in order, and
// tells what became of each. It keeps one batch and the names of the accounts.
//
// Every call has a request id of the file's hash, the batch's number, and the run. A transfer that was
// there before tells the id of the call that made it, so that a biz_no which stands twice in the file
// is told from a repeated run, without keeping the biz_nos: the same file with the same settings makes
// the same batches.
type Sender[T any] struct {
	Client *Client
	// File is the hash of what decides the batches: the file and the settings.
	File string
	// Unique says that no biz_no stands twice in the file: what was there before is from an earlier run.
	Unique bool
	// KeepGoing goes on behind a batch of which something was refused.
	KeepGoing bool
	Progress  *Progress
	Log       *Problems
	// Done is called for every item, in order.
	Done func(T, Outcome)
	// Counts so far. Who reads the file adds what was skipped.
	Counts Counts
	// Kept are accounts that were there with other limits or of another kind.
	Kept []string

	batch    int
	bytes    int
	items    []Item[T]
	names    map[string]Place // biz_nos of the batch
	accounts map[accountName]bool
	fresh    []*ledgerv1.NewAccount
}

type accountName struct{ code, asset string }

// Need makes sure that an account is there when the next batch is sent.
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

// Has tells whether an account was needed before.
func (s *Sender[T]) Has(code, asset string) bool { return s.accounts[accountName{code, asset}] }

// Add takes an item, and sends the batch when it is full.
func (s *Sender[T]) Add(ctx context.Context, item Item[T]) error {
	s.items = append(s.items, item)
	s.bytes += proto.Size(item.Transfer)
	if len(s.items) >= batchItems || s.bytes >= batchBytes {
		return s.Flush(ctx)
	}
	return nil
}

// Skip counts an item that the ledger is known to have.
func (s *Sender[T]) Skip(item T) {
	s.Counts.Existed++
	s.Done(item, Existed)
	s.Progress.Add(1)
}

// Stop counts how many of all items were not sent, at the end of a run.
func (s *Sender[T]) Stop(items int) {
	s.Counts.NotSent = items - s.Counts.Landed - s.Counts.Existed - s.Counts.Repeated - s.Counts.Refused
}

// Flush sends what is there.
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

// send calls until every item has an answer. Items that the server was too busy for are sent again.
func (s *Sender[T]) send(ctx context.Context) ([]*ledgerv1.TransferBatchResult, error) {
	results := make([]*ledgerv1.TransferBatchResult, len(s.items))
	s.names = make(map[string]Place, len(s.items))
	var open []int
	for i, item := range s.items {
		if _, twice := s.names[item.Transfer.GetBizNo()]; !twice { // else its result stays nil
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
			return nil, fmt.Errorf("the server does not accept %d transfers (%s: %s): run the import again, and it continues where it stopped",
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

// judge says what became of an item, and logs what is not in the ledger.
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
