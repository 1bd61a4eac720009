package code

import "github.com/ledgerd/ledgerd/internal/fault"

// The reasons of codes.
var (
	TooSoon = fault.Define(fault.Reason{Name: "CODE_TOO_SOON", Class: fault.Conflict, Code: fault.ResourceExhausted, Step: fault.ReadAgain, Show: true,
		Doc: "A code for the same was sent to the recipient a moment ago. Nothing was sent; the state and RetryInfo tell the seconds left."})
	TooMany = fault.Define(fault.Reason{Name: "CODE_TOO_MANY", Class: fault.Conflict, Code: fault.ResourceExhausted, Step: fault.ReadAgain, Show: true,
		Doc: "As many codes were sent to the recipient as a day may have. Nothing was sent; the state and RetryInfo tell the seconds left."})
	TriesSpent = fault.Define(fault.Reason{Name: "CODE_TRIES_SPENT", Class: fault.Conflict, Code: fault.ResourceExhausted, Step: fault.ReadAgain, Show: true,
		Doc: "As many wrong codes were tried for the recipient as a day may have, whatever they were for. Nothing was tried or sent; the state and RetryInfo tell the seconds left."})
	Wrong = fault.Define(fault.Reason{Name: "CODE_WRONG", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The code is not the one that was sent, or not any more, and the call requires the right one. The try was counted; the state tells tries_left."})
	Unfit = fault.Define(fault.Reason{Name: "CODE_TEMPLATE_UNFIT", Class: fault.BadRequest, Code: fault.FailedPrecondition, Step: fault.Fix,
		Doc: "The template for the code has no variable of kind string with the name code, or there is none for the channel and no built-in one."})
)
