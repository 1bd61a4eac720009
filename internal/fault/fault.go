// Package fault is the error type that callers see. Every reason is defined once, by the package that owns it,
// with its class, its Connect code and the caller's next step. All other errors are plain errors; the edge logs
// them and returns INTERNAL.
package fault

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// Class determines what is recorded of an error, and so whether the same key may run again.
type Class uint8

const (
	BadRequest Class = iota + 1 // not recorded; the same key may run with a corrected request
	Duplicate                   // not recorded; names the first result
	Refusal                     // a business refusal: recorded under the key
	Conflict                    // not recorded; the same key may run after reading again
	System                      // nothing recorded; the same key may run
)

var classNames = [...]string{"", "bad_request", "duplicate", "business_refusal", "conflict", "system"}

func (c Class) String() string { return classNames[c] }

// Code is a Connect (and gRPC) status code, by its wire name.
type Code string

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

// Step is the caller's recommended next step.
type Step uint8

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
	Show  bool   // the message may be shown to the end user
	Doc   string // one sentence for docs/reference/errors.md
}

var defined = map[string]*Reason{}

// Register registers a reason. Use it in package-level variables only; a duplicate name panics.
func Register(r Reason) *Reason {
	if defined[r.Name] != nil {
		panic("fault: reason " + r.Name + " is defined twice")
	}
	defined[r.Name] = &r
	return &r
}

// All returns the defined reasons by name.
func All() []*Reason {
	all := make([]*Reason, 0, len(defined))
	for _, r := range defined {
		all = append(all, r)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	return all
}

// Field is one invalid field of a request.
type Field struct {
	Path        string `json:"path"`
	Description string `json:"description"`
}

// Fault is one error of a reason. Treat a returned Fault as immutable.
type Fault struct {
	Reason  *Reason
	Message string
	// Metadata has the current values that the reason refers to: "available", "state", "version", ...
	Metadata map[string]string
	// Fields are the invalid fields of the request, if any.
	Fields []Field
	// RetryAfter is the delay before a retry; 0: no advice.
	RetryAfter time.Duration
	// RequestID is the first call that got this fault; empty: the current one.
	RequestID string
	// Step overrides the reason's next step; 0: no override.
	Step  Step
	cause error
}

// New makes a fault. The message is a sentence for people and must not contain secrets.
func (r *Reason) New(format string, args ...any) *Fault {
	return &Fault{Reason: r, Message: fmt.Sprintf(format, args...)}
}

// With adds a value to the metadata of a newly made fault.
func (f *Fault) With(name string, value any) *Fault {
	if f.Metadata == nil {
		f.Metadata = make(map[string]string, 4)
	}
	f.Metadata[name] = fmt.Sprint(value)
	return f
}

// WithField adds an invalid field.
func (f *Fault) WithField(path, description string) *Fault {
	f.Fields = append(f.Fields, Field{path, description})
	return f
}

// InvalidField makes a FIELD_INVALID about one field. The message names the field and its problem.
func InvalidField(path, format string, args ...any) *Fault {
	problem := fmt.Sprintf(format, args...)
	return FieldInvalid.New("%s: %s", path, problem).WithField(path, problem)
}

// MaxFields bounds the fields in an error, which must fit into a gRPC trailer.
const MaxFields = 20

// About makes a fault about invalid fields, of which it lists at most MaxFields. The message has the problem of the
// first one, and the number of the others.
func (r *Reason) About(fields []Field) *Fault {
	f := r.New("%s: %s%s", fields[0].Path, fields[0].Description, AndMore(len(fields)-1))
	f.Fields = slices.Clip(fields[:min(len(fields), MaxFields)])
	return f
}

// AndMore ends a message that names one invalid field of several.
func AndMore(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

// In returns err with its fields below path, such as "items[2].". The code that checks a part of a request does not
// know the path of that part.
func In(path string, err error) error {
	return Rename(err, func(name string) string { return path + name })
}

// Rename returns err with other names of its fields.
func Rename(err error, name func(path string) string) error {
	f := Of(err)
	if f == nil || len(f.Fields) == 0 {
		return err
	}
	own := *f
	own.Fields = slices.Clone(f.Fields)
	for i := range own.Fields {
		own.Fields[i].Path = name(f.Fields[i].Path)
	}
	if rest, ok := strings.CutPrefix(f.Message, f.Fields[0].Path+": "); ok {
		own.Message = own.Fields[0].Path + ": " + rest
	}
	return &own
}

// OtherCall is passed to Differing instead of fields if the first request with the same number was made by another kind
// of call, such as a Capture instead of a Transfer.
const OtherCall = "call"

// Differing adds the fields in which a request differs from the first one with the same number: to the message, to the
// metadata value "differs", and as invalid fields. number is the name of the field with the number.
func (f *Fault) Differing(fields []string, number string) *Fault {
	if slices.Contains(fields, OtherCall) {
		f.Message += ", by another kind of call"
		f.WithField(number, "is used by another kind of call")
		return f.With("differs", OtherCall)
	}
	f.Message += ", with other content: " + strings.Join(fields, ", ")
	for _, name := range fields {
		f.WithField(name, "differs from the first request with this "+number)
	}
	return f.With("differs", strings.Join(fields, ","))
}

// After sets the delay before a retry.
func (f *Fault) After(d time.Duration) *Fault { f.RetryAfter = d; return f }

// Because sets the underlying error, which is only logged.
func (f *Fault) Because(err error) *Fault { f.cause = err; return f }

// NextStep is the caller's recommended next step.
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

// Is reports whether err is a fault of the reason.
func Is(err error, r *Reason) bool {
	f := Of(err)
	return f != nil && f.Reason == r
}

type stored struct {
	Reason    string            `json:"reason"`
	Message   string            `json:"message"`
	Metadata  map[string]string `json:"metadata,omitempty"`
	Fields    []Field           `json:"fields,omitempty"`
	RequestID string            `json:"request_id"`
	Step      string            `json:"step,omitempty"`
}

// Encode encodes a refusal for recording; see Decode.
func (f *Fault) Encode() []byte {
	b, err := json.Marshal(stored{f.Reason.Name, f.Message, f.Metadata, f.Fields, f.RequestID, stepNames[f.Step]})
	if err != nil {
		panic(err) // strings and maps of strings always encode
	}
	return b
}

// Decode decodes a recorded refusal. A reason unknown to this binary remains a refusal.
func Decode(b []byte) (*Fault, error) {
	var s stored
	if err := json.Unmarshal(b, &s); err != nil {
		return nil, fmt.Errorf("read a recorded refusal: %w", err)
	}
	r := defined[s.Reason]
	if r == nil {
		r = &Reason{Name: s.Reason, Class: Refusal, Code: FailedPrecondition, Step: NewKey}
	}
	return &Fault{Reason: r, Message: s.Message, Metadata: s.Metadata, Fields: s.Fields, RequestID: s.RequestID,
		Step: Step(max(0, slices.Index(stepNames[:], s.Step)))}, nil
}
