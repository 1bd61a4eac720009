package ledger

import "github.com/ledgerd/ledgerd/internal/fault"

// The ledger's reasons. Within a transfer they are looked for in the order in which they stand here,
// but a balance that would have more than 38 digits last: an account with a limit answers with that.
var (
	BizNoExistsDifferent = fault.Define(fault.Reason{Name: "BIZ_NO_EXISTS_DIFFERENT", Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The biz_no names another thing already: the state lists the fields that differ."})
	AssetNotFound = fault.Define(fault.Reason{Name: "ASSET_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such asset: make it with CreateAssets."})
	AssetExistsDifferent = fault.Define(fault.Reason{Name: "ASSET_EXISTS_DIFFERENT", Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The asset is there with another scale."})
	AccountNotFound = fault.Define(fault.Reason{Name: "ACCOUNT_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no account of this code and asset."})
	AccountExistsDifferent = fault.Define(fault.Reason{Name: "ACCOUNT_EXISTS_DIFFERENT", Class: fault.BadRequest, Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The account is there with other content: the state lists the fields that differ."})
	TransferNotFound = fault.Define(fault.Reason{Name: "TRANSFER_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such transfer."})
	HoldNotFound = fault.Define(fault.Reason{Name: "HOLD_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such hold."})
	AmountTooPrecise = fault.Define(fault.Reason{Name: "AMOUNT_TOO_PRECISE", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The amount has more decimals than its asset. Nothing is rounded."})
	AmountTooLarge = fault.Define(fault.Reason{Name: "AMOUNT_TOO_LARGE", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The amount, or the balance that it would make, has more than 38 digits in minor units."})
	CursorHistoryEnded = fault.Define(fault.Reason{Name: "CURSOR_HISTORY_ENDED", Class: fault.Conflict, Code: fault.FailedPrecondition, Step: fault.ReadAgain,
		Doc: "The database was restored, or a standby took over, after the cursor was given: commits that were seen may be gone. Watch from \"0\", or anew with an empty cursor and read what lies before it with ListEntries."})
	StaleVersion = fault.Define(fault.Reason{Name: "STALE_VERSION", Class: fault.Conflict, Code: fault.Aborted, Step: fault.ReadAgain,
		Doc: "The account has another version than the condition names: somebody was faster."})
	BalanceConditionFailed = fault.Define(fault.Reason{Name: "BALANCE_CONDITION_FAILED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account has less than the condition asks for."})
	AccountClosed = fault.Define(fault.Reason{Name: "ACCOUNT_CLOSED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account is closed: nothing moves any more."})
	AccountFrozen = fault.Define(fault.Reason{Name: "ACCOUNT_FROZEN", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The account is frozen: nothing goes out."})
	InsufficientFunds = fault.Define(fault.Reason{Name: "INSUFFICIENT_FUNDS", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "Less is available than is to go out. The state tells what is available now."})
	AvailableUnbounded = fault.Define(fault.Reason{Name: "AVAILABLE_UNBOUNDED", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The account has no least balance, so all that is available has no amount."})
	BalanceLimitExceeded = fault.Define(fault.Reason{Name: "BALANCE_LIMIT_EXCEEDED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The account would have more than its greatest balance."})
	LimitViolated = fault.Define(fault.Reason{Name: "LIMIT_VIOLATED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account stands outside of the limit that it is to get."})
	AccountNotEmpty = fault.Define(fault.Reason{Name: "ACCOUNT_NOT_EMPTY", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account has a balance or open holds, so it cannot be closed."})
	AlreadyReversed = fault.Define(fault.Reason{Name: "ALREADY_REVERSED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The transfer was reversed before, under another biz_no: the state names the reversal."})
	HoldExpired = fault.Define(fault.Reason{Name: "HOLD_EXPIRED", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The hold's time is over: what it kept was given back."})
	HoldNotHeld = fault.Define(fault.Reason{Name: "HOLD_NOT_HELD", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "A capture or a release has ended the hold already: the state says which, captured or released."})
	CaptureExceedsHold = fault.Define(fault.Reason{Name: "CAPTURE_EXCEEDS_HOLD", Class: fault.Refusal, Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The capture asks for more than the hold still keeps."})
	DestinationMissing = fault.Define(fault.Reason{Name: "DESTINATION_MISSING", Class: fault.BadRequest, Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "Neither the capture nor its hold names an account to pay."})
)
