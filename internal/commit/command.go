package commit

import (
	"errors"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Command is one change, as a plain function over loaded rows. It may run more than once (a batch
// that lost a race runs again from scratch), so it keeps nothing between runs but what it learnt of
// rows that never change.
type Command[B any] interface {
	// Need tells the books which rows and names the command works with.
	Need(books B)
	// Apply makes the change in memory. It reads no clock and does no I/O. On an error the engine
	// undoes whatever it did. A fault of class Refusal is recorded under the key.
	Apply(books B) (answer any, err error)
}

// Caller is on whose behalf a command runs.
type Caller struct {
	Tenant    int32
	Principal string
	RequestID string
}

// Guarded is a Command with a part that stays when Apply refuses: a spent token, a counted try.
type Guarded[B any] interface {
	Command[B]
	// Guard runs before Apply. What it did stays when Apply answers, or fails with a fault of class
	// Refusal or Duplicate. It is undone when it fails itself, and with everything else when Apply
	// fails in another way, after which the same key, and so the same token, may run again.
	Guard(books B) error
}

// Counted is a Command with a part that stays whatever else becomes of the command: a wrong try, which
// a failure of what stands beside it must not make free.
type Counted[B any] interface {
	Command[B]
	// Count runs when Guard has passed, before Apply, and tells whether it changed anything. It is undone only
	// with the whole batch, after which every command runs again.
	Count(books B) bool
}

// Repeat is what Apply answers when the thing was done before, under its own name: First is the
// first result. It is not recorded under the key.
type Repeat struct{ First any }

// ErrMoreRows is what Apply returns when it found that it needs rows that Need did not name; the
// command must name them when Need is called again. The batch rolls back and runs again.
var ErrMoreRows = errors.New("commit: the command needs more rows")

// ErrLater is what Apply returns when there was more to bring up to date in its rows than a table does
// in one batch: the batch commits without the command, which then runs in another one.
var ErrLater = errors.New("commit: the command's rows are not up to date")

// Table is one domain's rows within one batch. The methods are called in the order in which they
// stand here; each queues at most a few statements and reads their rows.
type Table interface {
	// Discover reads columns that never change, without a lock, to find the rows to lock.
	Discover(p *Pipe)
	// Rows adds a hash of every row that Lock is about to lock: the same for the same row, throughout
	// the process.
	Rows(hashes []uint64) []uint64
	// Lock locks and loads rows, sorted by key. FOR NO KEY UPDATE.
	Lock(p *Pipe)
	// Lookup reads what the locks guard and what names are taken, all locks being held.
	Lookup(p *Pipe)
	// Latest is the newest time in the locked rows, or zero: the batch's time is never before it.
	Latest() time.Time
	// Start gives the table the time of the batch and its source of ids.
	Start(now time.Time, newID func() int64)
	// Resolve reads what hangs on what was just found. Called until no table queues anything.
	Resolve(p *Pipe)
	// Mark is called before every command; Undo takes back what was changed since.
	Mark()
	Undo()
	// Flush writes what changed, one statement a table, sorted by key.
	Flush(p *Pipe)
}

// Ending is a Table that is told how its transaction ended.
type Ending interface {
	Table
	// Ended is called once after every Flush that began, as soon as the end of its transaction is known, before
	// anybody is answered, and holding nothing of the engine. Committed: it has, and what it wrote lasts. Not: it
	// has not, it was a dry run, had nothing to write, or nobody knows whether it lasts. It must not block.
	Ended(committed bool)
}

// Books are the tables that commands work on. Tables is asked once, when every command has named its
// needs: it tells those tables that are needed, in the one order in which all batches lock them.
type Books interface {
	Tables() []Table
}

// Key is a request key: it names one attempt's answer.
type Key struct {
	Principal   string
	Operation   string
	Key         string
	Fingerprint []byte // FingerprintSize bytes over the canonical request
	Life        time.Duration
}

// FingerprintSize is one byte of version and 16 of SHA-256.
const FingerprintSize = 17

// Work is a command on its way, with what the engine must know of it.
type Work[B any] struct {
	Tenant    int32
	RequestID string
	Command   Command[B]
	Key       *Key                             // nil: nothing is recorded
	Encode    func(answer any) ([]byte, error) // what is recorded of an answer; needed with a Key
	Rows      int                              // about how many rows it writes: for fairness and batch size
	Bytes     int                              // about how much memory it holds: for admission
	DryRun    bool                             // run it all, then roll back; the key is not used
}

// Outcome is how a command ended well.
type Outcome struct {
	// Answer is what Apply returned; nil when Recorded is set.
	Answer any
	// Recorded is the answer kept under the key by an earlier call.
	Recorded []byte
	// Replayed: the key was there before.
	Replayed bool
	// Existed: the thing was there before, by its own name.
	Existed bool
	// FirstRequestID is the request id of the call that ran, when Replayed.
	FirstRequestID string
}

// Reasons of the engine.
var (
	KeyReused = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_REUSED", Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The Idempotency-Key was used before with other content. Nothing was done; the state names the first request."})
	KeyMissing = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_MISSING", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The tenant demands an Idempotency-Key of this call, and there is none."})
	KeyInvalid = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_INVALID", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The Idempotency-Key is not 1 to 255 printable ASCII characters, bare or in double quotes."})
	TooManyRows = fault.Define(fault.Reason{Name: "COMMAND_TOO_LARGE", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "One command writes more rows than one commit may, or a call is larger than what one tenant may have waiting. Split it."})
)
