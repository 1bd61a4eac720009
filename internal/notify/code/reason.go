package code

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of codes.
var (
	TooSoon = fault.Register(fault.Reason{Name: "CODE_TOO_SOON", Class: fault.Conflict, Code: fault.ResourceExhausted,
		Step: fault.ReadAgain, Show: true,
		Doc: "A code of this type was sent to the recipient only a moment ago. Nothing was sent; " +
			"the metadata and RetryInfo have the seconds to wait."})
	TooMany = fault.Register(fault.Reason{Name: "CODE_TOO_MANY", Class: fault.Conflict, Code: fault.ResourceExhausted,
		Step: fault.ReadAgain, Show: true,
		Doc: "The recipient's daily limit of codes is reached. Nothing was sent; the metadata and RetryInfo have the " +
			"seconds to wait."})
	TriesSpent = fault.Register(fault.Reason{Name: "CODE_TRIES_SPENT", Class: fault.Conflict,
		Code: fault.ResourceExhausted, Step: fault.ReadAgain, Show: true,
		Doc: "The recipient's daily limit of wrong codes, over all types, is reached. No code was verified or sent; " +
			"the metadata and RetryInfo have the seconds to wait."})
	Wrong = fault.Register(fault.Reason{Name: "CODE_WRONG", Class: fault.Refusal, Code: fault.FailedPrecondition,
		Step: fault.NewKey, Show: true,
		Doc: "The code is wrong or no longer valid, and the call requires the right one. The try was counted; " +
			"the metadata has tries_left."})
	Unfit = fault.Register(fault.Reason{Name: "CODE_TEMPLATE_UNFIT", Class: fault.BadRequest,
		Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "The code's template has no variable code of kind string, or the channel has neither a template for " +
			"codes nor a built-in one."})
)
