// Package load makes the load of one benchmark run. It runs in a process of its own, so that its CPU
// time is told apart from the server's, and so that no collector pause of one is a latency of the
// other. Every caller is a closed loop: it asks again when it has its answer.
//
// The process reads a Spec as JSON from its standard input, because an API key does not belong on a
// command line, and writes Messages as JSON lines.
package load

import "time"

// Kind is the way a transfer takes.
type Kind string

const (
	// Baseline is one PL/pgSQL call a transfer, straight at Postgres.
	Baseline Kind = "baseline"
	// HTTP is the lean client: Connect's unary protocol in hand-written HTTP/1.1.
	HTTP Kind = "http"
	// Client is our own Go client.
	Client Kind = "client"
)

// Spec says what one load process does.
type Spec struct {
	Kind    Kind
	Callers int
	// Items is how many transfers a call carries; 0: Transfer, else TransferBatch.
	Items int
	// Keys sends a request key with every call.
	Keys bool
	// Gather has the Go client gather concurrent calls.
	Gather bool
	// Obey has refused callers of HTTP wait as RetryInfo says; otherwise they call again at once.
	Obey bool

	URL    string // of the server
	APIKey string
	DSN    string // of the baseline
	Tenant int32  // of the baseline

	// Run begins every biz_no: four characters, another for every run on a database.
	Run string
	// Accounts are those of numbers 0, Stride, 2*Stride, ...; transfers go between random ones.
	Accounts, Stride int
	// Hot, if it is not below 0, is the number of the account that all transfers pay into.
	Hot int

	Warmup, Measure time.Duration
	// Patience is how long an answer may take before its outcome counts as unknown.
	Patience time.Duration
}

// Message is one line of the load process: the name of a mark on its way, or its result or error.
type Message struct {
	Mark   string  `json:",omitempty"` // MarkMeasure when warm, MarkMeasured when the window is over
	Result *Result `json:",omitempty"`
	Error  string  `json:",omitempty"`
}

// Marks.
const (
	MarkMeasure  = "measure"
	MarkMeasured = "measured"
)

// Result is what came of a run. Transfers are counted, not calls.
type Result struct {
	// Succeeded were acknowledged, from the first to the last of the whole run.
	Succeeded int64
	// Refused were answered with an error: they must not be in the database.
	Refused int64
	// RefusedCalls are the calls of the measured window in which a transfer was refused.
	RefusedCalls int64
	// Unknown had no answer, or one that leaves open what happened.
	Unknown int64
	// FirstError is one of the errors.
	FirstError string `json:",omitempty"`

	// Measured were acknowledged in the measured window of Seconds: Spec.Measure, or a multiple of it where
	// no call has ended before.
	Measured int64
	Seconds  float64
	// Latencies of the calls that ended in the window.
	P50, P99, Max time.Duration
}
