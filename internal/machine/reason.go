package machine

import (
	"github.com/ledgerd/ledgerd/internal/fault"
)

// Reasons of machines.
var (
	Invalid = fault.Register(fault.Reason{Name: "MACHINE_INVALID", Class: fault.BadRequest, Code: fault.InvalidArgument,
		Step: fault.Fix,
		Doc:  "The definition of the machine breaks a rule: the fields name each problem. Nothing was stored."})
	NotFound = fault.Register(fault.Reason{Name: "MACHINE_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no machine of this name, or it has no such version."})
	InstanceNotFound = fault.Register(fault.Reason{Name: "INSTANCE_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix,
		Doc: "The machine has no instance of this key."})
	InstanceExistsDifferent = fault.Register(fault.Reason{Name: "INSTANCE_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The machine has an instance of this key that was created with another owner or timer: " +
			"the metadata has its id, its state now, and the fields that differ."})
	StateTaken = fault.Register(fault.Reason{Name: "STATE_TAKEN", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey,
		Doc: "The instance is in the state already, for another cause: the metadata names that cause. " +
			"Nothing was written."})
	NotAllowed = fault.Register(fault.Reason{Name: "MOVE_NOT_ALLOWED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The machine has no such move: the metadata has the instance's state now, " +
			"and the states to which it can move."})
	StateChanged = fault.Register(fault.Reason{Name: "STATE_CHANGED", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc: "The instance is not, or no longer, in the state or at the revision that the call names: " +
			"the metadata has both as they are now. Nothing was written."})
	NotYours = fault.Register(fault.Reason{Name: "MOVE_NOT_YOURS", Class: fault.Refusal, Code: fault.PermissionDenied,
		Step: fault.NewKey,
		Doc: "The machine allows the move, but not to this caller: only to its timer, to a flow of ledgerd, " +
			"or to other principals."})
	InputMissing = fault.Register(fault.Reason{Name: "MOVE_INPUT_MISSING", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The move requires inputs, a reason, or, as a move back, from or revision, that the call does not have: " +
			"the fields name them. Nothing was written."})
	TooEarly = fault.Register(fault.Reason{Name: "MOVE_TOO_EARLY", Class: fault.Conflict,
		Code: fault.FailedPrecondition,
		Step: fault.ReadAgain,
		Doc: "The instance has to stay in its state for longer before this move. Nothing was written; " +
			"the metadata has the time from which it is possible, RetryInfo the time left."})
)

func notFound(n Name) *fault.Fault {
	return NotFound.New("there is no machine %s", n.Machine).With("machine", n.Machine).
		WithField("machine", "must be a machine that exists")
}

func instanceNotFound(k Key) *fault.Fault {
	return InstanceNotFound.New("machine %s has no instance %s", k.Machine, k.Key).With("machine", k.Machine).
		With("key", k.Key).WithField("key", "must be the key of an instance that exists")
}

// fault returns a fault about an instance, with its state.
func (s *stored) fault(r *fault.Reason, format string, args ...any) *fault.Fault {
	f := r.New(format, args...).With("machine", s.Machine).With("key", s.Key.Key).With("state", s.State).
		With("revision", s.Revision).With("cause", s.Cause)
	if state := s.def.states[s.State]; state != nil && state.Label != "" {
		f = f.With("label", state.Label)
	}
	return f
}
