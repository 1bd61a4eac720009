package rpc

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
	"github.com/ledgerd/ledgerd/internal/flow"
)

// items are the items of a batch that is not all or nothing, each a mutation of its own.
type items[R proto.Message] []item[R]

// item is one mutation with its outcome.
type item[R proto.Message] struct {
	mutation   mutation[R]
	submission flow.Submission
	response   R
	recorded   bool // by an earlier call
	err        error
}

func newItems[R proto.Message](n int) items[R] { return make(items[R], n) }

// fail sets the error of an item, which is then not submitted.
func (b items[R]) fail(i int, err error) { b[i].err = err }

// add prepares an item for submission.
func (b items[R]) add(c *call, i int, key *commit.Key, request proto.Message, m mutation[R]) {
	b[i].mutation = m
	b[i].submission = b[i].mutation.submission(c, key, request)
}

// maxInvalid bounds the invalid items of a batch. An item can have two bytes, and its error 300, so that many small
// requests could occupy the CPU with errors.
const maxInvalid = 100

// run submits the items, which the request has in the field list. replayed reports whether all of them were recorded or
// existed. It returns an error for the call as a whole if the engine admitted none, or if more than maxInvalid are
// invalid.
func (b items[R]) run(ctx context.Context, s *Mutations, list string) (replayed bool, err error) {
	submissions := make([]flow.Submission, 0, len(b))
	at := make([]int, 0, len(b)) // of submissions in b
	for i := range b {
		if b[i].err == nil {
			submissions = append(submissions, b[i].submission)
			at = append(at, i)
		}
	}
	if len(b)-len(submissions) > maxInvalid {
		return false, b.refuse(ctx, list, len(b)-len(submissions))
	}
	results := s.Engine.DoAll(ctx, submissions)
	if err := notAdmitted(results); err != nil {
		return false, err
	}
	replayed = len(submissions) == len(b)
	for n, r := range results {
		x := &b[at[n]]
		x.recorded, x.err = r.Outcome.Replayed, r.Err
		replayed = replayed && (x.recorded || r.Outcome.Existed)
		if x.err == nil {
			res, err := x.mutation.result(ctx, r.Outcome)
			x.response, x.err = res.response, err
		}
	}
	return replayed, nil
}

// refuse returns the fault of a batch with too many invalid items. It names the first ones.
func (b items[R]) refuse(ctx context.Context, list string, invalid int) error {
	f := fault.FieldInvalid.New("%d items are invalid, more than %d, so none was run", invalid, maxInvalid)
	for i := range b {
		if b[i].err != nil && len(f.Fields) < fault.MaxFields {
			f = f.WithField(fmt.Sprintf("%s[%d]", list, i), faultOf(ctx, b[i].err).Message)
		}
	}
	return f
}

// itemError logs and encodes the error of an item. Nil stays nil.
func (c *call) itemError(ctx context.Context, err error) *ledgerv1.ItemError {
	if err == nil {
		return nil
	}
	f := faultOf(ctx, err)
	c.logFault(ctx, f, err)
	return itemError(c.withFieldNames(f), c.requestID)
}
