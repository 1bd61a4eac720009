// Package load generates the load of one benchmark run. It runs in a separate process, so that its CPU time is
// measured separately, and so that garbage collection of one side does not add to the latency of the other.
// Every caller is a closed loop: it calls again when it has its answer.
//
// The process reads a Spec as JSON from stdin, because an API key does not belong on a command line, and writes
// Messages as JSON lines.
package load

import "time"

// Kind is a way to make transfers.
type Kind string

const (
	// Baseline makes one PL/pgSQL call per transfer, directly on Postgres.
	Baseline Kind = "baseline"
	// HTTP is the lean client: Connect's unary protocol over hand-written HTTP/1.1.
	HTTP Kind = "http"
	// Client is the Go client.
	Client Kind = "client"
	// Stock sells units of items, over the connections of HTTP.
	Stock Kind = "stock"
	// Checkout takes orders from their creation until they are paid, over the connections of HTTP.
	Checkout Kind = "checkout"
	// CheckoutBaseline does so by one PL/pgSQL call a step.
	CheckoutBaseline Kind = "checkout-baseline"
)

// Spec configures one load process.
type Spec struct {
	Kind    Kind
	Callers int
	// Items is the number of transfers per call; 0: Transfer, otherwise TransferBatch.
	Items int
	// Keys sends a request key with every call.
	Keys bool
	// Gather lets the Go client batch concurrent calls.
	Gather bool
	// Obey lets refused HTTP callers wait for RetryInfo; otherwise they call again immediately.
	Obey bool

	URL    string // of the server
	APIKey string
	DSN    string // of the baseline
	Tenant int32  // of the baseline

	// Run is the prefix of every biz_no: four characters, unique per run on a database.
	Run string
	// Accounts are numbered 0, Stride, 2*Stride, ...; transfers go between random ones.
	Accounts, Stride int
	// Hot, if not negative, is the number of the account that all transfers pay into.
	Hot int

	// Prefix begins the names of the items that Stock sells by Strategy. Accounts is their number. Confirm: Reserve and
	// Confirm instead of Deduct.
	Prefix, Strategy string
	Confirm          bool

	// Gateway is the address where the gateway of Checkout listens, and Secret signs its callbacks. Prefix and Accounts
	// name the ordered items.
	Gateway, Secret string

	Warmup, Measure time.Duration
	// Patience is the timeout after which an outcome counts as unknown.
	Patience time.Duration
}

// Message is one output line: a mark during the run, or the result or error.
type Message struct {
	Mark   string  `json:",omitempty"` // MarkMeasure after warm-up, MarkMeasured at the end of the window
	Result *Result `json:",omitempty"`
	Error  string  `json:",omitempty"`
}

const (
	MarkMeasure  = "measure"
	MarkMeasured = "measured"
)

// Result is the result of a run. It counts transfers, not calls.
type Result struct {
	// Succeeded counts acknowledged transfers of the whole run.
	Succeeded int64
	// Refused counts transfers answered with an error: they must not be in the database.
	Refused int64
	// RefusedCalls counts calls of the measured window with a refused transfer.
	RefusedCalls int64
	// Unknown counts transfers without an answer, or with an ambiguous one.
	Unknown int64
	// FirstError is one of the errors.
	FirstError string `json:",omitempty"`

	// Measured counts transfers acknowledged in the measured window. Seconds is its length: Spec.Measure, or a
	// multiple if no call ended earlier.
	Measured int64
	Seconds  float64
	// Latencies of calls that ended in the window.
	P50, P99, Max time.Duration
}
