package commit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Command is one change, as a plain function over loaded rows. An attempt that does not commit is rerun from scratch,
// so between runs a command keeps no state but which rows it needs, and facts about rows that never change.
type Command[T any] interface {
	// Need names the rows and names that the command works with.
	Need(tx T)
	// Apply makes the change in memory. It reads no clock and does no I/O. On an error the engine undoes all its
	// changes. A fault of class Refusal is recorded under the key.
	Apply(tx T) (answer any, err error)
}

// Caller identifies the caller of a command.
type Caller struct {
	Tenant    int32
	Principal string
	KeyID     string // API key that the caller used; empty: none
	RequestID string
	// ApprovedBy is the principal that approved the command of Principal; RequestID names the approval then. Empty: the
	// command needed no approval.
	ApprovedBy string
}

// Guarded is a Command with a part that survives a refusal by Apply, such as a spent token.
type Guarded[T any] interface {
	Command[T]
	// Guard runs before Apply. If Apply fails with a fault of class Refusal or Duplicate, all changes are undone and
	// Guard runs again, so that its effect survives. After any other failure of Apply nothing survives but a Count, and
	// a call with the same key, and so the same token, may run again. If Guard fails, none of its changes survive. Its
	// fault is treated like one of Apply: class Refusal is recorded under the key; after any other class the key may
	// run again.
	Guard(tx T) error
}

// Counted is a Command with a part that survives any failure of the command, such as the count of wrong codes:
// another failing command of the same Execute must not undo the count.
type Counted[T any] interface {
	Command[T]
	// Count runs after Guard and before Apply, and reports whether it changed anything. It does not run if Guard fails.
	// If Apply fails, all changes are undone and Count runs again. It is not kept if Apply returned ErrMoreRows or
	// ErrLater, or if the batch is split: then the command runs again, with Count.
	Count(tx T) bool
}

// Repeat is the answer of Apply if the change was made before, under its own name. First is the first result. It is
// recorded under the key like any other answer, because the same call may end differently later: the order of the
// purchase may be cancelled by then, or the token spent. With PresentState, First is the present state, such as that of
// work which another caller holds. It is not recorded, because a later repeat must not get an outdated state.
type Repeat struct {
	First        any
	PresentState bool
}

// ErrMoreRows is returned by Apply if it needs rows that Need did not name. The next call of Need must name them. The
// attempt rolls back and is rerun.
var ErrMoreRows = errors.New("commit: the command needs more rows")

// ErrLater is returned by Apply if the command has to run in a later batch: its rows need more updates than one batch
// makes, such as holds that have expired, or it depends on a commit of this batch or of another process. The batch
// commits without it. A dry run is rerun instead, as after ErrMoreRows.
var ErrLater = errors.New("commit: the command has to run in a later batch")

// ErrHeld is an ErrLater of a command that depends on a row that another transaction holds, and for which the attempt
// did not wait. The command is retried every 20 to 40 ms until its deadline, and then fails with ROWS_LOCKED.
// A dry run makes its attempts without a pause.
var ErrHeld = fmt.Errorf("%w: another transaction holds a row of it", ErrLater)

// Key is a request key.
type Key struct {
	Principal   string
	Operation   string
	Key         string
	Fingerprint []byte // FingerprintSize bytes over the canonical request
	Life        time.Duration
}

// FingerprintSize is one byte of version and 16 of SHA-256.
const FingerprintSize = 17

// Submission is a command with its parameters for the engine.
type Submission[T any] struct {
	Tenant    int32
	RequestID string
	Command   Command[T]
	Key       *Key                             // nil: no answer is recorded
	Encode    func(answer any) ([]byte, error) // returns the bytes that Key records; called right after Apply
	Rows      int                              // estimated rows written: for fairness and batch size
	Bytes     int                              // estimated memory: for admission
	DryRun    bool                             // run, then roll back; the key is not used
	Direct    *Direct                          // nil: run in a batch; a dry run always does
}

// Outcome is the result of a successful command. With an error only Replayed and FirstRequestID are set.
type Outcome struct {
	// Answer is the answer of Apply. Nil if Recorded is set.
	Answer any
	// Recorded is the answer that an earlier call recorded under the key.
	Recorded []byte
	// Replayed: the key was recorded before.
	Replayed bool
	// Existed: the resource existed before, by its own name.
	Existed bool
	// FirstRequestID is the request id of the call that ran, if Replayed.
	FirstRequestID string
}

