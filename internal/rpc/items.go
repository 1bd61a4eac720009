package rpc

import (
	"context"

	"google.golang.org/protobuf/proto"

	ledgerv1 "github.com/ledgerd/ledgerd/gen/ledgerd/ledger/v1"
	"github.com/ledgerd/ledgerd/internal/commit"
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

// run submits the items. replayed reports whether all of them were recorded or existed. It returns an error for the
// call as a whole if the engine admitted none.
func (b items[R]) run(ctx context.Context, s *Mutations) (replayed bool, err error) {
	submissions := make([]flow.Submission, 0, len(b))
	at := make([]int, 0, len(b)) // of submissions in b
	for i := range b {
		if b[i].err == nil {
			submissions = append(submissions, b[i].submission)
			at = append(at, i)
		}
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

// itemError logs and encodes the error of an item. Nil stays nil.
func (c *call) itemError(ctx context.Context, err error) *ledgerv1.ItemError {
	if err == nil {
		return nil
	}
	f := faultOf(ctx, err)
	c.logFault(ctx, f, err)
	return itemError(c.withFieldNames(f), c.requestID)
}
