package inbox

import "github.com/ledgerd/ledgerd/internal/fault"

// The inbox's reasons.
var (
	Differs = fault.Register(fault.Reason{Name: "MESSAGE_DIFFERS", Class: fault.BadRequest, Code: fault.AlreadyExists,
		Step: fault.Fix,
		Doc: "The message id was received before with other content. The metadata has both hashes, " +
			"and the message's state."})
	NotFound = fault.Register(fault.Reason{Name: "MESSAGE_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no such message, or its record has expired. The metadata has its key."})
	Duplicate = fault.Register(fault.Reason{Name: "MESSAGE_DUPLICATE", Class: fault.Duplicate,
		Code: fault.AlreadyExists,
		Step: fault.Ignore,
		Doc:  "The message was already processed: acknowledge it. The metadata names the call that processed it."})
	Dead = fault.Register(fault.Reason{Name: "MESSAGE_DEAD", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.Ignore,
		Doc:  "The message failed too often, or permanently, and waits for an operator: acknowledge it."})
	NotDead = fault.Register(fault.Reason{Name: "MESSAGE_NOT_DEAD", Class: fault.Refusal,
		Code: fault.FailedPrecondition,
		Step: fault.Ignore,
		Doc:  "Only a dead message can be requeued: the metadata has the message's state."})
	Busy = fault.Register(fault.Reason{Name: "MESSAGE_BUSY", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc: "Another consumer is processing the message: do not acknowledge it, and try again when that " +
			"lease is over."})
	Later = fault.Register(fault.Reason{Name: "MESSAGE_LATER", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc:  "The message failed recently: do not acknowledge it, and try again after its backoff."})
	LeaseLost = fault.Register(fault.Reason{Name: "MESSAGE_LEASE_LOST", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc: "The fence is not that of a running attempt: another consumer has taken over the message, " +
			"or the attempt has ended. Nothing was changed."})
)