// Reasons of the engine.
var (
	KeyReused = fault.Register(fault.Reason{Name: "IDEMPOTENCY_KEY_REUSED", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The Idempotency-Key was already used with other content. Nothing was done; the metadata names the " +
			"first request."})
	KeyMissing = fault.Register(fault.Reason{Name: "IDEMPOTENCY_KEY_MISSING", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The tenant's policy requires the header Idempotency-Key for this call, and it is missing."})
	KeyInvalid = fault.Register(fault.Reason{Name: "IDEMPOTENCY_KEY_INVALID", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The Idempotency-Key is not 1 to 255 printable ASCII characters, bare or in double quotes."})
	TooManyRows = fault.Register(fault.Reason{Name: "COMMAND_TOO_LARGE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The call writes more rows than fit into one commit, or is larger than one tenant's share of the queue. " +
			"Split it."})
)

// job is a Submission in the engine.
type job[T any] struct {
	Submission[T]
	state      atomic.Int32
	awaitsRows atomic.Bool // set aside, or timed out on a lock: at its deadline it fails with ROWS_LOCKED
	callerLeft atomic.Bool // its caller has left, with OUTCOME_UNKNOWN
	wait       *waiter
	lane       *lane[T]
	deadline   time.Time // its caller's deadline: no retry after a pause or a wait begins after it

	// Guarded by inflight.mu.
	followers []*job[T] // jobs with the same key, which wait for this one
	gone      int       // number of abandoned jobs in followers

	// Kept across attempts.
	incomplete int   // number of ErrMoreRows
	attempts   int   // failed attempts of a direct command
	turn       int64 // among the blocked jobs; guarded by blockedJobs.mu
	deferred   error // ErrLater or ErrHeld: it runs after its batch has committed; nil

	// State of one attempt; valid once it has committed.
	out   Outcome
	err   error
	found *keyRecord // the record of its key before the attempt
	kept  *keyRecord // the record of its key after the commit; other than found: the attempt writes it
}

// States of a job. Its batch makes it running before each attempt. If an attempt had no effect and the next one is
// delayed, the job returns to waiting, so that a call that is cancelled meanwhile can be answered with NOT_RUN.
const (
	waiting   int32 = iota
	running         // its caller gets the answer of the engine: a cancelled call cannot withdraw it any more
	abandoned       // its call was cancelled while it was waiting: it never runs
	finished        // out and err are its answer
)

func (j *job[T]) start(w Submission[T], wait *waiter, deadline time.Time) {
	j.Submission, j.wait, j.deadline = w, wait, deadline
	j.Rows = max(1, w.Rows)
}

// reset discards the state of an attempt.
func (j *job[T]) reset() {
	j.out, j.err, j.found, j.kept = Outcome{}, nil, nil, nil
}

// records reports whether the attempt records the answer under the job's key.
func (j *job[T]) records() bool { return j.kept != j.found && j.kept != nil }

// keyed reports whether the job's answer is looked up and recorded.
func (j *job[T]) keyed() bool { return j.Key != nil && !j.DryRun }

// setRunning makes the jobs running that are not abandoned, and returns them.
func setRunning[T any](jobs []*job[T]) []*job[T] {
	live := jobs[:0]
	for _, j := range jobs {
		if j.state.Load() == running || j.state.CompareAndSwap(waiting, running) {
			live = append(live, j)
		}
	}
	return live
}

// setWaiting returns running jobs without effect to waiting, before a retry.
func setWaiting[T any](jobs []*job[T]) {
	for _, j := range jobs {
		if j.state.Load() == running {
			j.reset()
			j.state.Store(waiting)
		}
	}
}

// remaining returns the jobs that are not abandoned.
func remaining[T any](jobs []*job[T]) []*job[T] {
	live := make([]*job[T], 0, len(jobs)/2)
	for _, j := range jobs {
		if j.state.Load() != abandoned {
			live = append(live, j)
		}
	}
	return live
}

// waiter counts down the jobs of a call, then wakes the caller.
type waiter struct {
	left atomic.Int32
	done chan struct{}
}

func newWaiter(jobs int) *waiter {
	w := &waiter{done: make(chan struct{})}
	w.left.Store(int32(jobs))
	return w
}

// until waits until all jobs have ended, or ctx has.
func (w *waiter) until(ctx context.Context) {
	select {
	case <-w.done:
	case <-ctx.Done():
	}
}

func (w *waiter) finish() {
	if w.left.Add(-1) == 0 {
		close(w.done)
	}
}
