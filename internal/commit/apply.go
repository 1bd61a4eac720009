package commit

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// maxMore is how often a command may ask for more rows.
const maxMore = 3

// apply runs the commands in order of arrival.
func (b *batch[B]) apply() {
	for _, j := range b.jobs {
		switch {
		case j.counts:
			b.count(j)
			continue
		case j.err != nil, j.later:
			continue // Need failed, or it had its verdict, or is not yet to run
		}
		if j.found != nil && j.found.expiresAt.After(b.now) {
			j.kept = j.found
			j.out, j.err = j.replay(j.kept)
			continue
		}
		b.run(j)
	}
}

// run lets one command make its change, and takes back what must not stay of it.
func (b *batch[B]) run(j *job[B]) {
	guard, guarded := j.Command.(Guarded[B])
	if guarded {
		b.mark()
		if b.safely(j, func() error { return guard.Guard(b.books) }); j.err != nil {
			b.undo()
			guarded = false
		}
	}
	counted := j.err == nil && b.count(j)
	if j.err == nil {
		b.mark()
		if b.safely(j, func() error { return b.answer(j) }); j.err != nil {
			b.undo()
		}
	}
	switch f := fault.Of(j.err); {
	case j.err == nil, b.full:
	case errors.Is(j.err, ErrMoreRows):
		if j.more++; j.more > maxMore {
			j.verdict, j.counts = fault.RowsLocked.New("the rows that the call works with kept changing"), counted
		}
		b.again = true
	case errors.Is(j.err, ErrLater):
		j.out, j.err = Outcome{}, nil
		b.postpone(j)
		b.again = b.again || guarded || counted // neither may stay, and their marks are gone
	case f != nil && f.Reason.Class == fault.Refusal:
		b.refuse(j, *f)
	case f != nil && f.Reason.Class == fault.Duplicate:
		j.out = Outcome{}
	case guarded: // the guard must not stay either, and its mark is gone
		j.verdict, j.counts, b.again = j.err, counted, true
	default:
		j.out = Outcome{}
	}
}

// count lets one command count what it has to, whatever becomes of it.
func (b *batch[B]) count(j *job[B]) (counted bool) {
	c, ok := j.Command.(Counted[B])
	if !ok {
		return false
	}
	b.mark()
	if b.safely(j, func() error { counted = c.Count(b.books); return j.err }); !counted {
		b.undo()
	}
	return counted
}

// postpone has a command run after its batch. A dry run's batch commits nothing to run after.
func (b *batch[B]) postpone(j *job[B]) {
	if j.later = !j.DryRun; !j.later {
		j.verdict = rowsLocked(ErrLater)
		j.err = j.verdict
	}
}

// answer applies the command and encodes what is to be recorded of its answer.
func (b *batch[B]) answer(j *job[B]) error {
	answer, err := j.Command.Apply(b.books)
	if err != nil {
		return err
	}
	if r, ok := answer.(Repeat); ok {
		j.out = Outcome{Answer: r.First, Existed: true}
		return nil
	}
	j.out.Answer = answer
	if !j.keyed() {
		return nil
	}
	bytes, err := j.Encode(answer)
	if err != nil {
		return err
	}
	j.kept, j.fresh = &keyRecord{fingerprint: j.Key.Fingerprint, answer: bytes, requestID: j.RequestID}, true
	return nil
}

// refuse records a business refusal under the job's key.
func (b *batch[B]) refuse(j *job[B], f fault.Fault) {
	j.out = Outcome{}
	if !j.keyed() {
		return
	}
	f.RequestID = j.RequestID
	j.err = &f
	j.kept, j.fresh = &keyRecord{refused: true, fingerprint: j.Key.Fingerprint, answer: f.Encode(), requestID: j.RequestID}, true
}

// safely runs one job's code: a panic fails that job alone.
func (b *batch[B]) safely(j *job[B], run func() error) {
	defer func() {
		r := recover()
		switch {
		case r == nil:
		case r == any(errTooManyIDs):
			j.err = TooManyRows.New("the call writes more rows than one commit may")
			b.full = len(b.jobs) > 1 // not its fault: there is room in a batch of its own
		default:
			b.engine.metrics.panics.Inc()
			b.engine.log.Error("panic in a command", "command", fmt.Sprintf("%T", j.Command), "panic", r,
				"request_id", j.RequestID, "stack", string(debug.Stack()))
			j.err = internal(fmt.Errorf("panic: %v", r))
		}
	}()
	j.err = run()
}
