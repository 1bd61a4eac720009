package inbox

import "github.com/ledgerd/ledgerd/internal/fault"

// The inbox's reasons.
var (
	Differs = fault.Define(fault.Reason{Name: "MESSAGE_DIFFERS", Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The message id came before with another content. The state tells both hashes."})
	NotFound = fault.Define(fault.Reason{Name: "MESSAGE_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such message, or its time to be kept is over."})
	Duplicate = fault.Define(fault.Reason{Name: "MESSAGE_DUPLICATE", Class: fault.Duplicate, Code: fault.AlreadyExists, Step: fault.Ignore,
		Doc: "The message was received before, and has had its effect: acknowledge it. The state names the call that did it."})
	Dead = fault.Define(fault.Reason{Name: "MESSAGE_DEAD", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "The message failed too often, or for good, and waits for a person: acknowledge it."})
	NotDead = fault.Define(fault.Reason{Name: "MESSAGE_NOT_DEAD", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "Only a dead message can be brought back: the state tells its state."})
	Busy = fault.Define(fault.Reason{Name: "MESSAGE_BUSY", Class: fault.Conflict, Code: fault.Aborted, Step: fault.ReadAgain,
		Doc: "Somebody works on the message: do not acknowledge it, come again when his lease is over."})
	Later = fault.Define(fault.Reason{Name: "MESSAGE_LATER", Class: fault.Conflict, Code: fault.Aborted, Step: fault.ReadAgain,
		Doc: "The message failed a short time ago: do not acknowledge it, come again when its wait is over."})
	LeaseLost = fault.Define(fault.Reason{Name: "MESSAGE_LEASE_LOST", Class: fault.Conflict, Code: fault.Aborted, Step: fault.ReadAgain,
		Doc: "The fence is not that of an attempt under way: somebody else has taken the message since, or it has ended. Nothing was changed."})
)
