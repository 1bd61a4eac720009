package ledger

import "github.com/ledgerd/ledgerd/internal/fault"

// Reasons of the ledger, in the order in which a transfer checks them. The limit of 38 digits is checked last,
// so an account with a limit answers with that limit.
var (
	BizNoExistsDifferent = fault.Register(fault.Reason{Name: "BIZ_NO_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The biz_no is already used with other content: the metadata lists the fields that differ."})
	AssetNotFound = fault.Register(fault.Reason{Name: "ASSET_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no such asset: create it with CreateAssets."})
	AssetExistsDifferent = fault.Register(fault.Reason{Name: "ASSET_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The asset exists with another scale."})
	AccountNotFound = fault.Register(fault.Reason{Name: "ACCOUNT_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no account with this code and asset."})
	AccountExistsDifferent = fault.Register(fault.Reason{Name: "ACCOUNT_EXISTS_DIFFERENT", Class: fault.BadRequest,
		Code: fault.AlreadyExists, Step: fault.Fix,
		Doc: "The account exists with other content: the metadata lists the fields that differ."})
	TransferNotFound = fault.Register(fault.Reason{Name: "TRANSFER_NOT_FOUND", Class: fault.BadRequest,
		Code: fault.NotFound, Step: fault.Fix,
		Doc: "There is no such transfer."})
	HoldNotFound = fault.Register(fault.Reason{Name: "HOLD_NOT_FOUND", Class: fault.BadRequest, Code: fault.NotFound,
		Step: fault.Fix,
		Doc:  "There is no such hold."})
	CursorEpochEnded = fault.Register(fault.Reason{Name: "CURSOR_EPOCH_ENDED", Class: fault.Conflict,
		Code: fault.FailedPrecondition, Step: fault.ReadAgain,
		Doc: "The database was restored, or a standby was promoted, after the cursor was issued: " +
			"commits that the caller has seen may be lost. Watch from \"0\", or with an empty cursor after reading " +
			"the earlier entries with ListEntries."})
	StaleVersion = fault.Register(fault.Reason{Name: "STALE_VERSION", Class: fault.Conflict, Code: fault.Aborted,
		Step: fault.ReadAgain,
		Doc: "The account's version is not the one in the condition: another call has changed the account " +
			"since it was read."})
	BalanceConditionFailed = fault.Register(fault.Reason{Name: "BALANCE_CONDITION_FAILED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account's balance is below balance_at_least of the condition."})
	AccountClosed = fault.Register(fault.Reason{Name: "ACCOUNT_CLOSED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account is closed: it can be neither debited nor credited."})
	AccountFrozen = fault.Register(fault.Reason{Name: "ACCOUNT_FROZEN", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The account is frozen: it can only be credited."})
	InsufficientFunds = fault.Register(fault.Reason{Name: "INSUFFICIENT_FUNDS", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The available balance is less than the amount. The metadata has the available balance."})
	AvailableUnbounded = fault.Register(fault.Reason{Name: "AVAILABLE_UNBOUNDED", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "The account has no min_balance, so its available balance is unlimited and cannot be moved as a whole: " +
			"name an amount."})
	BalanceLimitExceeded = fault.Register(fault.Reason{Name: "BALANCE_LIMIT_EXCEEDED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey, Show: true,
		Doc: "The account's balance would exceed its max_balance."})
	AccountLimitViolated = fault.Register(fault.Reason{Name: "ACCOUNT_LIMIT_VIOLATED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account's balance is not within its new limits."})
	AccountNotEmpty = fault.Register(fault.Reason{Name: "ACCOUNT_NOT_EMPTY", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The account has a balance or open holds, so it cannot be closed."})
	AlreadyReversed = fault.Register(fault.Reason{Name: "ALREADY_REVERSED", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The transfer was already reversed, under another biz_no: the metadata names the reversal."})
	HoldExpired = fault.Register(fault.Reason{Name: "HOLD_EXPIRED", Class: fault.Refusal,
		Code: fault.FailedPrecondition,
		Step: fault.NewKey,
		Doc:  "The hold has expired: the amount that was left of it is available again."})
	HoldNotHeld = fault.Register(fault.Reason{Name: "HOLD_NOT_HELD", Class: fault.Refusal,
		Code: fault.FailedPrecondition,
		Step: fault.NewKey,
		Doc:  "The hold was already ended by a capture or a release: the metadata says captured or released."})
	CaptureExceedsHold = fault.Register(fault.Reason{Name: "CAPTURE_EXCEEDS_HOLD", Class: fault.Refusal,
		Code: fault.FailedPrecondition, Step: fault.NewKey,
		Doc: "The capture asks for more than is left of the hold."})
	DestinationMissing = fault.Register(fault.Reason{Name: "DESTINATION_MISSING", Class: fault.BadRequest,
		Code: fault.InvalidArgument, Step: fault.Fix,
		Doc: "Neither the capture nor its hold names an account to pay."})
)

func assetNotFound(code string) error {
	return AssetNotFound.New("there is no asset %s", code).With("asset", code).
		WithField("asset", "must be an asset that exists")
}
