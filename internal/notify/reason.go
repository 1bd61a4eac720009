package notify

import "github.com/ledgerd/ledgerd/internal/fault"

// The outbox's reasons.
var (
	BizNoExistsDifferent = fault.Define(fault.Reason{Name: "NOTIFY_BIZ_NO_EXISTS_DIFFERENT", Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The biz_no is that of another message. The state names the first one, and in what it differs."})
	NotFound = fault.Define(fault.Reason{Name: "NOTIFY_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such message to be sent."})
	Limited = fault.Define(fault.Reason{Name: "NOTIFY_LIMITED", Class: fault.Conflict, Code: fault.ResourceExhausted, Step: fault.ReadAgain,
		Doc: "As many messages were accepted as a limit allows. Nothing was kept; the state tells which limit, and RetryInfo when there is room."})
	BeingSent = fault.Define(fault.Reason{Name: "NOTIFY_BEING_SENT", Class: fault.Conflict, Code: fault.Aborted, Step: fault.ReadAgain,
		Doc: "The message is on its way: it cannot be cancelled any more, unless the attempt fails."})
	NotCancellable = fault.Define(fault.Reason{Name: "NOTIFY_NOT_CANCELLABLE", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "The message was sent, or may have been: the state tells its state."})
	NotParked = fault.Define(fault.Reason{Name: "NOTIFY_NOT_PARKED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.Ignore,
		Doc: "Only a message that is dead or unknown can be requeued, and none that is never to be sent twice: the state tells its state."})
	ContentGone = fault.Define(fault.Reason{Name: "NOTIFY_CONTENT_GONE", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "What the message says was removed after its life: it cannot be sent again."})
	ContentTooLarge = fault.Define(fault.Reason{Name: "NOTIFY_CONTENT_TOO_LARGE", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "A message, with its attachments, is larger than 1 MiB."})
)
