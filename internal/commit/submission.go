package commit

import (
	"errors"
	"time"

	"github.com/ledgerd/ledgerd/internal/fault"
)

// Command is one change, as a plain function over loaded rows. It may run more than once (an attempt
// that did not commit runs again from scratch), so it keeps nothing between runs but what it learnt of
// rows that never change.
type Command[T any] interface {
	// Need tells the transaction which rows and names the command works with.
	Need(tx T)
	// Apply makes the change in memory. It reads no clock and does no I/O. On an error the engine
	// undoes all that it did. A fault of class Refusal is recorded under the key.
	Apply(tx T) (answer any, err error)
}

// Caller is on whose behalf a command runs.
type Caller struct {
	Tenant    int32
	Principal string
	RequestID string
}

// Guarded is a Command with a part that stays when Apply refuses: a spent token, a counted try.
type Guarded[T any] interface {
	Command[T]
	// Guard runs before Apply, and once more when Apply has failed and all was undone, if its effect is to
	// stay: when Apply failed with a fault of class Refusal or Duplicate. After another failure of Apply,
	// or its own, nothing of it stays, and the same key, and so the same token, may run again.
	Guard(tx T) error
}

// Counted is a Command with a part that stays however the command ends, such as a wrong try: a failure
// of a command beside it must not make the try free.
type Counted[T any] interface {
	Command[T]
	// Count runs when Guard has passed, before Apply, and reports whether it changed anything. It runs once
	// more when Apply has failed and all was undone.
	Count(tx T) bool
}

// Repeat is what Apply answers when it was done before, under its own name: First is the
// first result. It is not recorded under the key.
type Repeat struct{ First any }

// ErrMoreRows is what Apply returns when it found that it needs rows that Need did not name; the
// command must name them when Need is called again. The attempt rolls back and runs again.
var ErrMoreRows = errors.New("commit: the command needs more rows")

// ErrLater is what Apply returns when its rows have more to bring up to date than a participant does in
// one batch: the batch commits without the command, which then runs in another one.
var ErrLater = errors.New("commit: the command's rows are not up to date")

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

// Submission is a command on its way, with what the engine must know of it.
type Submission[T any] struct {
	Tenant    int32
	RequestID string
	Command   Command[T]
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
	// Existed: the resource was there before, by its own name.
	Existed bool
	// FirstRequestID is the request id of the call that ran, when Replayed.
	FirstRequestID string
}

// Reasons of the engine.
var (
	KeyReused = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_REUSED", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The Idempotency-Key was already used with other content. Nothing was done; the state names the first request."})
	KeyMissing = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_MISSING", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The tenant's policy requires the header Idempotency-Key for this call, and it is missing."})
	KeyInvalid = fault.Define(fault.Reason{Name: "IDEMPOTENCY_KEY_INVALID", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The Idempotency-Key is not 1 to 255 printable ASCII characters, bare or in double quotes."})
	TooManyRows = fault.Define(fault.Reason{Name: "COMMAND_TOO_LARGE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The call writes more rows than fit into one commit, or is larger than one tenant's share of the queue. Split it."})
)
