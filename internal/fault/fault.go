// Package fault is the one error type that callers see. Every reason is defined once, by the
// package that owns it, with its class, its Connect code and the caller's next step; everything
// else that goes wrong is a plain error, and becomes INTERNAL at the edge, where it is logged.
package fault

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"
)

// Class says what is kept of an error, and so whether the same key may run again.
type Class uint8

// The five classes.
const (
	BadRequest Class = iota + 1 // not recorded; the same key may run, corrected
	Duplicate                   // not recorded; names the first result
	Refusal                     // a business refusal: recorded under the key
	Conflict                    // not recorded; the same key may run after reading again
	System                      // nothing is kept; the same key may run
)

var classNames = [...]string{"", "bad_request", "duplicate", "business_refusal", "conflict", "system"}

func (c Class) String() string { return classNames[c] }

// Code is a Connect (and gRPC) status code, by its wire name.
type Code string

// The codes in use.
const (
	Canceled           Code = "canceled"
	InvalidArgument    Code = "invalid_argument"
	DeadlineExceeded   Code = "deadline_exceeded"
	NotFound           Code = "not_found"
	AlreadyExists      Code = "already_exists"
	PermissionDenied   Code = "permission_denied"
	ResourceExhausted  Code = "resource_exhausted"
	FailedPrecondition Code = "failed_precondition"
	Aborted            Code = "aborted"
	Internal           Code = "internal"
	Unavailable        Code = "unavailable"
	Unauthenticated    Code = "unauthenticated"
	Unimplemented      Code = "unimplemented"
)

// Step is what the caller should do next.
type Step uint8

// The next steps.
const (
	Fix Step = iota + 1
	Ignore
	NewKey
	ReadAgain
	RetrySameKey
	NewToken
)

var stepNames = [...]string{"", "fix", "ignore", "new_key", "read_again", "retry_same_key", "new_token"}

func (s Step) String() string { return stepNames[s] }

// Reason is the definition of one machine-readable reason.
type Reason struct {
	Name  string // upper snake case, on the wire
	Class Class
	Code  Code
	Step  Step
	Show  bool   // the message is fit for the end user
	Doc   string // one sentence for docs/reference/errors.md
}

var defined = map[string]*Reason{}

// Define makes a reason known. Call it in package-level variables only; a name defined twice panics.
func Define(r Reason) *Reason {
	if defined[r.Name] != nil {
		panic("fault: reason " + r.Name + " is defined twice")
	}
	defined[r.Name] = &r
	return &r
}

// All lists the defined reasons by name.
func All() []*Reason {
	all := make([]*Reason, 0, len(defined))
	for _, r := range defined {
		all = append(all, r)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// Field is one bad field of a request.
type Field struct {
	Path        string `json:"path"`
	Description string `json:"description"`
}

// Fault is one error of a reason. Do not change one that was returned.
type Fault struct {
	Reason  *Reason
	Message string
	// State is what the reason speaks of, as it is now: "available", "state", "version", ...
	State map[string]string
	// Fields names what is wrong with the request, if anything is.
	Fields []Field
	// RetryAfter is how long to wait before a retry; 0: no advice.
	RetryAfter time.Duration
	// RequestID is the call that met it first; empty: this one.
	RequestID string
	// Step is what to do next, where it is not what the reason says; 0: it is.
	Step  Step
	cause error
}

// New makes a fault. The message is a sentence for people, without secrets.
func (r *Reason) New(format string, args ...any) *Fault {
	return &Fault{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// With adds state to a fault that was just made.
func (f *Fault) With(name string, value any) *Fault {
	if f.State == nil {
		f.State = make(map[string]string, 4)
	}
	f.State[name] = fmt.Sprint(value)
	return f
}

// WithField adds a bad field.
func (f *Fault) WithField(path, description string) *Fault {
	f.Fields = append(f.Fields, Field{path, description})
	return f
}

// After adds the wait before a retry.
func (f *Fault) After(d time.Duration) *Fault { f.RetryAfter = d; return f }

// Because adds the error underneath, for the log only.
func (f *Fault) Because(err error) *Fault { f.cause = err; return f }

// NextStep is what the caller should do next.
func (f *Fault) NextStep() Step { return cmp.Or(f.Step, f.Reason.Step) }

func (f *Fault) Error() string {
	if f.cause != nil {
		return f.Reason.Name + ": " + f.Message + ": " + f.cause.Error()
	}
	return f.Reason.Name + ": " + f.Message
}

func (f *Fault) Unwrap() error { return f.cause }

// Of returns the fault in err, or nil.
func Of(err error) *Fault {
	f, _ := errors.AsType[*Fault](err)
	return f
}

// Is tells whether err is a fault of the reason.
func Is(err error, r *Reason) bool {
	f := Of(err)
	return f != nil && f.Reason == r
}

type stored struct {
	Reason    string            `json:"reason"`
	Message   string            `json:"message"`
	State     map[string]string `json:"state,omitempty"`
	Fields    []Field           `json:"fields,omitempty"`
	RequestID string            `json:"request_id"`
	Step      string            `json:"step,omitempty"`
}

// Encode gives the bytes that Decode reads: what is recorded of a refusal.
func (f *Fault) Encode() []byte {
	b, err := json.Marshal(stored{f.Reason.Name, f.Message, f.State, f.Fields, f.RequestID, stepNames[f.Step]})
	if err != nil {
		panic(err) // strings and maps of strings always encode
	}
	return b
}

// Decode reads a recorded refusal. A reason that this binary does not know stays a refusal.
func Decode(b []byte) (*Fault, error) {
	var s stored
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read a recorded refusal: %w", err)
	}
	r := defined[s.Reason]
	if r == nil {
		r = &Reason{Name: s.Reason, Class: Refusal, Code: FailedPrecondition, Step: NewKey}
	}
	return &Fault{Reason: r, Message: s.Message, State: s.State, Fields: s.Fields, RequestID: s.RequestID,
		Step: Step(max(0, slices.Index(stepNames[:], s.Step)))}, nil
}
