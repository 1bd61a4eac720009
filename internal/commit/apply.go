package commit

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// maxMore is how often a command of one row may return ErrMoreRows. Each further row of a command allows one more: the
// operations of an Execute ask for rows one after another. A command needs up to three itself. The rest is for rows
// that other callers add meanwhile, such as the endpoints of an event.
const maxMore = 8

// apply runs the commands in order of arrival.
func (a *attempt[T]) apply() {
	for _, j := range a.jobs {
		switch {
		case j.err != nil, j.deferred != nil:
			continue // Need failed, or the job is deferred
		case j.found != nil && j.found.expiresAt.After(a.at.Now):
			j.kept = j.found
			j.out, j.err = j.replay(j.kept)
		default:
			a.runCommand(j)
		}
	}
}

// runCommand applies one command. If it fails, all changes are undone, and then the parts that survive are made again:
// Guard after a refusal, Count after any failure. So the error and these parts commit together, and neither outlives an
// attempt that does not commit.
func (a *attempt[T]) runCommand(j *job[T]) {
	a.mark()
	passed := a.guard(j)
	counted := passed && a.count(j)
	if passed {
		a.safely(j, func() error { return a.applyCommand(j) })
	}
	if j.err == nil {
		return
	}
	a.undo()
	j.out, j.kept = Outcome{}, nil
	switch {
	case a.again == errTooManyIDs:
		return
	case errors.Is(j.err, ErrMoreRows), j.DryRun && errors.Is(j.err, ErrLater):
		// A dry run never commits, so it is rerun instead of deferred. Its next attempt may name the rows, or read them
		// anew.
		if j.incomplete++; j.incomplete < maxMore+j.Rows {
			a.again = errIncomplete
			return
		}
		j.err = rowsLocked(j.err)
	case errors.Is(j.err, ErrLater):
		j.err, j.deferred = nil, j.err
		return
	}
	a.keepSurvivors(j, passed && keepsGuard(j.err), counted)
}

// keepsGuard reports whether the effect of Guard survives the error of Apply.
func keepsGuard(err error) bool {
	f := fault.Of(err)
	return f != nil && (f.Reason.Class == fault.Refusal || f.Reason.Class == fault.Duplicate)
}

// keepSurvivors makes the parts of a failed command that survive, and records its refusal.
func (a *attempt[T]) keepSurvivors(j *job[T], guarded, counted bool) {
	err := j.err
	j.err = nil
	if guarded {
		a.guard(j)
	}
	if counted && j.err == nil {
		a.count(j)
	}
	if j.err != nil { // its first run succeeded on the same rows: a defect, or no row ids are left
		a.undo()
		return
	}
	j.err = err
	if f := fault.Of(err); f != nil && f.Reason.Class == fault.Refusal {
		a.refuse(j, *f)
	}
}

// guard runs the command's Guard, if it has one, and reports whether the command may continue.
func (a *attempt[T]) guard(j *job[T]) (passed bool) {
	if g, ok := j.Command.(Guarded[T]); ok {
		a.safely(j, func() error { return g.Guard(a.tx) })
	}
	return j.err == nil
}

// count runs the command's Count, if it has one, and reports whether it changed anything.
func (a *attempt[T]) count(j *job[T]) (counted bool) {
	if c, ok := j.Command.(Counted[T]); ok {
		a.safely(j, func() error {
			counted = c.Count(a.tx)
			return nil
		})
	}
	return counted
}

// applyCommand applies the command and encodes its answer for the key.
func (a *attempt[T]) applyCommand(j *job[T]) error {
	if j.err != nil {
		return j.err // Count panicked
	}
	answer, err := j.Command.Apply(a.tx)
	if err != nil {
		return err
	}
	record := j.keyed()
	if r, ok := answer.(Repeat); ok {
		j.out.Existed, answer, record = true, r.First, record && !r.PresentState
	}
	j.out.Answer = answer
	if !record {
		return nil
	}
	bytes, err := j.Encode(answer)
	if err != nil {
		return err
	}
	j.kept = &keyRecord{fingerprint: j.Key.Fingerprint, answer: bytes, requestID: j.RequestID}
	return nil
}

// refuse records a business refusal under the job's key.
func (a *attempt[T]) refuse(j *job[T], f fault.Fault) {
	if !j.keyed() {
		return
	}
	f.RequestID = j.RequestID
	j.err = &f
	j.kept = &keyRecord{refused: true, fingerprint: j.Key.Fingerprint, answer: f.Encode(), requestID: j.RequestID}
}

// safely runs one job's code: a panic fails that job alone.
func (a *attempt[T]) safely(j *job[T], run func() error) {
	defer func() {
		r := recover()
		switch {
		case r == nil:
		case r == any(errTooManyIDs):
			j.err = TooManyRows.New("the call writes more rows than fit into one commit: split it")
			if len(a.jobs) > 1 { // it may fit into a batch of its own
				a.again = errTooManyIDs
			}
		default:
			a.engine.metrics.panics.Inc()
			a.engine.log.Error("panic in a command", "command", fmt.Sprintf("%T", j.Command), "panic", r,
				"request_id", j.RequestID, "stack", string(debug.Stack()))
			j.err = internal(fmt.Errorf("panic: %v", r))
		}
	}()
	j.err = run()
}
