package notify

import "github.com/ledgerd/ledgerd/internal/fault"

// The outbox's reasons.
var (
	BizNoExistsDifferent = fault.Register(fault.Reason{Name: "NOTIFY_BIZ_NO_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The biz_no is already used by another message. The metadata names the first message and the " +
			"fields that differ."})
	NotFound = fault.Register(fault.Reason{Name: "NOTIFY_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no such message."})
	Limited = fault.Register(fault.Reason{Name: "NOTIFY_LIMITED", Class: fault.Conflict, Code: fault.ResourceExhausted,
		Step: fault.ReadAgain,
		Doc: "A limit on accepted messages is reached. Nothing was kept; the metadata names the limit, " +
			"and RetryInfo says when to try again."})
	BeingSent = fault.Register(fault.Reason{Name: "NOTIFY_BEING_SENT", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc:  "The message is being sent: it can only be cancelled if this attempt fails."})
	NotCancellable = fault.Register(fault.Reason{Name: "NOTIFY_NOT_CANCELLABLE", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "The message was sent, or may have been sent: the metadata has the message's state."})
	NotParked = fault.Register(fault.Reason{Name: "NOTIFY_NOT_PARKED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "Only a message that is dead or unknown can be requeued, and only if its on_unknown is not never: " +
			"the metadata has both."})
	ContentGone = fault.Register(fault.Reason{Name: "NOTIFY_CONTENT_GONE", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "The message's content was deleted at the end of content_life: it cannot be sent again."})
	ContentTooLarge = fault.Register(fault.Reason{Name: "NOTIFY_CONTENT_TOO_LARGE", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The message, with its attachments, is larger than 1 MiB."})
)
