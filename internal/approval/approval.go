package approval

import (
	"fmt"
	"time"

	"github.com/ledgerd/ledgerd/internal/commit"
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Bounds of a request.
const (
	MinLife     = time.Minute
	MaxLife     = 30 * 24 * time.Hour
	DefaultLife = 24 * time.Hour
	MaxRequest  = 1 << 20 // bytes
)

// State is the state of a request.
type State string

const (
	Open     State = "open"
	Approved State = "approved"
	Rejected State = "rejected"
	Expired  State = "expired" // never stored: an open request past its expiry
)

// Key identifies a request.
type Key struct {
	Tenant int32
	ID     int64
}

// Request is a request without its content.
type Request struct {
	Key
	State     State
	Operation string
	Reason    string
	Principal string // the requester
	RequestID string // of the call that requested it
	CreatedAt time.Time
	ExpiresAt time.Time
	DecidedBy string // empty: it is open, or it expired
	DecidedAt time.Time
	Note      string
	// Response is the response of the command, encoded. It is set if the request is approved, except in lists.
	Response []byte
}

// Content is a request with its content and the requester's API key.
type Content struct {
	Request
	KeyID string // API key of the requester; empty: none
	Bytes []byte
}

// Reasons of approvals.
var (
	NotFound = fault.Register(fault.Reason{Name: "APPROVAL_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix, Doc: "There is no approval with this id."})
	ByRequester = fault.Register(fault.Reason{Name: "APPROVAL_BY_REQUESTER", Class: fault.BadRequest,
		Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "The caller's principal requested the approval: another principal has to approve it."})
	AlreadyRejected = fault.Register(fault.Reason{Name: "APPROVAL_REJECTED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The request was rejected or withdrawn, so it cannot be approved any more: request it again. " +
			"The metadata has the principal that decided."})
	AlreadyApproved = fault.Register(fault.Reason{Name: "APPROVAL_APPROVED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "The request was approved and done, so it can neither be rejected nor approved by its requester. " +
			"The metadata has the principal that decided."})
	TimeOver = fault.Register(fault.Reason{Name: "APPROVAL_EXPIRED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The time of the request is over: request it again. The metadata has its end."})
)

// OwnFault is the fault for an approval by the requester.
func (r *Request) OwnFault() error {
	return ByRequester.New("%s requested approval %d: another principal has to approve it", r.Principal, r.ID).
		With("approval_id", r.ID).With("requested_by", r.Principal)
}

// check refuses a request that cannot be decided at a time. Returns faults APPROVAL_REJECTED, APPROVAL_APPROVED,
// APPROVAL_EXPIRED.
func (r *Request) check(now time.Time) error {
	decided := map[State]*fault.Reason{Approved: AlreadyApproved, Rejected: AlreadyRejected}[r.State]
	switch {
	case decided != nil:
		return decided.New("approval %d was %s by %s", r.ID, r.State, r.DecidedBy).With("approval_id", r.ID).
			With("state", r.State).With("decided_by", r.DecidedBy)
	case !now.Before(r.ExpiresAt):
		return TimeOver.New("approval %d expired at %s", r.ID, r.ExpiresAt.Format(time.RFC3339)).
			With("approval_id", r.ID).With("state", Expired).
			With("expire_time", r.ExpiresAt.Format(time.RFC3339Nano))
	}
	return nil
}

// RequestIDPrefix begins the request ids of commands that approvals run. Callers cannot use such ids.
const RequestIDPrefix = "approval."

// RequestID is the request id of the command that the approval of the request runs.
func (k Key) RequestID() string { return fmt.Sprint(RequestIDPrefix, k.ID) }

// NotFound is the fault for an id without a request.
func (k Key) NotFound() error {
	return NotFound.New("there is no approval %d", k.ID).With("approval_id", k.ID).
		WithField("approval_id", "must be the id of a request that exists")
}

// RequestCommand records a request. Its answer is a Request.
type RequestCommand struct {
	commit.Caller
	Operation string
	Bytes     []byte // the content
	Details   []byte // as JSON; empty: it may hold personal data
	Reason    string
	Life      time.Duration
}

// Need names nothing: the id is new.
func (c *RequestCommand) Need(*Tx) {}

// Apply records the request.
func (c *RequestCommand) Apply(tx *Tx) (any, error) {
	return tx.add(c), nil
}

// RejectCommand rejects a request, or withdraws the caller's own. Its answer is a Request, or a commit.Repeat of it.
type RejectCommand struct {
	commit.Caller
	ID   int64
	Note string
	// Unseen: no request had this id when the rights of the caller were checked. Apply then refuses.
	Unseen bool

	row *Row
}

// Need names the request.
func (c *RejectCommand) Need(tx *Tx) { c.row = tx.Want(Key{c.Tenant, c.ID}) }

// Apply rejects the request. Rejecting a rejected request is a repeat.
func (c *RejectCommand) Apply(tx *Tx) (any, error) {
	if c.Unseen {
		return nil, c.row.Key.NotFound()
	}
	if r := c.row.Value.Request; r.State == Rejected {
		return commit.Repeat{First: r}, nil
	}
	if err := tx.Check(c.row); err != nil {
		return nil, err
	}
	return tx.Decide(c.row, Rejected, c.Caller, c.Note, nil), nil
}
